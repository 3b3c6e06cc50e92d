"""Runs `%gpucheck` on the memory in use: who holds it, what a name holds, what can go."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from IPython.core.error import UsageError

from gpumem_magic.inventory import Breakdowns, Inventory
from gpumem_magic.magics.checkup_options import Checkup
from gpumem_magic.magics.display import show_text, tell
from gpumem_magic.magics.monitor import Monitor, harmless
from gpumem_magic.magics.recovery import recover
from gpumem_magic.magics.shell_places import shell_roots
from gpumem_magic.oom_texts import explain
from gpumem_magic.sources import Source
from gpumem_magic.sources.holders import break_down, take_inventory
from gpumem_magic.view import View

_LONGEST = 100_000  # characters of an error's text


def run_checkup(monitor: Monitor, checkup: Checkup, body: str = "") -> None:
    """Answer, and keep the answer where `checkup` says. body: the cell below `--explain`.

    Raises UsageError where there is no device, or no such name. Inside a prediction nothing
    happens.
    """
    if monitor.predicting:
        return
    if checkup.watch is not None:
        _watch(monitor, checkup.watch)
        return
    answer = _answer(monitor, checkup, body)
    if checkup.output:
        monitor.shell.user_ns[checkup.output] = answer
    if checkup.save:
        with harmless(f"saving to {checkup.save}"):
            answer.save(Path(checkup.save).expanduser())
    show_text(monitor.shell, answer)


def _answer(monitor: Monitor, checkup: Checkup, body: str) -> View:
    if checkup.explain is not None:
        return explain(checkup.explain or body.strip() or _last_error())
    source = _source(monitor)
    if checkup.names:
        return _held_by(monitor, source, checkup.names)
    if checkup.free:
        return recover(monitor.shell, source, checkup.outputs, checkup.everything)
    return inventory(monitor, source)


def inventory(monitor: Monitor, source: Source) -> Inventory:
    """Who holds the device's memory now, by the user's names and IPython's own places."""
    shell = monitor.shell
    return take_inventory(source, shell.user_ns, shell_roots(shell))


def _held_by(monitor: Monitor, source: Source, names: tuple[str, ...]) -> View:
    shell = monitor.shell
    try:
        found = tuple(break_down(source, shell.user_ns, shell_roots(shell), name) for name in names)
    except (KeyError, AttributeError, ValueError) as error:
        raise UsageError(f"%gpucheck: {error.args[0]}") from None
    return found[0] if len(found) == 1 else Breakdowns(found)


def _source(monitor: Monitor) -> Source:
    if monitor.source is None:
        raise UsageError(f"%gpucheck: there is no device to look at: {monitor.why_off}")
    return monitor.source


def _watch(monitor: Monitor, on: bool) -> None:
    _source(monitor)
    monitor.watch.switch(on)
    if on:
        tell("cells that run again are watched for growth now; %gpucheck --watch off ends it")
    else:
        tell("no cell is watched for growth now")


def _last_error() -> str:
    """The text of the last error of the notebook, its causes included."""
    error = getattr(sys, "last_value", None)
    if not isinstance(error, BaseException):
        raise UsageError('%gpucheck: no error to explain; give its text: --explain "..."')
    lines = traceback.TracebackException.from_exception(error, limit=0).format()
    return "".join(lines)[-_LONGEST:]
