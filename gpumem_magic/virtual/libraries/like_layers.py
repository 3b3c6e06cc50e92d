"""Layers that do alike while transformers generates text, and parts of caches that beams reorder:
the first of a step runs, and what it did is done again for the others. What cannot be accounted for
(a tensor that stays and is in no result, or goes and is in no cache) lets the next one run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.modules import module as torch_module

from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.values.recording import Action
from gpumem_magic.virtual.event_log import EventLog
from gpumem_magic.virtual.libraries.layer_geometry import (
    UnlikeError,
    kind_of,
    plain,
    same,
    shape_of,
    states_of,
    unseen,
    values_of,
)
from gpumem_magic.virtual.source import VirtualSource
from gpumem_magic.virtual.storages import Step

_GLOBAL_HOOKS = tuple(
    hooks
    for name, hooks in vars(torch_module).items()
    if name.startswith("_global_") and isinstance(hooks, dict)
)
"""What is called around every module, by the way it is registered."""

_PASSES = 2
"""Passes in which a layer of some shape has to do as another, before that one stands for it."""


class Values(Protocol):
    """Tells which tensors have values, and makes storages that have none."""

    def __contains__(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's values are unknown."""

    def written(self, tensor: torch.Tensor) -> None:
        """Code that no operator tells of may have written to the tensor."""

    def blank(self, nbytes: int) -> torch.UntypedStorage:
        """A storage of unknown contents."""


class _Made(NamedTuple):
    """A tensor over the block that was the `number`-th to be taken."""

    number: int
    nbytes: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Given(NamedTuple):
    """The layer's argument at this place."""

    place: int


class _Held(NamedTuple):
    """A tensor of a cache before the layer ran. address: of its block; None on the host, where no
    other object can take its identity while the cache keeps it."""

    address: int | None
    shape: Any
    identity: int


class _Kept(NamedTuple):
    """A tensor that stays where it was; value: what is known of it, None for none."""

    value: Any


@dataclass(frozen=True, slots=True)
class _Script:
    """What a layer did. steps: bytes taken, or what was given back (the number of a request, or the
    name of a tensor of the cache), each with its stack. result, state: what came of it."""

    steps: tuple[tuple[bool, Any, int], ...]
    result: Any
    state: Mapping[tuple[int, str], Any]


