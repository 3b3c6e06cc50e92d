"""Who holds what the passes of a loop left behind, asked when the cell ends: later nobody knows."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.sources.cuda.recorder import no_collection
from gpumem_magic.sources.device_memory import DeviceMemory
from gpumem_magic.sources.holders.code import of_frame
from gpumem_magic.sources.holders.found import Found, Node
from gpumem_magic.sources.holders.roots import hook_roots, module_roots, named_roots, registry_roots
from gpumem_magic.sources.holders.unreached import nodes_of_atexit, trace_unreached
from gpumem_magic.sources.holders.walk import Looked, Walk
from gpumem_magic.sources.objects.contents import fields
from gpumem_magic.sources.objects.last_error import ERROR, frames_of, handled
from gpumem_magic.sources.objects.namespaces import is_librarys, locals_of
from gpumem_magic.sources.stacks.frames import PACKAGE
from gpumem_magic.units import MIB
from gpumem_magic.values.inventory import CIRCLE, HolderKind
from gpumem_magic.values.recording import Action, Events, Held, Phase

_MOST: Final = 60_000
"""Objects that are looked at, some 0.2 s."""

_COPYING: Final = ("deepcopy", "_reconstruct")
"""In names of functions that hold nothing for others: what they have made so far is one copy."""

_STEP: Final = re.compile(r"[.\[]")
"""Where a way goes on: each begin of it may be that of a module."""

_GRADIENT: Final = re.compile(r"\.grad\b")
"""In the way through a tensor's gradient; an attribute of another object may be called so, too."""

_CALLS: Final = 8
_LARGE: Final = MIB // 64
_PASSES: Final = 3
_SHARE: Final = 0.05
"""Of what is allocated: less is not looked for."""


def find_held(
    read: Callable[[], DeviceMemory],
    namespace: Mapping[str, Any],
    events: Events,
    error: BaseException | None,
    *,
    circles: bool = False,
) -> tuple[Held, ...]:
    """The ways to the blocks that one call stack left behind again and again, each once.

    read(): what is on the device now. namespace: names that the cell's code can see. error: what
    ended the cell; its frames still have the variables of the functions that failed. circles: look
    for circles of references also without one: that may take a second. Nothing of the user's runs,
    nothing is kept. Empty where no stack left several blocks: that costs no more than
    a look at the events.
    """
    torch = sys.modules.get("torch")
    rows = _left_again_and_again(events, failed=error is not None)
    if torch is None or int(events.size[rows].sum()) < MIB:
        return ()
    memory = read()
    alive = memory.blocks.keys() - memory.libraries.keys()
    blocks = {a: memory.blocks[a] for a in events.address[rows].tolist() if a in alive}
    least = _SHARE * (memory.reading.allocated or 0)
    if sum(blocks.values()) <= least:
        return ()
    few = replace(memory, blocks=blocks, libraries={}, unlisted="")
    with no_collection(), torch._C.DisableTorchFunction(), few.aside():
        walk = Walk(torch, few, Looked())

        def much_is_left() -> bool:
            return sum(map(blocks.__getitem__, walk.unexplained())) > least

        walk.leave_out(namespace)
        walk.set_out(named_roots(torch, namespace, namespace.keys()))
        walk.add(_failed_frames(torch, error))
        walk.run(_MOST, until_explained=True)
        if much_is_left():
            walk.set_out((*module_roots(namespace), *registry_roots(), *hook_roots()))
            walk.run(_MOST, until_explained=True)
        if much_is_left() and (circles or error is not None):
            trace_unreached(torch, walk, few, namespace)
        elif much_is_left():
            walk.add(nodes_of_atexit(torch, few, walk.unexplained()))
            walk.run(_MOST)
        found, modules, tensors = walk.reached.found, walk.modules(), walk.tensors()
        return tuple(_held(a, found[a], modules, tensors) for a in blocks if a in found)


