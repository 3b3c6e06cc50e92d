"""The options of %gpumem and %%gpumem, and what they ask for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from IPython.core.error import UsageError

from gpumem_magic.devices import check_device
from gpumem_magic.magics.option_table import Action, Option, OptionTable, shorten
from gpumem_magic.magics.option_values import (
    check_number,
    check_saved,
    check_target,
    check_variable,
    offer_devices,
    offer_rules,
    rules_in,
)

OPTIONS = (
    Option(("--name",), ("NAME",), "call the report NAME", with_code=True),
    Option(
        ("--device",),
        ("DEV",),
        "choose the device, and stay on it: auto, cuda:1, T4, A100-80GB, 24GiB, off;\n"
        "on %gpumem without DEV: show it",
        with_code=True,
        acts=True,
        optional=True,
        check=check_device,
        offers=offer_devices,
    ),
    Option(("-q", "--quiet"), (), "measure, but show nothing", with_code=True),
    Option(
        ("-o", "--output"),
        ("VAR",),
        "store the report in the variable VAR",
        with_code=True,
        check=check_variable,
    ),
    Option(
        ("--save",),
        ("PATH",),
        "save the report of this code, or on %gpumem alone the whole history;\n"
        "PATH ends in .json .csv .html .png .svg or .txt",
        with_code=True,
        acts=True,
        check=check_target,
        files=True,
    ),
    Option(
        ("--ignore",),
        ("RULE",),
        "no advice of this rule; several with commas",
        with_code=True,
        check=rules_in,
        offers=offer_rules,
    ),
    Option(("--no-plot",), (), "leave out the timeline figure", with_code=True),
    Option(("--on",), (), "measure every cell from now on", acts=True),
    Option(("--off",), (), "stop measuring every cell", acts=True),
    Option(("--history",), (), "list the measured cells", acts=True),
    Option(("--show",), ("N",), "show report N of the history in full", acts=True,
           check=check_number),
    Option(("--compare",), ("A", "B"), "show what changed from report A to report B", acts=True,
           check=check_number),
    Option(("--load",), ("PATH",), "add the reports of a saved .json to the history", acts=True,
           check=check_saved, files=True),
    Option(("--reset",), (), "forget the history", acts=True),
    Option(("--panel",), (), "show gauges, history, advice and predictions as a live panel",
           acts=True),
)  # fmt: skip
TABLE = OptionTable(OPTIONS)


@dataclass(frozen=True, slots=True)
class Request:
    """What one magic line asks for: how to measure `statement` or the cell, or which actions to do.

    ignore: rules that give no advice. brief: show one line instead of the Report, as `--on` does.
    kept: put it into the history.
    """

    name: str | None = None
    device: str | None = None
    quiet: bool = False
    output: str | None = None
    save: str | None = None
    plot: bool = True
    ignore: tuple[str, ...] = ()
    brief: bool = False
    kept: bool = True
    statement: str = ""
    actions: tuple[Action, ...] = ()


def parse_cell(line: str) -> Request:
    """The options after `%%gpumem`. Raises UsageError, naming the option, if any is wrong."""
    return _measuring(TABLE.before_code(line, "%%gpumem"))


def parse_line(line: str) -> Request:
    """The options after `%gpumem` and its statement. Raises UsageError if any is wrong."""
    actions, rest = TABLE.scan(line, "%gpumem")
    if rest:
        request = _measuring(TABLE.for_code(actions, "%gpumem STATEMENT"))
        return replace(request, statement=rest, name=request.name or shorten(rest))
    for action in actions:
        if not TABLE.option(action.key).acts:
            raise UsageError(f"%gpumem: --{action.key} needs a statement to measure after it")
        TABLE.check(action, "%gpumem")
    return Request(actions=actions)


def _measuring(actions: tuple[Action, ...]) -> Request:
    """The request that measuring options make."""
    request = Request()
    for action in actions:
        request = _apply(request, action)
    return request


def _apply(request: Request, action: Action) -> Request:
    value = action.values[0] if action.values else ""
    if action.key == "quiet":
        return replace(request, quiet=True)
    if action.key == "no-plot":
        return replace(request, plot=False)
    if action.key == "name":
        return replace(request, name=value)
    if action.key == "device":
        return replace(request, device=value)
    if action.key == "ignore":
        return replace(request, ignore=(*request.ignore, *rules_in(value)))
    if action.key == "output":
        return replace(request, output=value)
    return replace(request, save=value)