class LikeLayers:
    """Lets one layer stand for those like it, within `generate`.

    A layer stands for another where both are of one type with the same settings and weights of the
    same geometry, are called with the same arguments, and have caches of the same geometry; and
    where, in the first steps of that shape, both ran and did the same, request for request and line
    for line.
    """

    def __init__(self, source: VirtualSource, values: Values) -> None:
        self._source = source
        self._values = values
        self._storages = source.gpu.storages
        self._layers: Any = None
        self._is_generating = False
        self._last = 0
        self._kinds: dict[int, Any] = {}
        self._scripts: dict[Any, _Script] = {}  # of this pass through the layers
        self._alike: dict[Any, int] = {}  # in how many passes a layer did as another, by shape
        self._reordered: set[int] = set()  # parts of a cache, in this pass through them

    def expect(self, arrivals: Arrivals) -> None:
        """Take over in transformers, once it is loaded."""
        arrivals.expect("transformers.generation.utils", self._follow, "GenerationMixin")
        arrivals.expect("transformers.modeling_layers", self._meet, "GradientCheckpointingLayer")
        arrivals.expect("transformers.cache_utils", self._replace_reorder, "CacheLayerMixin")

    def _meet(self, module: Any) -> None:
        self._layers = module.GradientCheckpointingLayer

    def _follow(self, module: Any) -> None:
        generate = module.GenerationMixin.generate

        def generating(model: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_generating:
                return generate(model, *args, **kwargs)
            self._is_generating = True
            try:
                with self._calls_replaced():
                    return generate(model, *args, **kwargs)
            finally:
                self._is_generating = False
                for each in (self._kinds, self._scripts, self._alike, self._reordered):
                    each.clear()

        module.GenerationMixin.generate = generating

    @contextlib.contextmanager
    def _calls_replaced(self) -> Iterator[None]:
        """Only while text is generated: dynamo, which compiles models elsewhere, would break their
        graphs at each layer."""
        layers = self._layers
        if layers is None:
            yield
            return
        call = layers.__call__

        def called(layer: Any, *args: Any, **kwargs: Any) -> Any:
            if not args or torch.is_grad_enabled() or any(_GLOBAL_HOOKS):
                return call(layer, *args, **kwargs)
            return self._run(call, layer, args, kwargs)

        layers.__call__ = called
        try:
            yield
        finally:
            layers.__call__ = call

    def _replace_reorder(self, module: Any) -> None:
        reorder = getattr(module.CacheLayerMixin, "reorder_cache", None)
        if reorder is None:
            return

        def reordering(part: Any, beam_idx: Any) -> Any:
            if (
                not self._is_generating
                or type(part).__module__ == "__main__"
                or torch.is_grad_enabled()
            ):
                return reorder(part, beam_idx)
            if id(part) in self._reordered:  # the next pass
                self._scripts.clear()
                self._reordered.clear()
            self._reordered.add(id(part))
            try:
                key = type(part), self._key((None,), {"beams": beam_idx}, [part])
            except UnlikeError:
                return reorder(part, beam_idx)
            phase = id(part), beam_idx.shape
            return self._once(lambda: reorder(part, beam_idx), key, phase, (beam_idx,), [part])

        module.CacheLayerMixin.reorder_cache = reordering

    def _run(
        self, call: Callable[..., Any], layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What the layer returns: made after the pattern of one before it, or its own."""
        try:
            index, kind = self._kind(layer)
            if not index or index != self._last + 1:
                self._scripts.clear()
            self._last = index
            states = states_of((*args, *kwargs.values()), index)
            key = kind, self._key(args, kwargs, states)
        except UnlikeError:
            return call(layer, *args, **kwargs)
        phase, run = (id(layer), args[0].shape), lambda: call(layer, *args, **kwargs)
        return self._once(run, key, phase, (*args, *kwargs.values()), states)

    def _once(
        self, run: Callable[[], Any], key: Any, phase: Any, given: tuple[Any, ...], states: Any
    ) -> Any:
        """What `run` returns, or the script with its key makes. phase: what has to do alike."""
        script = self._scripts.get(key)
        alike = self._alike.get(phase, 0)
        if script is not None and alike >= _PASSES:
            return self._repeat(script, given, states)
        began = len(self._source.events_so_far())
        before = self._held(states)
        result = run()
        try:
            with unseen():
                found = self._script(began, before, result, given, states)
        except UnlikeError:
            return result
        self._alike[phase] = alike + 1 if script == found else 0
        self._scripts.setdefault(key, found)
        return result

    def _kind(self, layer: Any) -> tuple[int, Any]:
        """The layer's place, and all else that may decide what it asks for."""
        known = self._kinds.get(id(layer))
        if known is None:
            known = self._kinds[id(layer)] = kind_of(layer)
        if known[0] is None or layer.training:
            raise UnlikeError
        index: int = known[0]
        return index, known[1]

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any], states: list[Any]) -> Any:
        """Of the first argument, which layers hand on, and of the caches the geometry; of the other
        arguments which objects they are: the model's code holds them until its last layer is done.
        """
        with unseen():
            others = tuple((name, same(value)) for name, value in kwargs.items())
            held = tuple(
                (type(state), *((name, self._geometry(it)) for name, it in vars(state).items()))
                for state in states
            )
            return self._geometry(args[0]), tuple(map(same, args[1:])), others, held

    def _geometry(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return plain(value)
        known = None if value in self._values else values_of(value)
        at = value in self._storages
        return value.size(), value.stride(), value.storage_offset(), value.dtype, at, known

    def _held(self, states: list[Any]) -> dict[tuple[int, str], _Held]:
        """The tensors of the caches, by which one and by name."""
        with unseen():
            return {
                (place, name): _Held(self._storages.locate(value), shape_of(value), id(value))
                for place, state in enumerate(states)
                for name, value in vars(state).items()
                if isinstance(value, torch.Tensor)
            }

    def _script(
        self, began: int, before: Mapping[Any, _Held], result: Any, given: Any, states: list[Any]
    ) -> _Script:
        """What the allocator's events since `began` come to. Raises UnlikeError."""
        held: dict[int, Any] = {it.address: name for name, it in before.items() if it.address}
        steps, taken = [], 0
        for action, address, _, requested, stack, *_ in self._source.events_so_far()[began:]:
            if action == Action.ALLOC:
                steps.append((True, requested, stack))
                held[address], taken = taken, taken + 1
            elif action == Action.FREE:
                if address not in held:
                    raise UnlikeError
                steps.append((False, held.pop(address), stack))
        state = {
            (place, name): self._left((place, name), value, before, held)
            for place, each in enumerate(states)
            for name, value in vars(each).items()
        }
        result = self._pattern(result, held, given)
        stays = {it.number for it in _flat((result, *state.values())) if isinstance(it, _Made)}
        if stays != {number for number in held.values() if isinstance(number, int)}:
            raise UnlikeError
        return _Script(tuple(steps), result, state)

    def _left(self, name: Any, value: Any, before: Mapping[Any, _Held], held: Any) -> Any:
        """What the layer left under a name of its cache: a tensor that was there, or another."""
        was = before.get(name)
        if not isinstance(value, torch.Tensor) or was is None:
            return self._pattern(value, held, ())
        if held.get(was.address) == name if was.address else was.identity == id(value):
            if (self._storages.locate(value), shape_of(value)) != was[:2]:
                raise UnlikeError
            return _Kept(None if value in self._values else values_of(value))
        return self._pattern(value, held, ())

    def _pattern(self, value: Any, held: Mapping[int, Any], given: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(self._pattern(item, held, given) for item in value)
        if not isinstance(value, torch.Tensor):
            return plain(value)
        for place, argument in enumerate(given):
            if value is argument:
                return _Given(place)
        number = held.get(self._storages.locate(value) or 0)
        if not isinstance(number, int) or value not in self._values:
            raise UnlikeError
        nbytes, offset = value.untyped_storage().nbytes(), int(value.storage_offset())
        return _Made(number, nbytes, value.dtype, value.size(), value.stride(), offset)

    def _repeat(self, script: _Script, given: tuple[Any, ...], states: list[Any]) -> Any:
        """Do it again, for another layer."""
        taken: list[int] = []
        with unseen(), self._source.repeating() as log:
            self._storages.repeat(_again(script, states, log), taken)
            made: dict[int, torch.UntypedStorage] = {}
            for (place, name), pattern in script.state.items():
                if not isinstance(pattern, _Kept):
                    setattr(states[place], name, self._make(pattern, taken, made, given))
                elif pattern.value is not None:
                    kept = getattr(states[place], name)
                    kept.copy_(torch.tensor(pattern.value, dtype=kept.dtype).view_as(kept))
            return self._make(script.result, taken, made, given)

    def _make(self, pattern: Any, taken: list[int], made: dict[int, Any], given: Any) -> Any:
        if isinstance(pattern, _Given):
            return given[pattern.place]
        if isinstance(pattern, _Made):
            storage = made.get(pattern.number)
            if storage is None:
                storage = made[pattern.number] = self._values.blank(pattern.nbytes)
            tensor = torch.empty(0, dtype=pattern.dtype)
            tensor.set_(storage, pattern.offset, pattern.size, pattern.stride)
            self._storages.place(tensor, taken[pattern.number])
            return tensor
        if isinstance(pattern, (tuple, list)):
            return type(pattern)(self._make(item, taken, made, given) for item in pattern)
        return pattern


def _again(script: _Script, states: list[Any], log: EventLog) -> Iterator[Step]:
    """The steps of a script, while what a cache lets go of goes, and the log is told the stacks."""
    for takes, what, stack in script.steps:
        log.repeats = stack
        if takes or isinstance(what, int):
            yield takes, what
        else:
            setattr(states[what[0]], what[1], None)
            yield None, 0


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)) and not isinstance(value, (_Made, _Given, _Kept)):
        for item in value:
            yield from _flat(item)
    else:
        yield value