def _held(address: int, found: Found, modules: frozenset[str], tensors: frozenset[str]) -> Held:
    if found.holder.kind is HolderKind.CYCLE:
        return Held(address, CIRCLE, found.has_graph, HolderKind.CYCLE.value, shown=found.shown)
    way, graph, _ = found.path.partition(".grad_fn")
    owner, *grad = _GRADIENT.split(found.path, maxsplit=1)
    ends = (match.start() for match in _STEP.finditer(f"{way}."))
    module = next((way[:end] for end in ends if way[:end] in modules), "")
    has_graph, kind = bool(graph) or found.has_graph, found.holder.kind.value
    of_leaf = bool(graph) and grad == [""]  # the graph leads on to a leaf, and that to its gradient
    gradient = bool(grad) and owner in tensors and not of_leaf
    return Held(address, way + graph, has_graph, kind, module, gradient, found.shown)


def _left_again_and_again(events: Events, failed: bool) -> NDArray[np.int64]:
    """Rows of allocations that were not given back, of stacks that left several, and of those that
    made it anew, larger and larger; after an error, of all that left several of one size: each call
    of a function that calls itself has a stack of its own."""
    rows = _alive(events)
    stacks, counts = np.unique(events.stack[rows], return_counts=True)
    several = rows[np.isin(events.stack[rows], stacks[(counts >= _PASSES) & (stacks >= 0)])]
    again = _risen(events, rows[events.size[rows] >= MIB])
    found = np.concatenate([several, np.setdiff1d(again, several)])
    alone = np.setdiff1d(rows, found) if failed else found[:0]
    sizes, counts = np.unique(events.size[alone], return_counts=True)
    alike = alone[np.isin(events.size[alone], sizes[(counts >= _CALLS) & (sizes >= _LARGE)])]
    return np.concatenate([found, alike])


def _risen(events: Events, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of the rows whose stack made blocks before, none larger than the next."""
    made = np.flatnonzero(events.action == Action.ALLOC)
    made = made[np.argsort(events.stack[made], kind="stable")]
    stacks = events.stack[made]
    found = []
    for stack in np.unique(events.stack[rows]).tolist():
        begin, end = np.searchsorted(stacks, [stack, stack + 1])
        sizes = events.requested[made[begin:end]]
        steps = np.diff(sizes)
        if (steps >= 0).all() and np.count_nonzero(steps) >= _PASSES:
            found.append(stack)
    return rows[np.isin(events.stack[rows], found)]


def _alive(events: Events) -> NDArray[np.int64]:
    """Rows whose allocation was not given back; not those of an optimizer's step."""
    moves = np.flatnonzero((events.action == Action.ALLOC) | (events.action == Action.FREE))
    last = len(moves) - 1 - np.unique(events.address[moves][::-1], return_index=True)[1]
    rows = moves[last]
    kept = (events.action[rows] == Action.ALLOC) & (events.phase[rows] != Phase.OPTIMIZER)
    return np.asarray(rows[kept], np.int64)


def _failed_frames(torch: Any, error: BaseException | None) -> Iterator[Node]:
    """The variables of the functions that the error went through: the user's are variables, those
    of libraries, and of an error that was being handled, the last to name what is the user's."""
    torch_package = str(Path(torch.__file__).parent)  # its functions keep nothing between calls
    cause = handled(error)
    frames = [*((frame, "") for frame in frames_of(error))]
    frames += [(frame, ERROR) for frame in frames_of(cause)]
    for frame, begin in frames:
        file = frame.f_code.co_filename
        own = not begin and not is_librarys(frame)
        kind = HolderKind.VARIABLE if own else HolderKind.EXCEPTION
        copies = any(word in frame.f_code.co_name for word in _COPYING)
        untold = file.startswith((PACKAGE, torch_package)) or copies
        if file.startswith(str(Path(torch_package, "utils", "data"))):
            data = fields(locals_of(frame).get("self")).get("dataset")
            yield Node.root(HolderKind.VARIABLE, f"{type(data).__name__}()", data)
        for edge in () if untold else of_frame(frame, ""):
            path = begin + edge.path.removeprefix(": ")
            yield Node.root(kind, path, edge.thing)
