"""What runs in place of the kernels: results of the right geometry, over memory nobody touches."""

from __future__ import annotations

from contextlib import suppress
from operator import ge, gt, le, lt
from typing import Any

import torch

from gpumem_magic.dryrun.shapes.bounds import MAY_BE_BOUNDED, Bounds, Interval
from gpumem_magic.dryrun.shapes.mostly_one import MostlyOne
from gpumem_magic.dryrun.shapes.read_values import ReadValues
from gpumem_magic.dryrun.shapes.sampled import Sampled
from gpumem_magic.dryrun.shapes.sparse import SparseResults
from gpumem_magic.dryrun.shapes.stand_ins import HOW_MANY, Guesses, stand_in
from gpumem_magic.dryrun.shapes.unknown_sizes import SIZED_BY_VALUES, UnknownSizes, packed_sequence
from gpumem_magic.dryrun.shapes.valueless import MOST_FLOATS, Valueless, tensor_over
from gpumem_magic.virtual.accumulation import running_node
from gpumem_magic.virtual.kernels.geometry import Geometry, check_types, shapes_among
from gpumem_magic.virtual.patches import Patches
from gpumem_magic.virtual.storages import Storages
from gpumem_magic.virtual.torch_cuda.graphs import GraphPools
from gpumem_magic.virtual.traits import tensors_among
from gpumem_magic.virtual.workspaces.layouts import Layout
from gpumem_magic.virtual.workspaces.table import UNMEASURED

_MOST_INTEGERS = 2**23
"""The same for integers: indices, lengths and masks, which decide what a program does."""

_MOST_WITHOUT_META = 2**26
"""Bytes of operands up to which an operator without a meta kernel is run to see what it returns."""

_QUANTIZED = ("quantized::", "_quantized::", "aten::quantize_", "aten::_empty_affine_quantized")
"""Operators of quantized tensors; those that only imitate them (`fake_quantize`) are not among."""

_has_no_memory = torch._C.TensorBase.is_meta.__get__  # type: ignore[attr-defined]

_LEAVES_VALUES = "aten::_amp_foreach_non_finite_check_and_unscale_"
"""Writes gradients, and whether one is not finite; it is assumed that all are."""

_LOOKS_FOR_ZEROS = frozenset({"CumprodBackward0", "ProdBackward"})
"""Backward passes that go another way where a factor is zero; it is assumed that none is."""

_USUALLY_TRUE = frozenset({"aten::all", "aten::_is_all_true"})
"""What programs check of values, and raise where it is not so."""

_ORDERINGS = {f"aten::{each.__name__}": each for each in (gt, ge, lt, le)}
"""What programs ask of two numbers, to keep the best: answered as it is of their stand-ins."""

_KEEPS_ALL = frozenset(f"aten::{name}_loss" for name in ("mse", "smooth_l1", "soft_margin")) | {
    "aten::binary_cross_entropy"
}
"""Losses whose mean lies in memory for one value per element, all of which are written first
(native/Loss.cpp, native/cuda/Loss.cu)."""


