"""Runs `%gpucheck` on the memory in use: who holds it, what a name holds, what can go."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError

from gpumem_magic.magics.display import show_text, tell
from gpumem_magic.magics.gpucheck_options import Checkup
from gpumem_magic.magics.monitor import Monitor, harmless
from gpumem_magic.magics.shell_places import error_places, output_places, shell_roots
from gpumem_magic.oom_text import explain
from gpumem_magic.sources import Source
from gpumem_magic.sources.holders import Looked, break_down, take_inventory
from gpumem_magic.sources.holders.letting_go import (
    Step,
    collect_cycles,
    drop_errors,
    drop_gradients,
    drop_outputs,
    empty_cache,
    let_go,
)
from gpumem_magic.units import format_bytes
from gpumem_magic.values.answer import Answer
from gpumem_magic.values.inventory import Breakdowns, Freed, HolderKind, Inventory, Recovery


def recover(shell: Any, source: Source, outputs: bool, everything: bool) -> Recovery:
    """Let go of cycles and of the last errors, then return what is unused to the device.

    outputs: of the output history as well. everything: of that, of errors also where they alone
    hold nothing, and of gradients.
    """
    before = source.level()
    freed: list[Freed] = []
    for step in _steps(shell, source, outputs or everything, everything):
        freed += let_go(source, [step])
    after = source.level()
    left = take_inventory(source, shell.user_ns, shell_roots(shell)).holdings
    return Recovery(source.device, before, after, tuple(freed), left)


def _steps(shell: Any, source: Source, outputs: bool, everything: bool) -> Iterator[Step]:
    """What costs nothing goes first; each step is made when the ones before it are done."""
    yield collect_cycles()
    places = error_places(shell)
    if places and (everything or _errors_hold_memory(shell, source)):
        yield drop_errors(places, tuple(_within_reach(shell.user_ns)))
    if outputs:
        yield drop_outputs(output_places(shell))
    if everything:
        yield drop_gradients(source, shell.user_ns)
    yield empty_cache()


def _errors_hold_memory(shell: Any, source: Source) -> bool:
    """Whether it may be worth what it costs to let them go."""
    found = take_inventory(source, shell.user_ns, shell_roots(shell))
    return bool(found.size_of(HolderKind.EXCEPTION) or found.size_of(HolderKind.UNKNOWN))


def _within_reach(namespace: Mapping[str, Any]) -> Iterator[object]:
    """The user's variables, and what is in their lists: errors among these stay as they are."""
    for name, value in list(namespace.items()):
        if name not in ("_oh", "Out"):
            yield value
            if type(value) in (list, tuple):
                yield from list(value)
            elif type(value) is dict:
                yield from list(value.values())


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


def _answer(monitor: Monitor, checkup: Checkup, body: str) -> Answer:
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
    shell, looked = monitor.shell, Looked()
    with monitor.following(_look_line(looked)):
        return take_inventory(source, shell.user_ns, shell_roots(shell), looked)


def _look_line(looked: Looked) -> Callable[[float], str]:
    """What follows a look that takes long."""

    def say(seconds: float) -> str:
        return (
            f"{seconds:.0f} s · looked at {looked.objects:,} objects · "
            f"{format_bytes(looked.unexplained)} still without a holder"
        )

    return say


def _held_by(monitor: Monitor, source: Source, names: tuple[str, ...]) -> Answer:
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
