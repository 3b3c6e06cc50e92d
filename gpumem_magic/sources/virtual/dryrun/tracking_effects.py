"""Experiment trackers: inert within a dry run, whatever is asked of them."""

from __future__ import annotations

import functools
import types
from typing import Any

from gpumem_magic.sources.virtual.dryrun.arrivals import Arrivals
from gpumem_magic.sources.virtual.dryrun.effects import Effects

_WRITERS = (
    ("torch.utils.tensorboard.writer", "SummaryWriter"),
    ("tensorboardX.writer", "SummaryWriter"),
)
_MODULES = ("wandb", "mlflow", "comet_ml", "neptune", "aim", "clearml")


class Inert:
    """Answers everything with itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> Inert:
        """The answer to every call."""
        return self

    def __getattr__(self, name: str) -> Inert:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        """It keeps nothing."""

    def __getitem__(self, key: Any) -> Inert:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        """It keeps nothing."""

    def __enter__(self) -> Inert:
        return self

    def __exit__(self, *error: object) -> None:
        """There is nothing to close."""

    def __iter__(self) -> Any:
        return iter(())

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return ""


def install_tracking_effects(effects: Effects, arrivals: Arrivals) -> None:
    """Make what is loaded inert, and what will be."""
    for module, name in _WRITERS:
        arrivals.expect(module, functools.partial(_silence_writer, effects, name), name)
    for module in _MODULES:
        arrivals.expect(module, lambda m: _silence_module(effects, m))


def _nothing(*args: Any, **kwargs: Any) -> None:
    """What a method of a writer does."""


def _silence_writer(effects: Effects, name: str, module: Any) -> None:
    writer = getattr(module, name)
    for name, value in list(vars(writer).items()):
        if isinstance(value, types.FunctionType) and not name.startswith("__"):
            effects.put(writer, name, _nothing)
    effects.skip(writer, "__init__", writer.__name__)
    effects.put(writer, "__exit__", _nothing)


def _silence_module(effects: Effects, module: Any) -> None:
    inert = Inert()
    for name, value in list(vars(module).items()):
        own = not name.startswith("_") and not isinstance(value, (type, types.ModuleType))
        if own and callable(value):
            effects.skip(module, name, f"{module.__name__}.{name}", inert)
    for name in ("run", "config", "summary"):
        if name in vars(module) and not callable(vars(module)[name]):
            effects.patches.set(module, name, inert)
