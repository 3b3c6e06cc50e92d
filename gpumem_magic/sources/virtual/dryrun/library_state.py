"""What libraries other than torch keep for the whole process: numpy's and matplotlib's, if they
are loaded."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

Restore = Callable[[], object]


def _nothing() -> None:
    """There is nothing to put back."""


def _keep_numpy() -> Restore:
    """The global generator and how numbers are printed and errors told."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "get_printoptions"):
        return _nothing
    drawn = "numpy.random" in sys.modules
    state = numpy.random.get_state(legacy=False) if drawn else None
    printing, errors = numpy.get_printoptions(), numpy.geterr()
    called = numpy.geterrcall()

    def restore() -> None:
        if state is not None:
            numpy.random.set_state(state)
        elif "numpy.random" in sys.modules:
            numpy.random.seed()  # as it begins
        numpy.set_printoptions(**printing)
        numpy.seterr(**errors)
        numpy.seterrcall(called)

    return restore


def _keep_figures() -> Restore:
    """Open figures are out of reach within, and those made within are never shown."""
    before = _managers()
    held = dict(before) if before is not None else {}
    if before is not None:
        before.clear()
    rc: Any = getattr(sys.modules.get("matplotlib"), "rcParams", None)
    # rc[...] itself would choose a backend, import pyplot and hook it into the shell
    settings = dict(dict.items(rc)) if rc is not None else None
    show = _inline_show()
    drawn = {} if show is None else {**vars(show), "_to_draw": list(show._to_draw)}
    original = show and show._to_draw

    def restore() -> None:
        managers = _managers()
        if managers is not None:
            for manager in managers.values():
                with contextlib.suppress(Exception):
                    manager.destroy()
            managers.clear()
            managers.update(held)
        if settings is not None and dict(dict.items(rc)) != settings:
            dict.clear(rc)
            dict.update(rc, settings)
        inline = _inline_show()
        if inline is not None:
            inline._to_draw = [] if original is None else original
            inline._to_draw[:] = drawn.get("_to_draw", [])
            inline._draw_called = drawn.get("_draw_called", False)

    return restore


def _managers() -> Any:
    """pyplot's open figures, by number."""
    return getattr(getattr(sys.modules.get("matplotlib._pylab_helpers"), "Gcf", None), "figs", None)


def _inline_show() -> Any:
    """Of the notebooks' backend: holds what it draws at the end of the cell."""
    return getattr(sys.modules.get("matplotlib_inline.backend_inline"), "show", None)


def _keep_widgets() -> Restore:
    """Widgets and comms made within are forgotten; no frontend knows of them."""
    registries = [r for r in _registries() if isinstance(r, dict)]
    before = [(registry, dict(registry)) for registry in registries]

    def restore() -> None:
        for registry, content in before:
            for key in registry.keys() - content.keys():
                made = registry.pop(key)
                if hasattr(made, "_closed"):
                    made._closed = True  # a comm would tell the frontend at its end

    return restore


def _registries() -> list[Any]:
    widget: Any = sys.modules.get("ipywidgets.widgets.widget")
    manager = getattr(sys.modules.get("comm"), "get_comm_manager", None)
    return [
        getattr(widget, "_instances", None),
        vars(getattr(widget, "Widget", object)).get("widgets"),
        getattr(manager() if manager else None, "comms", None),
    ]


LIBRARY_KEEPERS: tuple[Callable[[], Restore], ...] = (_keep_numpy, _keep_figures, _keep_widgets)
