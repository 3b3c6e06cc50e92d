"""Lets go of what no name needs, one step after the other, and tells what each gave back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpumem_magic.inventory import Freed, HolderKind, Recovery
from gpumem_magic.magics.shell_places import error_places, output_places, shell_roots
from gpumem_magic.sources import Source
from gpumem_magic.sources.holders import take_inventory
from gpumem_magic.sources.holders.letting_go import (
    Step,
    collect_cycles,
    drop_errors,
    drop_gradients,
    drop_outputs,
    empty_cache,
    let_go,
)


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
