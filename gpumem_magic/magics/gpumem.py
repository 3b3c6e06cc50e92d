"""What `%gpumem` does: a statement measured, the status screen, the device, the history."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError

from gpumem_magic.magics.display import is_rich, show, show_report, show_text, tell
from gpumem_magic.magics.gpumem_options import Request
from gpumem_magic.magics.monitor import Monitor, harmless
from gpumem_magic.magics.option_table import Action
from gpumem_magic.units import format_bytes
from gpumem_magic.values.recording import Cell


def act(monitor: Monitor, action: Action) -> None:
    """Do one action of the line magic. Raises UsageError for a wrong number or file."""
    try:
        _ACTIONS[action.key](monitor, *action.values)
    except (IndexError, ValueError, OSError) as error:
        raise UsageError(f"%gpumem: --{action.key}: {error}") from None


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


def _show(monitor: Monitor, number: str) -> None:
    report = monitor.history[int(number)]
    monitor.take_note([report])
    show_report(monitor.shell, report, monitor.settings.plot)


def _compare(monitor: Monitor, before: str, after: str) -> None:
    show_text(monitor.shell, monitor.history.compare(int(before), int(after)))


def _save(monitor: Monitor, path: str) -> None:
    monitor.history.save(Path(path).expanduser())
    tell(f"saved {path}")


def _load(monitor: Monitor, path: str) -> None:
    before = len(monitor.history)
    monitor.history.load(Path(path).expanduser())
    tell(f"loaded {_reports(len(monitor.history) - before)} from {path}")


def _reset(monitor: Monitor) -> None:
    monitor.history.clear()
    tell("the history is empty")


def _panel(monitor: Monitor) -> None:
    if not is_rich(monitor.shell):
        raise ValueError("the panel needs a notebook; %gpumem --history lists the same as text")
    from gpumem_magic.panel import open_panel  # ipywidgets waits for the first use

    open_panel(monitor)


_ACTIONS: Mapping[str, Callable[..., None]] = {
    "on": _on,
    "off": _off,
    "device": _device,
    "history": _history,
    "show": _show,
    "compare": _compare,
    "save": _save,
    "load": _load,
    "reset": _reset,
    "panel": _panel,
}


def run_measured(monitor: Monitor, request: Request, code: str, above: int, raw: str) -> Any:
    """Run `code` in the user's namespace and measure it; the value of its last expression.

    above: lines of `raw`, the text shown in the Report, that stand above the code. Inside another
    measured cell the code just runs. Errors of the code go through, after the Report.
    """
    shell = monitor.shell
    cell = as_cell(shell, code, above, raw)
    if monitor.measuring:
        return _run(shell, cell)
    started = False
    with harmless("starting to measure"):
        started = monitor.start(request)
    error = None
    try:
        return _run(shell, cell)
    except BaseException as raised:
        error = raised
        raise
    finally:
        if started:
            with harmless("measuring"):
                reports = monitor.stop(request, cell, error)
                show(shell, reports, request, monitor.settings.plot)
        del error  # it would hold this frame, and the frame everything that the code held


def as_cell(shell: Any, code: str, above: int, raw: str) -> Cell:
    """The cell that holds `code`; SyntaxErrors go through, before anything is changed."""
    text = "\n" * (above + _leading_blank(code)) + str(shell.transform_cell(code))
    running = shell.displayhook.exec_result
    number = running.execution_count if running else None
    filename = shell.compile.cache(text, number or shell.execution_count, raw_code=raw)
    shell.compile.ast_parse(text, filename)
    return Cell(raw, filename, number, text)


def _leading_blank(code: str) -> int:
    """Blank lines on top of the code, which IPython's transformers take away."""
    return len(code[: len(code) - len(code.lstrip())].splitlines()) if code.strip() else 0


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
