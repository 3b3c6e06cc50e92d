"""What a dry run does not carry out, told once for each kind and line; and whose code is asking."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpumem_magic.sources.virtual.patches import Patches

_OURS = str(Path(__file__).resolve().parents[3])
_LONGEST = 120
_UNKNOWN = object  # for a thread that has no object


class Libraries:
    """File names of code that is not the user's: the standard library's, installed packages'."""

    def __init__(self) -> None:
        paths = sysconfig.get_paths()
        folders = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], _OURS}
        self._starts = ("<frozen ", *(os.path.join(folder, "") for folder in folders))  # noqa: PTH118

    def __contains__(self, filename: str) -> bool:
        installed = "site-packages" in filename or "dist-packages" in filename
        return installed or filename.startswith(self._starts)

    def defines(self, function: Any) -> bool:
        """Whether `function` comes from a library, or is no Python function at all."""
        function = getattr(function, "func", function)
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if code is None:  # an object that can be called
            code = getattr(vars(type(function)).get("__call__"), "__code__", None)
        return code is None or code.co_filename in self


class Bystanders:
    """The threads that ran before the dry run began, a kernel's own: it is not about them."""

    def __init__(self) -> None:
        threads = [t for t in threading.enumerate() if t is not threading.current_thread()]
        self._threads = weakref.WeakSet(threads)  # not their numbers, which are used again

    @property
    def running(self) -> bool:
        """Whether the code that runs now belongs to one of them."""
        return _running_thread() in self._threads


def _running_thread() -> object:
    """The running thread's object; unlike `current_thread`, it makes none for a thread of C."""
    return threading._active.get(threading.get_ident(), _UNKNOWN)  # type: ignore[attr-defined]


def renamed(names: Mapping[str, Any], replacements: Mapping[int, Any]) -> dict[str, Any]:
    """The names that are bound to what was replaced, with the replacements, by the identity of the
    original."""
    found = list(names.items())
    return {name: replacements[id(value)] for name, value in found if id(value) in replacements}


class Effects:
    """Replaces functions by ones that do nothing outside, and tells what they would have done."""

    def __init__(self, tell: Callable[[str], None], patches: Patches) -> None:
        self.patches = patches
        self._tell = tell
        self._told: set[tuple[object, ...]] = set()
        self._libraries = Libraries()
        self._bystanders = Bystanders()
        self._inside = threading.local()
        self._held: list[list[Callable[..., Any]]] = []
        self._replacements: dict[int, Any] = {}

    def rebind(self, namespace: dict[str, Any]) -> None:
        """Let names in `namespace` that are bound to what was replaced mean the replacement."""
        namespace.update(renamed(namespace, self._replacements))

    def rebind_users_modules(self) -> None:
        """The same for modules of the user's (`from os import remove`), until the end."""
        for module in list(sys.modules.values()):
            file = getattr(module, "__dict__", {}).get("__file__")
            users = isinstance(file, str) and file not in self._libraries
            if not users and module is not sys.modules.get("__main__"):
                continue
            for name, replacement in renamed(vars(module), self._replacements).items():
                self.patches.set(module, name, replacement)

    def end(self) -> None:
        """Put everything back. Modules imported meanwhile may have kept what was replaced: that
        does what the original does from now on, and holds on to nothing of ours."""
        self.patches.restore()
        for held in self._held:
            held.clear()

    def tell(self, text: str) -> None:
        """Name a thing that is not done, unless it is a part of another one that was named."""
        if getattr(self._inside, "depth", 0):
            return
        place = self._place()
        key = (text.partition("(")[0].partition(" ")[0], place)
        if place != "tempfile" and key not in self._told:
            self._told.add(key)
            self._tell(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}...")

    @contextlib.contextmanager
    def parts_of(self, text: str) -> Iterator[None]:
        """Tell `text`; what is not done within is a part of it."""
        self.tell(text)
        with self.silence():
            yield

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Within, nothing is told."""
        self._inside.depth = getattr(self._inside, "depth", 0) + 1
        try:
            yield
        finally:
            self._inside.depth -= 1

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name`, where there is one, by `make(it)`; not so for bystanders."""
        original = getattr(owner, name, None)
        if original is None:
            return
        held = [make(original)]
        self._held.append(held)

        @functools.wraps(original)
        def chosen(*args: Any, **kwargs: Any) -> Any:
            acting = None if self._bystanders.running else next(iter(held), None)
            return (acting or original)(*args, **kwargs)

        with contextlib.suppress(TypeError):  # a class of a C library keeps its own
            self.patches.set(owner, name, chosen)
        if isinstance(owner, types.ModuleType):
            self._replacements[id(original)] = chosen

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace `owner.name`, where there is one; not so for bystanders."""
        self.replace(owner, name, lambda original: replacement)

    def skip(self, owner: Any, name: str, known_as: str, result: Any = None) -> None:
        """`owner.name` is not carried out, and returns `result` (what it makes, where callable)."""

        def make(original: Any) -> Any:
            def skipped(*args: Any, **kwargs: Any) -> Any:
                self.tell(described(known_as, args, kwargs))
                return result(*args, **kwargs) if callable(result) else result

            return skipped

        self.replace(owner, name, make)

    def _place(self) -> object:
        """The line of the user that is running; "tempfile" where that module is at work."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            if frame.f_globals.get("__name__") == "tempfile":
                return "tempfile"
            if frame.f_code.co_filename not in self._libraries:
                return frame.f_code.co_filename, frame.f_lineno
            frame = frame.f_back
        return None


def described(name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> str:
    """The call as users write it, with "..." for what is not a name or a number."""
    named = [f"{key}={_shown(value)}" for key, value in (kwargs or {}).items()]
    return f"{name}({', '.join([*map(_shown, args), *named])})"


def _shown(value: Any) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, (list, tuple)) and all(isinstance(v, (str, int)) for v in value):
        return repr(value)
    if value is None or isinstance(value, (str, bytes, int, float)):
        return repr(value)
    return "..."
