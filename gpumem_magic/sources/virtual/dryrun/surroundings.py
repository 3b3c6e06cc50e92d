"""What a cell can change without a name in its namespace, saved before a dry run and put back
after: Python's own state, and the libraries' (torch_state, library_state, shell_state)."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import decimal
import gc
import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpumem_magic.sources.virtual.dryrun.effects import Libraries
from gpumem_magic.sources.virtual.dryrun.library_state import LIBRARY_KEEPERS
from gpumem_magic.sources.virtual.dryrun.shell_state import keep_shell
from gpumem_magic.sources.virtual.dryrun.torch_state import TORCH_KEEPERS
from gpumem_magic.sources.virtual.patches import Patches

_ABSENT: Any = object()
_SYS_NAMES = (
    "argv path meta_path path_hooks excepthook unraisablehook displayhook breakpointhook stdin "
    "stdout stderr ps1 ps2 last_type last_value last_traceback last_exc tracebacklimit "
    "dont_write_bytecode pycache_prefix"
).split()

Restore = Callable[[], object]
"""Puts one thing back."""


@contextlib.contextmanager
def unchanged_surroundings() -> Iterator[None]:
    """Within, code may change what it likes; afterwards all is as before, bit for bit.

    Modules that the code imported stay imported, and so do loggers made by them.
    """
    restores: list[Restore] = []
    try:
        for keep in (*_PYTHON_KEEPERS, *LIBRARY_KEEPERS, *TORCH_KEEPERS, keep_shell):
            restores.append(keep())  # noqa: PERF401 - what is saved is restored, also if one fails
        yield
    finally:
        failed: list[BaseException] = []
        for restore in reversed(restores):
            _attempt(restore, failed)
        if failed:
            raise failed[0]


def _attempt(restore: Restore, failed: list[BaseException]) -> None:
    try:
        restore()
    except BaseException as error:  # the others are put back before it is raised
        failed.append(error)


def _keep_random() -> Restore:
    state = random.getstate()
    return lambda: random.setstate(state)


def _keep_environment() -> Restore:
    before = dict(os.environ)

    def restore() -> None:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value

    return restore


def _keep_place() -> Restore:
    """Folder and permission mask."""
    folder = _folder()
    mask = os.umask(0)
    os.umask(mask)

    def restore() -> None:
        os.umask(mask)
        if folder is not None and _folder() != folder:
            os.chdir(folder)

    return restore


def _folder() -> Path | None:
    """The current one; None where it was removed."""
    try:
        return Path.cwd()
    except OSError:
        return None


def _keep_sys() -> Restore:
    """Attributes of sys, and the contents of those that are lists."""
    before = {name: vars(sys).get(name, _ABSENT) for name in _SYS_NAMES}
    contents = [(value, list(value)) for value in before.values() if isinstance(value, list)]
    limits = sys.getrecursionlimit(), sys.getswitchinterval()
    tracers = sys.gettrace(), sys.getprofile()

    def restore() -> None:
        for name, value in before.items():
            if value is not _ABSENT:
                setattr(sys, name, value)
            elif hasattr(sys, name):
                delattr(sys, name)
        for place, content in contents:
            place[:] = content
        sys.setrecursionlimit(limits[0])
        sys.setswitchinterval(limits[1])
        if (sys.gettrace(), sys.getprofile()) != tracers:
            sys.settrace(tracers[0])
            sys.setprofile(tracers[1])

    return restore


def _keep_builtins() -> Restore:
    """Also `_`, which a display hook outside notebooks sets, and the hook of threads."""
    before, hook = dict(vars(builtins)), threading.excepthook

    def restore() -> None:
        put_back(vars(builtins), before)
        threading.excepthook = hook

    return restore


def put_back(place: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Give a dict the entries it had, in their order, and keep its identity."""
    if [*map(id, place.values())] != [*map(id, before.values())] or [*place] != [*before]:
        place.clear()
        place.update(before)


