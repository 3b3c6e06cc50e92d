"""Experiment trackers: inert in a dry run, whatever is asked of them."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Mapping
from typing import Any

from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.isolation.telling import Effects, described

_CLASSES = (
    ("torch.utils.tensorboard.writer", "SummaryWriter"),
    ("tensorboardX.writer", "SummaryWriter"),
    ("wandb.sdk.wandb_run", "Run"),
)
"""Of which the cell may have an object from before."""
_MODULES = (
    *("wandb", "comet_ml", "neptune", "aim", "clearml", "trackio", "swanlab", "dvclive"),
    *("mlflow", "mlflow.pytorch", "mlflow.transformers", "mlflow.sklearn", "mlflow.models"),
)

_KINDS = (
    *(("wandb", "Api"), ("comet_ml", "Experiment"), ("comet_ml", "OfflineExperiment")),
    *(("clearml", "Task"), ("aim", "Run"), ("git", "Repo")),
)
"""Of which it makes all objects; what GitPython tells is written down by trackers."""


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

    def __repr__(self) -> str:
        return "..."


class Settings(dict[str, Any]):
    """What a run was given to remember: a cell may read its sizes there. Other names are inert."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name] if name in self else Inert()

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def update(self, given: Any = (), **options: Any) -> None:  # type: ignore[override]
        """With a mapping, or what argparse gives."""
        super().update(given if isinstance(given, (Mapping, tuple)) else vars(given))


class Run(Inert):
    """Of a module whose functions all answer with it; settings: those of the module."""

    def __init__(self, settings: Settings) -> None:
        vars(self)["config"] = settings

    def __call__(self, *args: Any, config: Any = None, **kwargs: Any) -> Run:
        """The answer to every call, of which one may say what the settings are."""
        self.config.update(config or ())
        return self


class Kind(Inert):
    """In place of a class: what it makes, and what its methods return, is inert, and told."""

    def __init__(self, effects: Effects, known_as: str) -> None:
        vars(self).update(_effects=effects, _known_as=known_as)

    def __call__(self, *args: Any, **kwargs: Any) -> Inert:
        """An object of it."""
        self._effects.blocked(described(self._known_as, args, kwargs))
        return Inert()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Kind(self._effects, f"{self._known_as}.{name}")


def install_tracking_effects(effects: Effects, arrivals: Arrivals) -> None:
    """Make what is loaded inert, and what will be."""
    for module, name in _CLASSES:
        arrivals.expect(module, functools.partial(_silence_class, effects, name), name)
    for module in _MODULES:
        arrivals.expect(module, lambda m: _silence_module(effects, m))
    for module, name in _KINDS:
        arrivals.expect(module, functools.partial(_replace_kind, effects, name))


def _replace_kind(effects: Effects, name: str, module: Any) -> None:
    setattr(module, name, Kind(effects, f"{module.__name__}.{name}"))


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
    config = Settings()
    with contextlib.suppress(Exception):  # it tells in its own ways that there is no run
        config.update(dict(module.config))
    inert = Run(config)
    for name, value in list(vars(module).items()):
        own = not name.startswith("_") and not isinstance(value, (type, types.ModuleType))
        if own and callable(value):
            effects.skip(module, name, f"{module.__name__}.{name}", inert)
    for name, value in (("run", inert), ("config", config), ("summary", inert)):
        if name in vars(module) and not callable(vars(module)[name]):
            setattr(module, name, value)
