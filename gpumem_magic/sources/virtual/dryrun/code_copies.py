"""Functions, classes and modules stay what they are, but what hangs on them is exchanged."""

from __future__ import annotations

import functools
import sys
import sysconfig
import types
from enum import Enum
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Final

from gpumem_magic.sources.contents import fields
from gpumem_magic.sources.virtual.dryrun.atoms import ATOMS
from gpumem_magic.sources.virtual.dryrun.elsewhere import holds_tensors
from gpumem_magic.sources.virtual.dryrun.exchanges import (
    Attributes,
    Cell,
    ClassAttributes,
    Entries,
    Exchange,
)
from gpumem_magic.sources.virtual.dryrun.paths import ATTRIBUTE, PART, Path, Step

if TYPE_CHECKING:
    from gpumem_magic.sources.virtual.dryrun.copier import Copier

_DEFAULTS: Final = ("__defaults__", "__kwdefaults__")
_LIBRARIES: Final = tuple(
    {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {str(FilePath(__file__).parents[3])}
)
_LRU: Final[type] = functools._lru_cache_wrapper


class CodeCopies:
    """What functions, classes and modules of the user hold, and its exchange."""

    def __init__(self, copier: Copier, namespace: dict[str, Any]) -> None:
        self.exchanges: list[Exchange] = []
        self._copier = copier
        self._namespace = namespace
        self._modules: dict[str, bool] = {}
        self._seen: set[int] = set()

    # handlers, as the copier calls them

    @staticmethod
    def of_function(copier: Copier, function: Any, path: Path) -> Any:
        """The function itself."""
        copier.code.visit_function(function, path)
        return function

    @staticmethod
    def of_class(copier: Copier, kind: type, path: Path) -> type:
        """The class itself."""
        copier.code.visit_class(kind, path)
        return kind

    @staticmethod
    def of_module(copier: Copier, module: Any, path: Path) -> Any:
        """The module itself."""
        copier.code.visit_module(getattr(module, "__name__", ""))
        return module

    @staticmethod
    def of_method(copier: Copier, method: types.MethodType, path: Path) -> Any:
        """The same method of the copy."""
        copier.copy(method.__func__, path)
        return types.MethodType(method.__func__, copier.copy(method.__self__, path))

    @staticmethod
    def of_builtin(copier: Copier, method: Any, path: Path) -> Any:
        """The same method of the copy; a function of C itself."""
        owner = method.__self__
        if owner is None or isinstance(owner, (types.ModuleType, type)):
            return method
        copied = copier.copy(owner, path)
        return method if copied is owner else getattr(copied, method.__name__)

    @staticmethod
    def of_remembering(copier: Copier, function: Any, path: Path) -> Any:
        """An lru_cache without its memories: calls must not put copies among the user's."""
        copier.copy(function.__wrapped__, path)
        made = functools.lru_cache(**function.cache_parameters())(function.__wrapped__)
        vars(made).update(vars(function))
        if function.cache_info().currsize:
            copier.say("functions with an lru_cache start with an empty one in the dry run")
        return made

    # what hangs on them

    def visit_function(self, function: types.FunctionType, path: Path) -> None:
        """Closure, defaults and attributes; library functions have nothing of the user's."""
        if self._first_time(function) and self._may_hold(function):
            module = function.__module__
            if function.__globals__ is not self._namespace and module:
                self.visit_module(module)
            names = function.__code__.co_freevars
            for name, cell in zip(names, function.__closure__ or (), strict=True):
                self._visit_cell(cell, Step(path, PART, name))
            self._visit_defaults(function, path)
            copies = {key: self._copy(v, path, key) for key, v in vars(function).items()}
            self.exchanges.append(Entries(vars(function), copies))

    def _visit_cell(self, cell: types.CellType, path: Path) -> None:
        if not self._first_time(cell):
            return
        try:
            contents = cell.cell_contents
        except ValueError:  # empty as yet
            return
        self.exchanges.append(Cell(cell, self._copier.copy(contents, path)))

    def _visit_defaults(self, function: types.FunctionType, path: Path) -> None:
        found = {}
        for name in _DEFAULTS:
            value = getattr(function, name)
            if value is not None:
                copied = self._copier.copy(value, Step(path, ATTRIBUTE, name))
                if copied is not value:
                    found[name] = copied
        self.exchanges.append(Attributes(function, _DEFAULTS, found))

    def _may_hold(self, function: types.FunctionType) -> bool:
        if function.__globals__ is self._namespace or self._is_users(function.__module__ or ""):
            return True
        return not _is_global(function)

    def instance_of(self, kind: type) -> None:
        """An object of the class was met: its methods can be reached."""
        for base in kind.__mro__:
            if self._is_notebooks(base) or self._is_users(base.__module__):
                self.visit_class(base, base.__qualname__)

    def visit_class(self, kind: type, path: Path) -> None:
        """What stands in a class of the notebook."""
        if not self._first_time(kind):
            return
        for base in kind.__mro__[1:]:
            self.visit_class(base, base.__qualname__)
        if not self._is_notebooks(kind):
            if self._is_users(kind.__module__):
                self.visit_module(kind.__module__)
            return
        copies = {}
        for name, value in list(vars(kind).items()):
            if isinstance(value, (staticmethod, classmethod)):
                self._copy(value.__func__, path, name)
            elif isinstance(value, property):
                for part in (value.fget, value.fset, value.fdel):
                    self._copy(part, path, name)
            elif isinstance(value, types.FunctionType):
                self.visit_function(value, Step(path, ATTRIBUTE, name))
            elif type(value) not in ATOMS and not name.startswith(("__", "_abc")):
                copied = self._copy(value, path, name)
                if copied is not value and not issubclass(kind, Enum):
                    copies[name] = copied
        self.exchanges.append(ClassAttributes(kind, copies))

    def visit_module(self, name: str) -> None:
        """The globals of a module of the user's, where tensors can be reached from them."""
        module = sys.modules.get(name)
        if module is None or not self._is_users(name) or not self._first_time(module):
            return
        held = {k: v for k, v in fields(module).items() if not k.startswith("__")}
        if not holds_tensors(held):
            return
        copies = {key: self._copy(value, name, key) for key, value in held.items()}
        self.exchanges.append(Entries(vars(module), copies))

    def _copy(self, thing: Any, path: Path, name: str) -> Any:
        return self._copier.copy(thing, Step(path, ATTRIBUTE, name))

    def _first_time(self, thing: object) -> bool:
        if id(thing) in self._seen:
            return False
        self._seen.add(id(thing))
        return True

    def _is_notebooks(self, kind: type) -> bool:
        if kind.__module__ == "__main__":
            return True
        functions = (v for v in vars(kind).values() if isinstance(v, types.FunctionType))
        return any(f.__globals__ is self._namespace for f in functions)

    def _is_users(self, name: str) -> bool:
        """Whether it is a module outside of installed libraries, and not the notebook's own."""
        known = self._modules.get(name)
        if known is None:
            module = sys.modules.get(name)
            file = getattr(module, "__file__", None)
            known = self._modules[name] = (
                isinstance(file, str)
                and fields(module) is not self._namespace
                and not file.startswith(_LIBRARIES)
            )
        return known


def _is_global(function: types.FunctionType) -> bool:
    """Whether it stands in a module under its name; wrappers made by functions claim to."""
    found: Any = sys.modules.get(function.__module__ or "")
    for name in function.__qualname__.split("."):
        found = fields(found).get(name) if not isinstance(found, type) else vars(found).get(name)
    return found is function


CODE: Final[dict[type, Any]] = {
    types.FunctionType: CodeCopies.of_function,
    types.MethodType: CodeCopies.of_method,
    types.BuiltinMethodType: CodeCopies.of_builtin,
    types.ModuleType: CodeCopies.of_module,
    type: CodeCopies.of_class,
    _LRU: CodeCopies.of_remembering,
}
