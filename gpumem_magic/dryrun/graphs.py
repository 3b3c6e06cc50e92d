"""Graphs that earlier cells recorded on a real device, rebuilt node by node for stand-ins on the
host (autograd's engine checks the devices of gradients): what a node holds is let go when the
backward pass comes to it, as in the original."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from gpumem_magic.dryrun.shapes.valueless import tensor_over
from gpumem_magic.sources.collected import tensors_in
from gpumem_magic.sources.objects.contents import raw_saved

_base: Any = torch._C.TensorBase
_SAID = (
    "the backward pass through a graph from an earlier cell is approximated: one gradient for each "
    "of its steps"
)
_FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)


_ADDMM = 3
"""Inputs of a product to which something is added: the first one, whose gradient is made last."""


class _Geometry(NamedTuple):
    """A gradient that a node hands on. on_device: None where it is where the
    incoming one is."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    on_device: bool | None
    leaf: torch.Tensor | None


@dataclass(slots=True, eq=False)
class _Held:
    """What one node of a graph keeps alive. tell: to be called when a backward pass comes here."""

    storages: list[torch.UntypedStorage]
    freed: bool
    tell: Callable[[], None]


class _Step(torch.autograd.Function):
    """One node: holds what the original holds, and makes gradients of the right geometry."""

    @staticmethod
    def forward(
        ctx: Any,
        held: _Held,
        edges: tuple[_Geometry | None, ...],
        multiplies: bool,
        outputs: Any,
        *inputs: Any,
    ) -> Any:
        ctx.held, ctx.edges, ctx.multiplies = held, edges, multiplies
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        held: _Held = ctx.held
        if held.freed:
            raise RuntimeError(_FREED)
        held.tell()
        incoming = next((g for g in gradients if g is not None), None)
        passes = not held.storages
        first = int(ctx.multiplies and len(ctx.edges) == _ADDMM)
        made = [
            None if edge is None or incoming is None else _gradient(edge, incoming, passes)
            for edge in (*ctx.edges[first:], *ctx.edges[:first])
        ]
        if incoming is not None and ctx.multiplies and incoming.dtype.is_floating_point:
            one = incoming.new_empty((1, 1))
            torch.mm(one, one)  # takes the workspace of products, as the original's do
        made = [*made[len(made) - first :], *made[: len(made) - first]]
        if held.storages and not _keeps_graph():
            held.storages.clear()
            held.freed = True
        return (None, None, None, None, *made)


def _gradient(edge: _Geometry, incoming: torch.Tensor, passes: bool) -> torch.Tensor:
    """Valueless where the run is; steps that keep nothing mostly pass on what they are given."""
    if edge.leaf is not None:
        return torch.empty_like(edge.leaf, requires_grad=False)
    if edge.on_device is not None:
        device = "cuda" if edge.on_device else "cpu"
        return torch.empty(edge.shape, dtype=edge.dtype, device=device)
    if passes and edge.dtype == incoming.dtype:
        if edge.shape == tuple(incoming.shape):
            return incoming
        if incoming.numel() == 1:
            return incoming.reshape(()).expand(edge.shape)
        if incoming.is_contiguous() and incoming.numel() == math.prod(edge.shape):
            return incoming.view(edge.shape)
    return incoming.new_empty(edge.shape, dtype=edge.dtype)


def _keeps_graph() -> bool:
    asked = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return bool(asked and asked())