def _keep_warnings() -> Restore:
    """Filters, who shows them, and every module's note of what was shown already."""
    owner: Any = warnings
    filters, content = owner.filters, list(owner.filters)
    shown = owner.showwarning, owner._showwarnmsg_impl, owner.formatwarning
    once = dict(owner.onceregistry)
    registries = [(registry, dict(registry)) for registry in _registries()]
    version = _filters_version()

    def restore() -> None:
        owner.filters = filters
        filters[:] = content
        owner.showwarning, owner._showwarnmsg_impl, owner.formatwarning = shown
        put_back(owner.onceregistry, once)
        for registry in _registries():
            registry.clear()
        now = _filters_version()
        for registry, before in registries:
            if before.get("version") == version:  # else it would be forgotten: filters changed
                before["version"] = now
            registry.update(before)

    return restore


def _filters_version() -> object:
    """How often the filters were changed so far; a registry from before the last time is void."""
    registry: dict[Any, Any] = {}
    filters: Any = warnings.filters
    content = list(filters)
    try:
        filters[:] = [("ignore", None, Warning, None, 0)]
        warnings.warn_explicit("", Warning, "", 1, registry=registry)
    finally:
        filters[:] = content
    return registry.get("version")


def _registries() -> list[dict[Any, Any]]:
    found = []
    for module in list(sys.modules.values()):
        registry = getattr(module, "__dict__", {}).get("__warningregistry__")
        if isinstance(registry, dict):
            found.append(registry)
    return found


def _keep_logging() -> Restore:
    """Levels and handlers of all loggers that exist."""
    manager = logging.root.manager
    known = [x for x in manager.loggerDict.values() if isinstance(x, logging.Logger)]
    loggers = [logging.root, *known]
    before = [(x, x.level, list(x.handlers), x.propagate, x.disabled) for x in loggers]
    levels = [(h, h.level) for x in loggers for h in x.handlers]
    rest = manager.disable, logging.getLoggerClass(), logging.raiseExceptions
    showing: Any = getattr(logging, "_warnings_showwarning", None)

    def restore() -> None:
        for logger, level, handlers, propagate, disabled in before:
            logger.handlers[:] = handlers
            logger.propagate, logger.disabled = propagate, disabled
            if logger.level != level:
                logger.setLevel(level)
        for handler, level in levels:
            handler.setLevel(level)
        manager.disable = rest[0]
        logging.setLoggerClass(rest[1])
        logging.raiseExceptions = rest[2]
        logging._warnings_showwarning = showing  # type: ignore[attr-defined]
        manager._clear_cache()  # type: ignore[attr-defined]

    return restore


def _keep_locale() -> Restore:
    before = locale.setlocale(locale.LC_ALL)

    def restore() -> None:
        if locale.setlocale(locale.LC_ALL) != before:
            locale.setlocale(locale.LC_ALL, before)

    return restore


def _keep_signals() -> Restore:
    """Handlers; only the main thread may set them, so only there they can have changed."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def restore() -> None:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)

    return restore


def _keep_collector() -> Restore:
    enabled, thresholds, debug = gc.isenabled(), gc.get_threshold(), gc.get_debug()
    callbacks = list(gc.callbacks)

    def restore() -> None:
        (gc.enable if enabled else gc.disable)()
        gc.set_threshold(*thresholds)
        gc.set_debug(debug)
        gc.callbacks[:] = callbacks

    return restore


def _keep_decimal() -> Restore:
    context = decimal.getcontext()
    before = context.copy()

    def restore() -> None:
        decimal.setcontext(context)
        for name in ("prec", "rounding", "Emin", "Emax", "capitals", "clamp"):
            setattr(context, name, getattr(before, name))
        context.flags.update(before.flags)
        context.traps.update(before.traps)

    return restore


def _keep_exit() -> Restore:
    """What the user's code wants to be called at exit is not; what libraries want stays."""
    libraries, patches, register = Libraries(), Patches(), atexit.register

    def registered(function: Any, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        if caller in libraries and libraries.defines(function):
            return register(function, *args, **kwargs)
        return function

    patches.set(atexit, "register", registered)
    return patches.restore


_PYTHON_KEEPERS: tuple[Callable[[], Restore], ...] = (
    *(_keep_random, _keep_environment, _keep_place, _keep_sys, _keep_builtins, _keep_warnings),
    *(_keep_logging, _keep_locale, _keep_signals, _keep_collector, _keep_decimal, _keep_exit),
)