class _Plan:
    """What has to be known of an operator. written: places and names of arguments it writes to;
    aliases: for each result the argument that it is, or None."""

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.name: str = schema.name
        self.unmeasured = UNMEASURED.get(self.name.removeprefix("aten::"))
        self.is_quantized = self.name.startswith(_QUANTIZED)
        self.makes_sparse = self.name.startswith(("aten::_sparse_co", "aten::_to_sparse"))
        self.is_view = func.is_view or torch.Tag.inplace_view in func.tags
        self.has_no_memory = self.name == "aten::_efficientzerotensor"
        writes = [
            (argument.alias_info.before_set, place, argument.name)
            for place, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.written = [(place, name) for _, place, name in writes]
        if self.name == _LEAVES_VALUES:
            del self.written[1:]
        self.aliases = [
            next(((p, n) for s, p, n in writes if info and s & info.before_set), None)
            for info in (result.alias_info for result in schema.returns)
        ]
        self.may_have_bounds = self.aliases == [None] and self.name in MAY_BE_BOUNDED
        self.order = _ORDERINGS.get(self.name)
        self.is_sized_by_values = self.name in SIZED_BY_VALUES
        self.makes_new = None in self.aliases
        self.resizes = any(argument.is_out for argument in schema.arguments)


class DryKernels:
    """Called as an operator with its arguments, in place of the operator.

    Small results of known values are computed, as they may decide what a program does next. All
    others are valueless, like everything that is computed from them.
    """

    def __init__(self, guesses: Guesses) -> None:
        self.valueless = Valueless()
        self.guesses = guesses
        self._geometry = Geometry()
        self._bounds = Bounds(self.valueless)
        self._mostly_one = MostlyOne(self.valueless)
        self._sampled = Sampled(self.valueless, self._mostly_one)
        self._unknown = UnknownSizes(self._geometry, self.valueless)
        self._sparse = SparseResults(self.valueless, guesses)
        self._plans: dict[Any, _Plan] = {}
        self._storages: Storages | None = None

    def install(self, patches: Patches, storages: Storages) -> None:
        """Watch where values leave tensors."""
        self._storages = storages
        ReadValues(self.valueless, self.guesses).install(patches)
        GraphPools(storages).install(patches)

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `func(*args, **kwargs)` returns: computed if it is small and known."""
        plan = self._plans.get(func)
        if plan is None:
            plan = self._plans[func] = _Plan(func)
        tensors = tensors_among(args, kwargs)
        if plan.has_no_memory or _is_on_meta(tensors, kwargs.get("device")):
            return func(*args, **kwargs)
        if plan.name == "_c10d_functional::wait_tensor":
            return args[0]  # which its schema hides
        if plan.is_view:
            return self._sparse.marked(func(*args, **kwargs), args[0])
        if plan.unmeasured and self._any_on_device(tensors):
            self.guesses.unmeasured(plan.unmeasured)
        if plan.is_quantized and self._any_on_device(tensors):
            raise NotImplementedError(
                f"{plan.name} on the device is not supported in a dry run: CUDA has few quantized "
                "kernels; predict the model as it is before it is quantized"
            )
        check_types(plan.name, args)
        if plan.makes_sparse or any(t.layout is not torch.strided for t in tensors):
            return self._sparse.of(func, args, kwargs)
        known = self._are_known(tensors)
        if known and not plan.makes_new and not plan.resizes:
            return func(*args, **kwargs)
        if plan.name == "aten::_local_scalar_dense":
            return func(*args) if args[0] not in self.valueless else self._scalar(args[0])
        if plan.name == "aten::bincount" and not known and len(tensors) == 1:
            return self._even_counts(func, *args, **kwargs)
        if plan.name == "aten::resize_":
            return self._resize(args[0], torch.Size(args[1]))
        if plan.may_have_bounds and not known:
            interval = self._bounds.of_result(func, args, kwargs)
            if interval is not None:
                mostly = self._mostly_one.of_result(func, args, kwargs)
                between = self._between(plan, args, interval, mostly)
                self._sampled.follow(plan.name, args, between)
                return between
        shapes = self._shapes(plan, func, args, kwargs, tensors, known)
        if shapes is _RUN or (known and _is_small(shapes)):
            return func(*args, **kwargs)
        mostly = self._mostly_one.of_result(func, args, kwargs)
        results = self._results(plan, shapes, args, kwargs)
        if mostly is not None:
            self._mostly_one.keep(results, mostly)
        if not known:
            self._bounds.pick(func, args, results)
            self._mostly_one.chosen(plan.name, args, results)
            self._sampled.follow(plan.name, args, results)
        return results

    def _any_on_device(self, tensors: list[torch.Tensor]) -> bool:
        return self._storages is not None and any(t in self._storages for t in tensors)

    def _are_known(self, tensors: list[torch.Tensor]) -> bool:
        """Whether all values are known, and few enough to compute with."""
        floats = integers = 0
        for tensor in tensors:
            if tensor in self.valueless:
                return False
            if tensor.is_floating_point() or tensor.is_complex():
                floats += tensor.nbytes
            else:
                integers += tensor.nbytes
            if floats > MOST_FLOATS or integers > _MOST_INTEGERS:
                return False
        return True

    def _shapes(
        self,
        plan: _Plan,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
        known: bool,
    ) -> Any:
        """The shapes of the results; _RUN where only the kernel can tell them."""
        if not plan.makes_new and not plan.resizes:
            if isinstance(args[0], torch.Tensor):  # not lists: `_foreach_` looks at them itself
                with suppress(NotImplementedError):
                    self._geometry.results(func, args, kwargs)  # raises where it refuses them
            return None
        if plan.name == "aten::_pack_padded_sequence":
            if args[1] in self.valueless:
                self.guesses.needed("the lengths of sequences")
            return packed_sequence(func, *args, are_known=args[1] not in self.valueless)
        if plan.is_sized_by_values:
            found = self._by_values(plan, func, args, kwargs, known)
            if found is not None:
                return found
        try:
            return self._geometry.results(func, args, kwargs)
        except NotImplementedError:
            if known or sum(tensor.nbytes for tensor in tensors) <= _MOST_WITHOUT_META:
                return _RUN
            raise NotImplementedError(
                f"{plan.name} cannot be predicted: torch does not tell the shape of its results "
                "without running it"
            ) from None

    def _by_values(
        self, plan: _Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: bool
    ) -> Any:
        """The shapes of results that are as large as values say; None: shapes alone tell."""
        if (told := self._unknown.told_by_values(func, args, kwargs)) is not None:
            return told
        if plan.name == "aten::nonzero" and not known and running_node() in _LOOKS_FOR_ZEROS:
            return Layout(torch.Size((0, args[0].dim())), (1, 1), torch.int64)
        if (assumed := self._unknown.assumed(func, args, kwargs)) is None or known:
            return None if assumed is None else _RUN
        if isinstance(assumed, bool):
            self.guesses.needed("whether tensors are equal", decides=True)
        else:
            self.guesses.needed(f"{HOW_MANY} {plan.name.split('::')[1]} finds")
        return assumed

    def _results(
        self, plan: _Plan, shapes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        for place, name in plan.written:
            written = args[place] if place < len(args) else kwargs.get(name)
            for tensor in written if isinstance(written, (list, tuple)) else (written,):
                if tensor is not None:
                    self.valueless.written(tensor)
        if not plan.aliases:
            return None
        single = len(plan.aliases) == 1
        if plan.name in _KEEPS_ALL and isinstance(shapes, Layout) and not shapes.size:
            return self._mean_of_all(shapes, *args[:2])
        shapes = (shapes,) if single or shapes is None else shapes
        out = [
            self._made(shapes[i]) if alias is None else self._given(alias, shapes, i, args, kwargs)
            for i, alias in enumerate(plan.aliases)
        ]
        if plan.name in _USUALLY_TRUE and isinstance(out[0], torch.Tensor):
            torch.ops.aten.fill_.Scalar(out[0], 1)
        if plan.order:
            self._order(plan.order, args, out[0])
        return out[0] if single else tuple(out)

    def _order(self, order: Any, args: tuple[Any, ...], answer: torch.Tensor) -> None:
        """Put into an answer the order of its two operands, if each is a single number."""
        if answer.numel() == 1:
            found = order(*map(self._number, args[:2]))
            torch.ops.aten.fill_.Scalar(answer, int(found))

    def _between(
        self, plan: _Plan, args: tuple[Any, ...], interval: Interval, mostly: Any
    ) -> torch.Tensor:
        """A result of which no more is known; it is known where both ends are the same."""
        low, high = interval
        if torch.equal(low, high):
            return low
        made: torch.Tensor = self._made(Layout.plain(low))
        if plan.order:
            self._order(plan.order, args, made)
        self._bounds.attach(made, interval)
        if plan.name in _USUALLY_TRUE or (plan.name == "aten::any" and mostly is not None):
            torch.ops.aten.fill_.Scalar(made, 1)
        if mostly is not None:
            self._mostly_one.keep(made, mostly)
        return made

    def _given(
        self,
        alias: tuple[int, str],
        shapes: Any,
        i: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The argument that is the result, which `out=` may have to be made larger for."""
        place, name = alias
        given = args[place] if place < len(args) else kwargs[name]
        if (
            shapes[0] is not None
            and isinstance(shapes[i], Layout)
            and given.shape != shapes[i].size
        ):
            self._resize(given, shapes[i].size)
        return given

    def _mean_of_all(self, mean: Layout, *operands: torch.Tensor) -> torch.Tensor:
        size = torch.broadcast_shapes(*(operand.shape for operand in operands))
        storage = self.valueless.blank(size.numel() * mean.dtype.itemsize)
        return tensor_over(storage, mean.dtype, (), ())

    def _made(self, shape: Any) -> Any:
        if isinstance(shape, Layout):
            return self.valueless.make(shape.dtype, shape.size, shape.stride)
        if isinstance(shape, list):
            return [self._made(item) for item in shape]
        return shape

    def _resize(self, tensor: torch.Tensor, size: torch.Size) -> torch.Tensor:
        """A mapping cannot grow: a larger one takes its place."""
        needed = (size.numel() + int(tensor.storage_offset())) * tensor.dtype.itemsize
        if needed <= tensor.untyped_storage().nbytes():
            torch.ops.aten.resize_.default(tensor, size)
            return tensor
        on_device = self._storages is not None and tensor in self._storages
        larger = self.valueless.blank(needed)
        stride = torch.empty(size, device="meta").stride()
        old = tensor.untyped_storage()  # given back after the new one is there, as CUDA does
        tensor.set_(larger, tensor.storage_offset(), size, stride)
        if on_device and self._storages is not None:
            self._storages.place(tensor)
        del old
        return tensor

    def _even_counts(self, func: Any, numbers: Any, weights: Any = None, minlength: int = 0) -> Any:
        """As many of each number, as far as is known which there are."""
        self.guesses.needed("how many there are of each number")
        return func(torch.arange(numbers.numel()) % max(1, minlength), weights, minlength)

    def _scalar(self, tensor: torch.Tensor) -> Any:
        if running_node() in _LOOKS_FOR_ZEROS:
            return False if tensor.dtype is torch.bool else 0
        self.guesses.needed("the number in a tensor")
        return self._number(tensor)

    def _number(self, tensor: Any) -> Any:
        """The one number of a tensor; in place of one that nobody knows its stand-in."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        if tensor.dtype is torch.bool or tensor not in self.valueless:
            return torch.ops.aten._local_scalar_dense.default(tensor)  # see _USUALLY_TRUE
        greatest = self._bounds.greatest(tensor)  # as a size it is what takes most
        return stand_in(tensor.dtype) if greatest is None else greatest


def _is_on_meta(tensors: list[torch.Tensor], device: Any) -> bool:
    """Whether all of it happens without memory, here as anywhere."""
    return any(map(_has_no_memory, tensors)) if device is None else bool(device.type == "meta")


_RUN = object()
"""In place of shapes: the kernel itself has to tell."""


def _is_small(shapes: Any) -> bool:
    found = shapes_among(shapes)
    floats = sum(s.nbytes for s in found if s.dtype.is_floating_point or s.dtype.is_complex)
    return floats <= MOST_FLOATS and sum(s.nbytes for s in found) <= _MOST_INTEGERS
