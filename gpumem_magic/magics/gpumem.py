"""%gpumem: its options beside what they do, the status screen, and code that is measured."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError

from gpumem_magic.magics.display import is_rich, show_text, tell
from gpumem_magic.magics.monitor import Monitor, Request
from gpumem_magic.magics.option_values import (
    device,
    offer_devices,
    offer_rules,
    position,
    rules,
    saved,
    target,
    variable,
)
from gpumem_magic.magics.options import Given, Option, OptionTable, fields_of, for_code, shorten
from gpumem_magic.units import format_bytes
from gpumem_magic.values.recording import Cell


def run_gpumem(monitor: Monitor, line: str, cell: str | None) -> Any:
    """Do what `%gpumem` or, with a cell, `%%gpumem` asks for; the value of measured code.

    Raises UsageError for what cannot be done, and errors of the code.
    """
    if cell is not None and line.strip() in ("-h", "--help"):
        return _help(monitor)
    if cell is not None:
        request = _read_marked(monitor, line)
        return run_measured(monitor, request, cell, 1, f"%%gpumem {line}\n{cell}")
    given, statement = OPTIONS.scan(line, "%gpumem")
    if statement:
        OPTIONS.require_code(statement, monitor.shell.user_ns, "%gpumem")
        request = _request(for_code(given, "%gpumem STATEMENT"))
        request = replace(request, name=request.name or shorten(statement))
        return run_measured(monitor, request, statement, 0, statement)
    _require_actions(given)
    if not given:
        tell(status(monitor))
    for each in given if not monitor.predicting else ():
        _act(monitor, each)
    return None


def read_cell(line: str) -> Request:
    """How the options after `%%gpumem` want the cell to be measured. Raises UsageError, naming the
    option, if any is wrong."""
    return _request(OPTIONS.before_code(line, "%%gpumem"))


def _read_marked(monitor: Monitor, line: str) -> Request:
    """`read_cell`; the cell runs even where that has a defect."""
    try:
        return read_cell(line)
    except UsageError:
        raise
    except Exception as error:
        monitor.faults.tell("reading the options", error)
        return Request(quiet=True, kept=False)


def _request(given: tuple[Given, ...]) -> Request:
    return Request(**fields_of(given))


def _require_actions(given: tuple[Given, ...]) -> None:
    for each in given:
        if each.option.run is None:
            raise UsageError(f"%gpumem: --{each.key} needs a statement to measure after it")


def _act(monitor: Monitor, given: Given) -> None:
    """Do one action. Raises UsageError for a wrong number or file."""
    assert given.option.run is not None
    try:
        given.option.run(monitor, *given.values)
    except (IndexError, ValueError, OSError) as error:
        told = getattr(error, "strerror", None)  # an OSError: without its number
        why = f"{given.values[0]}: {told}" if told and given.values else error
        raise UsageError(f"%gpumem: --{given.key}: {why}") from None


def status(monitor: Monitor) -> str:
    """One screen: the device, its memory now, what is measured, and what to type next."""
    every = "every cell" if monitor.settings.every_cell else "cells marked with %%gpumem"
    return "\n".join(
        [
            *_device_lines(monitor),
            f"measures    {every}",
            f"history     {_reports(len(monitor.history))}",
            "",
            "%%gpumem             on top of a cell: where its memory goes, line by line",
            "%gpumem STATEMENT    the same for one statement",
            "%gpumem --on         one line below every cell from now on",
            "%gpumem --history    what was measured so far",
            "%gpumem --panel      all of this as a live panel",
            "%gpumem --device T4  another device; %gpumem? lists every option",
            "%gpucheck            who holds the memory now, and what of it can go",
            "%%gpucheck --gpu T4  on top of a cell: would it fit? nothing is run",
            "%gpucheck --advise   what would save memory in the last cell, measured",
        ]
    )


def _device_lines(monitor: Monitor) -> list[str]:
    source = monitor.source
    if source is None:
        return [f"device      none: {monitor.why_off}"]
    device, level = source.device, source.level()
    kind = "virtual " if device.virtual else ""
    free = None if level.device_used is None else device.total - level.device_used
    return [
        f"device      {kind}{device.name}, {format_bytes(device.total)}",
        f"allocated   {format_bytes(level.allocated)}",
        f"reserved    {format_bytes(level.reserved)}",
        f"free        {format_bytes(free)}",
    ]


def _reports(number: int) -> str:
    return "1 report" if number == 1 else f"{number} reports"


def _on(monitor: Monitor) -> None:
    monitor.settings.every_cell = True
    tell("every cell is measured now; %gpumem --off ends it")


def _off(monitor: Monitor) -> None:
    monitor.settings.every_cell = False
    tell("only cells marked with %%gpumem are measured now")


def _device(monitor: Monitor, name: str | None = None) -> None:
    if name is not None:
        monitor.settings.device = name
    tell("\n".join(_device_lines(monitor)))


def _history(monitor: Monitor) -> None:
    show_text(monitor.shell, monitor.history)


def _show(monitor: Monitor, number: int) -> None:
    report = monitor.history[number]
    monitor.take_note([report])
    monitor.show_report(report, monitor.settings.plot)


def _compare(monitor: Monitor, before: int | None = None, after: int | None = None) -> None:
    newest = max(len(monitor.history), 2)
    compared = monitor.history.compare(before or newest - 1, after or newest)
    show_text(monitor.shell, compared)


def _save(monitor: Monitor, path: Path) -> None:
    monitor.history.save(path)
    tell(f"saved {path}")


def _load(monitor: Monitor, path: Path) -> None:
    before = len(monitor.history)
    monitor.history.load(path)
    tell(f"loaded {_reports(len(monitor.history) - before)} from {path}")


def _reset(monitor: Monitor) -> None:
    monitor.history.clear()
    tell("the history is empty")


def _panel(monitor: Monitor) -> None:
    if not is_rich(monitor.shell):
        raise ValueError("the panel needs a notebook; %gpumem --history lists the same as text")
    from gpumem_magic.panel import open_panel  # ipywidgets waits for the first use

    open_panel(monitor)


def _help(monitor: Monitor) -> None:
    tell(f"The options of %gpumem and %%gpumem:\n{OPTIONS.describe()}")


OPTIONS = OptionTable(
    (
        Option("-h/--help", "", "list the options", run=_help),
        Option("--name", "NAME", "call the report NAME", code=True),
        Option(
            "--gpu/--device",
            "DEV",
            "choose the device, and stay on it: auto, cuda:1, T4, A100-80GB, 24GiB, off;\n"
            "on %gpumem without DEV: show it",
            device,
            code=True,
            run=_device,
            optional=True,
            offers=offer_devices,
        ),
        Option("-q/--quiet", "", "measure, but show nothing", code=True),
        Option("-o/--output", "VAR", "store the report in the variable VAR", variable, code=True),
        Option(
            "--save",
            "PATH",
            "save the report of this code, or on %gpumem alone the whole history;\n"
            "PATH ends in .json .csv .html .png .svg .txt, or .pickle: a memory snapshot\n"
            "as PyTorch writes it",
            target,
            code=True,
            run=_save,
            files=True,
        ),
        Option(
            "--ignore",
            "RULE",
            "no advice of this rule; several with commas",
            rules,
            code=True,
            offers=offer_rules,
        ),
        Option("--no-plot", "", "leave out the timeline figure", code=True),
        Option("--on", "", "measure every cell from now on", run=_on),
        Option("--off", "", "stop measuring every cell", run=_off),
        Option("--history", "", "list the measured cells", run=_history),
        Option("--show", "N", "show report N of the history in full", position, run=_show),
        Option(
            "--compare",
            "A B",
            "show what changed from report A to report B;\n"
            "B is the last one without it, and A the one before that",
            position,
            run=_compare,
            optional=True,
        ),
        Option(
            "--load",
            "PATH",
            "add the reports of a saved .json to the history,\n"
            "or those of a memory snapshot (.pickle) that PyTorch wrote",
            saved,
            run=_load,
            files=True,
        ),
        Option("--reset", "", "forget the history", run=_reset),
        Option(
            "--panel",
            "",
            "show gauges, history, advice and predictions as a live panel",
            run=_panel,
        ),
    )
)
"""Every option of %gpumem and %%gpumem."""


def run_measured(monitor: Monitor, request: Request, code: str, above: int, raw: str) -> Any:
    """Run `code` in the user's namespace and measure it; the value of its last expression.

    above: lines of `raw`, the text shown in the Report, that stand above the code. Inside another
    measured cell the code just runs. Errors of the code go through, after the Report.
    """
    shell = monitor.shell
    cell = monitor.files.compiled(code, above, raw)
    if monitor.measuring:
        return _run(shell, cell)
    started = False
    with monitor.faults.kept_away("starting to measure"):
        started = monitor.start(request)
    error = None
    try:
        return _run(shell, cell)
    except BaseException as raised:
        error = raised
        raise
    finally:
        if started:
            with monitor.faults.kept_away("the report"):
                monitor.show(request, monitor.stop(request, cell, error))
            monitor.discard()
        del error  # it would hold this frame, and the frame everything that the code held


def _run(shell: Any, cell: Cell) -> Any:
    text, filename = cell.python, cell.filename
    tree = shell.transform_ast(shell.compile.ast_parse(text, filename))
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not text.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    exec(shell.compile(tree, filename, "exec"), shell.user_global_ns, shell.user_ns)
    if last is None:
        return None
    return eval(shell.compile(last, filename, "eval"), shell.user_global_ns, shell.user_ns)
