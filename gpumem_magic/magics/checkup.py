"""The memory in use, as %gpucheck shows it: who holds it, what a name holds, what can go."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from IPython.core.error import UsageError

from gpumem_magic.magics.display import tell
from gpumem_magic.magics.monitor import Monitor
from gpumem_magic.magics.option_values import known_rules
from gpumem_magic.magics.shell_places import error_places, output_places, shell_roots
from gpumem_magic.oom_text import Explanation, Origin, explain
from gpumem_magic.renderers.wording import visible
from gpumem_magic.sources import Source
from gpumem_magic.sources.failures import one_line
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
from gpumem_magic.values.inventory import (
    Breakdown,
    Breakdowns,
    Freed,
    HolderKind,
    Inventory,
    Recovery,
)

_LONGEST, _SHORT = 100_000, 500  # characters of an error's text, and of one that is only named


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


def inventory(monitor: Monitor) -> Inventory:
    """Who holds the device's memory now, by the user's names and IPython's own places. Raises
    UsageError without a device."""
    shell, looked = monitor.shell, Looked()
    with monitor.following(lambda seconds: _look_line(looked, seconds)):
        return take_inventory(source_of(monitor), shell.user_ns, shell_roots(shell), looked)


def _look_line(looked: Looked, seconds: float) -> str:
    """What follows a look that takes long."""
    return (
        f"{seconds:.0f} s · looked at {looked.objects:,} objects · "
        f"{format_bytes(looked.unexplained)} still without a holder"
    )


def held_by(monitor: Monitor, names: Sequence[str]) -> Breakdown | Breakdowns:
    """What these names hold. Raises UsageError without a device, or such a name."""
    source, shell = source_of(monitor), monitor.shell
    roots = shell_roots(shell)
    try:
        found = tuple(break_down(source, shell.user_ns, roots, name) for name in names)
    except (KeyError, AttributeError, ValueError) as error:
        raise UsageError(f"%gpucheck: {error.args[0]}") from None
    return found[0] if len(found) == 1 else Breakdowns(found)


def source_of(monitor: Monitor) -> Source:
    """The device that is looked at. Raises UsageError where there is none."""
    if monitor.source is None:
        raise UsageError(f"%gpucheck: there is no device to look at: {monitor.why_off}")
    return monitor.source


def watch(monitor: Monitor, on: bool) -> None:
    """Begin or end to tell which names grow. Raises UsageError without a device."""
    source_of(monitor)
    monitor.watch.switch(on)
    if on:
        tell("cells that run again are watched for growth now; %gpucheck --watch off ends it")
    else:
        tell("no cell is watched for growth now")


def explained(text: str) -> Explanation:
    """What an out-of-memory text says; without one the last error of the notebook, its causes
    included. Raises UsageError where there is none, or it has nothing to do with memory."""
    if text:
        return explain(text)
    error = getattr(sys, "last_value", None)
    if not isinstance(error, BaseException):
        raise UsageError(
            '%gpucheck: no error to explain; give its text: --explain "...", or a rule: '
            f"{known_rules()}"
        )
    lines = traceback.TracebackException.from_exception(error, limit=0).format()
    explanation = explain("".join(lines)[-_LONGEST:])
    if explanation.reading.origin is Origin.NONE:
        raise UsageError(
            "%gpucheck: the last error was no out-of-memory error: "
            f"{visible(one_line(error))[:_SHORT]}\n"
            'Give the text of another one: --explain "...", or in a cell below '
            f"%%gpucheck --explain; or a rule: {known_rules()}"
        )
    return explanation
