"""Lets go of what nobody needs, step by step, and tells what each step gave back."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpumem_magic.sources.cuda.recorder import no_collection
from gpumem_magic.sources.holders.roots import Root, named_roots
from gpumem_magic.sources.holders.unreached import tensors_in
from gpumem_magic.sources.holders.walk import Looked, Walk
from gpumem_magic.values.inventory import Freed

if TYPE_CHECKING:
    from gpumem_magic.sources import Source

_NO_OUTPUTS: Final = "Out[...] and _ are empty"
_NO_GRADS: Final = "an optimizer.step() that was still to come has no gradients"
_NO_DEBUG: Final = "%debug and %tb have nothing to show of the last error"
_MOST: Final = 2_000_000  # objects that are looked at
_chain: Any = BaseException


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do. act: may return a sentence that says why it could not do all of it. cost:
    what does not work afterwards."""

    what: str
    act: Callable[[], object]
    cost: str = ""


def let_go(source: Source, steps: Sequence[Step]) -> tuple[Freed, ...]:
    """Take the steps in their order; what each gave back, in bytes of the source's device."""
    return tuple(_take(source, step) for step in steps)


def _take(source: Source, step: Step) -> Freed:
    before = source.level()
    left = step.act()
    after = source.level()
    return Freed(
        what=step.what,
        allocated=(before.allocated or 0) - (after.allocated or 0),
        reserved=(before.reserved or 0) - (after.reserved or 0),
        cost=step.cost,
        left=left if isinstance(left, str) else "",
    )


def drop_gradients(source: Source, namespace: Mapping[str, Any]) -> Step:
    """Set `.grad` to None of everything on the device that the namespace leads to, and of all whose
    gradient has a graph: `create_graph` makes circles that no collection ends."""

    def act() -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            return
        memory = source.memory()
        with no_collection(), torch._C.DisableTorchFunction(), memory.aside():
            walk = Walk(torch, memory, Looked())
            walk.leave_out(namespace)
            walk.add(named_roots(torch, namespace, namespace.keys()))
            walk.run(_MOST, to_the_end=True)
            grad = torch._C.TensorBase.grad
            others = tensors_in(torch, gc.get_objects(), memory, walk.unexplained())
            for owner in (*walk.owners_of_gradients(), *filter(_is_in_circle, others)):
                grad.__set__(owner, None)

    return Step("gradients", act, _NO_GRADS)


def _is_in_circle(thing: Any) -> bool:
    """Whether a tensor, among tensors and storages, has a gradient with a graph."""
    gradient = thing.grad if getattr(thing, "is_leaf", False) else None
    return gradient is not None and gradient.grad_fn is not None


def collect_cycles() -> Step:
    """Let Python's garbage collector run. First, so that the others' bytes are their own."""

    return Step("reference cycles", gc.collect)


def drop_outputs(places: Iterable[Root]) -> Step:
    """Empty the places where displayed values are kept."""
    return Step("output history", lambda: _drop(places), _NO_OUTPUTS)


def drop_errors(places: Iterable[Root], spared: Iterable[object] = ()) -> Step:
    """Empty the places where errors are kept, and let their tracebacks go: of each error, and of
    all that it came from, but for errors that are among `spared`, or that one of these came from.
    """

    def act() -> str:
        kept = tuple(places)
        whole = {id(error) for error in _errors(spared)}
        for error in _errors(place.get() for place in kept):
            if id(error) not in whole:
                error.__traceback__ = None
        return _drop(kept)

    return Step("exceptions", act, _NO_DEBUG)


def empty_cache() -> Step:
    """Give what the allocator has cached back to the driver."""

    def act() -> None:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    return Step("cached memory", act)


def _drop(places: Iterable[Root]) -> str:
    """Why some could not be emptied."""
    left = list(filter(None, map(_emptied, places)))
    gc.collect()
    return "; ".join(left)


def _emptied(place: Root) -> str:
    try:
        place.drop()
    except Exception as error:  # IPython may have changed: the other places go on
        return f"{place.name}: {type(error).__name__}: {error}"
    return ""


def _errors(things: Iterable[object]) -> Iterator[BaseException]:
    """All errors among the things, with those of their chains and groups."""
    waiting, seen = list(things), set()
    while waiting:
        error = waiting.pop()
        if not issubclass(type(error), BaseException) or id(error) in seen:
            continue
        seen.add(id(error))
        waiting += [_chain.__cause__.__get__(error), _chain.__context__.__get__(error)]
        for argument in _chain.args.__get__(error):  # of a group: its message, its exceptions
            waiting += list(argument) if type(argument) in (list, tuple) else [argument]
        yield error  # type: ignore[misc]
