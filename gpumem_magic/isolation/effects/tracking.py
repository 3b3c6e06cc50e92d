"""Experiment trackers: inert in a dry run, whatever is asked of them."""

from __future__ import annotations

import functools
import types
from typing import Any

from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.isolation.telling import Effects

_CLASSES = (
    ("torch.utils.tensorboard.writer", "SummaryWriter"),
    ("tensorboardX.writer", "SummaryWriter"),
    ("wandb.sdk.wandb_run", "Run"),
)
"""Of which the cell may have an object from before."""
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
    for module, name in _CLASSES:
        arrivals.expect(module, functools.partial(_silence_class, effects, name), name)
    for module in _MODULES:
        arrivals.expect(module, lambda m: _silence_module(effects, m))


def _silence_class(effects: Effects, name: str, module: Any) -> None:
    owner, inert = getattr(module, name), Inert()
    for method, value in list(vars(owner).items()):
        if isinstance(value, types.FunctionType) and not method.startswith("_"):
            effects.skip(owner, method, f"{name}.{method}", inert)
    effects.skip(owner, "__init__", name)
    # what `__init__` would have set
    owner.__getattr__ = lambda writer, name: getattr(inert, name)
    effects.put(owner, "__enter__", lambda writer: writer)
    for method in ("close", "flush", "finish", "__exit__"):
        effects.put(owner, method, lambda *args, **kwargs: None)


def _silence_module(effects: Effects, module: Any) -> None:
    inert = Inert()
    for name, value in list(vars(module).items()):
        own = not name.startswith("_") and not isinstance(value, (type, types.ModuleType))
        if own and callable(value):
            effects.skip(module, name, f"{module.__name__}.{name}", inert)
    for name in ("run", "config", "summary"):
        if name in vars(module) and not callable(vars(module)[name]):
            setattr(module, name, inert)