class Graphs:
    """Rebuilds graphs. Outputs of one graph share their nodes, and so what these hold.

    stand_in: what stands for a storage. say: called once a backward pass goes through such a graph.
    """

    def __init__(
        self,
        stand_in: Callable[[torch.UntypedStorage], torch.UntypedStorage],
        say: Callable[[str], None],
    ) -> None:
        self._stand_in = stand_in
        self._say = say
        self._outputs: dict[Any, list[torch.Tensor]] = {}
        self._on_device: dict[Any, bool] = {}

    def is_on_device(self, node: Any) -> bool:
        """Whether any part of the graph behind `node` was recorded on a device."""
        for each in _upwards(node, self._on_device):
            behind = (self._on_device[before] for before, _ in each.next_functions if before)
            own = any(meta.device.type != "cpu" for meta in getattr(each, "_input_metadata", ()))
            self._on_device[each] = own or any(behind)
        return self._on_device[node]

    def move(self, tensor: torch.Tensor) -> None:
        """Let `tensor`, the same object, be the output of a rebuilt graph over its stand-in."""
        node, number = _base.grad_fn.__get__(tensor), tensor.output_nr
        for each in _upwards(node, self._outputs):
            self._outputs[each] = self._rebuilt(each)
        made = self._outputs[node][number]
        made = made.view_as(made)  # several tensors may be one output
        made.data = self.over_stand_in(tensor)
        torch._C._swap_tensor_impl(tensor, made)

    def forget(self) -> None:
        """Let go of all nodes: from here on they live as long as the tensors want them."""
        self._outputs.clear()
        self._on_device.clear()

    def over_stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """A plain tensor of the same geometry over what stands for the storage."""
        geometry = _base.size(tensor), _base.stride(tensor), _base.storage_offset(tensor)
        storage = self._stand_in(_base.untyped_storage(tensor))
        return tensor_over(storage, _base.dtype.__get__(tensor), *geometry)

    def _rebuilt(self, node: Any) -> list[torch.Tensor]:
        """The outputs of the new node: of its geometry, without memory."""
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            return [leaf]
        inputs: list[torch.Tensor | None] = []
        edges: list[_Geometry | None] = []
        for before, number in node.next_functions:
            of = None if before is None else self._outputs[before][number]
            inputs.append(of)
            edges.append(None if of is None else self._edge(node, before, number, of))
        outputs = tuple(map(_placeholder, node._input_metadata))
        made = _Step.apply(  # type: ignore[no-untyped-call]
            self._held(node), tuple(edges), _multiplies(node), outputs, *inputs
        )
        return list(made)

    def _edge(self, node: Any, before: Any, number: int, of: torch.Tensor) -> _Geometry:
        if getattr(before, "variable", None) is not None:
            return _Geometry(tuple(of.shape), of.dtype, None, of)
        meta = before._input_metadata[number]
        on_device = None
        if any(own.device != meta.device for own in node._input_metadata):
            on_device = meta.device.type != "cpu"
        return _Geometry(tuple(meta.shape), meta.dtype, on_device, None)

    def _held(self, node: Any) -> _Held:
        found: dict[int, torch.UntypedStorage] = {}
        freed = False
        for value in _saved(node):
            if isinstance(value, RuntimeError):
                freed = True
            elif torch._C._has_storage(value):
                stand_in = self._stand_in(_base.untyped_storage(value))
                found[stand_in._cdata] = stand_in
        return _Held(list(found.values()), freed, lambda: self._say(_SAID))


def _multiplies(node: Any) -> bool:
    return any(part in node.name() for part in ("mm", "Mm", "Linear", "Baddbmm", "Matmul"))


def _placeholder(meta: Any) -> torch.Tensor:
    dtype = meta.dtype if meta.dtype.is_floating_point else torch.float32
    return torch.empty((), dtype=dtype, device="cpu").expand(tuple(meta.shape))


def _upwards(node: Any, known: dict[Any, Any]) -> Iterator[Any]:
    """All nodes that lead to `node` and are not known yet, those that it needs first."""
    waiting = [(node, False)]
    seen: set[Any] = set()
    while waiting:
        each, is_ready = waiting.pop()
        if is_ready:
            yield each
            continue
        if each in known or each in seen:
            continue
        seen.add(each)
        waiting.append((each, True))
        waiting += [(before, False) for before, _ in each.next_functions if before is not None]


def _saved(node: Any) -> Iterator[Any]:
    """Tensors that a node has saved; a RuntimeError where they were freed."""
    for name, raw in raw_saved(node):
        yield from _unwrapped(node, f"_saved_{name}", raw)
    yield from _read(node, "_raw_saved_tensors")  # a Function's: tells whether they were freed
    for value in getattr(node, "__dict__", {}).values():  # what a user's ctx holds
        yield from tensors_in(value)


def _unwrapped(node: Any, name: str, raw: Any) -> Iterator[Any]:
    if hasattr(raw, "data"):
        yield from tensors_in(raw.data)
        if raw.data is not None or raw.unpack_hook is not None:
            return
    yield from _read(node, name)


def _read(node: Any, name: str) -> list[Any]:
    try:
        return list(tensors_in(getattr(node, name, None)))
    except RuntimeError as error:
        return [error] if "second time" in str(error) else []
