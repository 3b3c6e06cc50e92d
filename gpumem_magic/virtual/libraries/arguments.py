"""Arguments of training frameworks: what their objects are made with, and others in their place,
wherever the call stands: in another cell, behind a dictionary, in a library."""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.sources.objects.contents import with_derived
from gpumem_magic.values.advice import Argument
from gpumem_magic.values.names import ArgumentFacts

_SIMPLE = (bool, int, float, str, type(None))


class Arguments:
    """Sees what the frameworks' classes are made with, and passes others, in a process that ends
    with the dry run.

    seen: what their objects were made with, those that there were before the cell first.
    """

    def __init__(self, others: Sequence[Argument]) -> None:
        self.seen: list[ArgumentFacts] = []
        self._others = others
        self._made: set[int] = set()
        self._looked_back = False

    def install(self, arrivals: Arrivals) -> None:
        """Do so in modules that are loaded and those to come. To be called before the cell runs."""
        for owner in _MADE_BEFORE:
            module, _, name = owner.rpartition(".")
            arrivals.expect(module, functools.partial(self._follow, owner, name))
        for owner in _MADE_BEFORE:
            if owner != _LOADER:  # it is of use to the others alone
                arrivals.expect(owner.rpartition(".")[0], self._look_back)

    def _follow(self, owner: str, name: str, module: Any) -> None:
        kind = getattr(module, name)
        others = [each for each in self._others if each.owner == owner]
        if hasattr(kind, "__dataclass_fields__"):  # its subclasses have an __init__ of their own
            kind.__post_init__ = self._checked(owner, kind.__post_init__, others)
        else:
            kind.__init__ = self._called(owner, kind.__init__, others)

    def _look_back(self, module: Any) -> None:
        """See what there was before, in one walk over all objects; only where a framework is
        loaded."""
        if self._looked_back:
            return
        self._looked_back = True
        kinds = {owner: kind for owner in _MADE_BEFORE if (kind := _loaded(owner)) is not None}
        since, self.seen = self.seen, []
        for thing in _alive(*kinds.values()):
            if id(thing) not in self._made:
                owner = next(o for o, kind in kinds.items() if issubclass(type(thing), kind))
                self._see(owner, {n: getattr(thing, n, None) for n in (*vars(thing), *_PROPERTIES)})
                self._change(owner, thing)
        self.seen += since

    def _change(self, owner: str, thing: Any) -> None:
        now = {
            o.name: o.value
            for o in self._others
            if o.owner == owner and o.takes(getattr(thing, o.name, None))
        }
        if now:
            _MADE_BEFORE[owner](thing, now)

    def _checked(
        self, owner: str, check: Callable[[Any], None], others: Sequence[Argument]
    ) -> Callable[[Any], None]:
        """The `__post_init__` of a dataclass, whose fields are set before."""

        @functools.wraps(check)
        def checked(thing: Any) -> None:
            self._made.add(id(thing))
            self._see(owner, vars(thing))
            for other in others:
                if other.takes(getattr(thing, other.name)):
                    setattr(thing, other.name, other.value)
            check(thing)

        return checked

    def _called(
        self, owner: str, make: Callable[..., None], others: Sequence[Argument]
    ) -> Callable[..., None]:
        """An `__init__` that is passed the others."""
        signature = inspect.signature(make)

        @functools.wraps(make)
        def called(*args: Any, **kwargs: Any) -> None:
            self._made.add(id(args[0]))
            bound = signature.bind(*args, **kwargs)
            passed = {o.name: o.value for o in others if o.takes(bound.arguments.get(o.name))}
            bound.arguments.update(passed)
            bound.apply_defaults()
            self._see(owner, bound.arguments)
            make(*bound.args, **bound.kwargs)

        return called

    def _see(self, owner: str, values: Mapping[str, Any]) -> None:
        kept = {name: value for name, value in values.items() if type(value) in _SIMPLE}
        self.seen.append(ArgumentFacts(owner, kept))


def _loaded(owner: str) -> Any:
    """The class of that dotted name, if its module is loaded."""
    module, _, name = owner.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


def _alive(*kinds: type) -> Iterator[Any]:
    """Objects of the classes, or of derived ones, which may have no name. An object refers to its
    class: to ask for that copies no pages, as a look at each object does."""
    found = gc.get_referrers(*(each for kind in kinds for each in with_derived(kind)))
    return (thing for thing in found if issubclass(type(thing), kinds))


def _change_transformers(arguments: Any, values: Mapping[str, Any]) -> None:
    """Trainers read most of them when they train; the precision is their accelerator's."""
    for name, value in values.items():
        setattr(arguments, name, value)
        newer = name.replace("gradient_checkpointing", "activation_checkpointing")
        if hasattr(arguments, newer):  # from 5.20 on what decides, once it has a value
            setattr(arguments, newer, value)
    arguments.__post_init__()
    state = importlib.import_module("accelerate.state").AcceleratorState
    for trainer in _alive(importlib.import_module("transformers.trainer").Trainer):
        if trainer.args is arguments:
            state._reset_state(reset_partial_state=True)
            trainer._train_batch_size = arguments.train_batch_size
            trainer.create_accelerator_and_postprocess()


def _change_lightning(trainer: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name == "precision":
            package = type(trainer).__module__.rpartition(".trainer.")[0]
            plugins = importlib.import_module(f"{package}.plugins.precision")
            trainer.strategy._precision_plugin = plugins.MixedPrecision(value, "cuda")
        else:
            setattr(trainer, name, value)


def _change_loader(loader: Any, values: Mapping[str, Any]) -> None:
    loader.batch_sampler.batch_size = values["batch_size"]


def _leave(thing: Any, values: Mapping[str, Any]) -> None:
    """Accelerate has prepared models by then."""


_PROPERTIES = ("precision",)
"""Of Lightning's trainer: what is no attribute of its own."""

_LOADER = "torch.utils.data.dataloader.DataLoader"

_MADE_BEFORE: Mapping[str, Callable[[Any, Mapping[str, Any]], None]] = {
    "transformers.training_args.TrainingArguments": _change_transformers,
    "lightning.pytorch.trainer.trainer.Trainer": _change_lightning,
    "pytorch_lightning.trainer.trainer.Trainer": _change_lightning,
    "accelerate.accelerator.Accelerator": _leave,
    _LOADER: _change_loader,
}
"""The classes, each with what changes an object that was made before the cell."""
