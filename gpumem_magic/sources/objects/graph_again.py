"""What leads to a graph that a backward pass fails on, as an earlier one has used it up."""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from types import FrameType
from typing import Any, Final

from gpumem_magic.sources.objects.contents import Contents
from gpumem_magic.sources.objects.last_error import frames_of
from gpumem_magic.sources.objects.modules import of_module
from gpumem_magic.sources.objects.namespaces import is_librarys, is_spoken_of, locals_of
from gpumem_magic.sources.stacks.frames import went_through
from gpumem_magic.values.names import GraphAgain

_SAID: Final = "backward through the graph a second time"
_MOST: Final = 20_000
"""Nodes of the graph, and things that names lead to, that are looked at."""

_DEEP: Final = 4
"""Steps from a name, and from the node of a tensor to one of the graph's."""

_BEGUN_WITH: Final = ("tensors", "outputs", "t_outputs")


def find_again(names: Mapping[str, Any], error: BaseException | None) -> GraphAgain | None:
    """Where `error` says so. Nothing of the user's runs, no saved tensor is unpacked."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, RuntimeError) or _SAID not in str(error):
        return None
    frames = list(frames_of(error))
    own = [frame for frame in frames if not is_librarys(frame)]
    ends = list(_begun_with(torch, frames))
    if not own or not ends:
        return None
    grad_fn = torch._C.TensorBase.grad_fn.__get__
    nodes = _nodes_of([grad_fn(end) for end in ends])
    begun = {id(end) for end in ends}
    found: dict[str, bool] = {}
    for path, tensor in islice(_tensors(torch, names, own), _MOST):
        if id(tensor) in begun:
            found[path] = True
        elif tensor.numel() > 1 and _leads_to(grad_fn(tensor), nodes):
            found[path] = False
    last = own[-1]
    file = last.f_code.co_filename
    line = dict(went_through(error)).get(last, last.f_lineno)
    return GraphAgain(
        names=tuple(path for path, is_end in found.items() if not is_end),
        ends=tuple(path for path, is_end in found.items() if is_end),
        filename=file,
        line=line,
        function=last.f_code.co_name,
        source="".join(linecache.getlines(file)),
    )


def _begun_with(torch: Any, frames: list[FrameType]) -> Iterator[Any]:
    for frame in frames:
        if frame.f_code.co_filename == torch.autograd.__file__:
            values = locals_of(frame)
            for name in _BEGUN_WITH:
                value = values.get(name)
                each = value if isinstance(value, (tuple, list)) else (value,)
                yield from (one for one in each if isinstance(one, torch.Tensor))


def _nodes_of(ends: list[Any]) -> set[Any]:
    """The nodes behind these, without those of leaves."""
    found: set[Any] = set()
    waiting = [node for node in ends if node is not None]
    while waiting and len(found) < _MOST:
        node = waiting.pop()
        if node not in found and not hasattr(node, "variable"):
            found.add(node)
            waiting += [before for before, _ in node.next_functions if before is not None]
    return found


def _leads_to(node: Any, nodes: set[Any]) -> bool:
    level = [node]
    for _ in range(_DEEP):
        if any(each in nodes for each in level):
            return True
        level = [b for each in level if each is not None for b, _ in each.next_functions if b]
    return False


def _tensors(
    torch: Any, names: Mapping[str, Any], frames: list[FrameType]
) -> Iterator[tuple[str, Any]]:
    """Tensors by the way that a user writes, of the notebook's names and of functions' variables;
    each thing once, the shortest way first."""
    level = [(k, v) for k, v in names.items() if is_spoken_of(k)]
    functions = [frame for frame in frames if frame.f_code.co_flags & inspect.CO_OPTIMIZED]
    level += [item for frame in reversed(functions) for item in locals_of(frame).items()]
    contents, seen = Contents(), set()
    for _ in range(_DEEP):
        inside = []
        for path, thing in level[:_MOST]:
            if id(thing) in seen:
                continue
            seen.add(id(thing))
            if isinstance(thing, torch.Tensor):
                yield path, thing
            elif isinstance(thing, torch.nn.Module):
                inside += [(way, part) for way, part, _, _ in of_module(torch, thing, path)]
            else:
                inside += contents.of(thing, path)
        level = inside
