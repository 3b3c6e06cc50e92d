"""The house rules that a machine can check: one-way imports, small files, no hidden state."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "gpumem_magic"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A module imports only from its own room and from rooms before it.
ROOMS = (
    *(
        "units",
        "view",
        "names",
        "oom_texts",
        "events",
        "trace.lifetimes",
        "trace.findings",
        "nvml",
        "inventory",
        "sources",
        "trace",
        "advice",
    ),
    *("report", "assessment", "renderers", "history", "measure", "fitting", "predict", "assess"),
    "forecast",
    *("panel", "magics"),
)

# Who may import what is heavy, or belongs to one room only (by prefix of the path in the package).
DOORS = {
    "torch": ("sources/",),
    "pynvml": ("nvml.py",),
    "matplotlib": ("renderers/figure.py",),
    "ipywidgets": ("panel/",),
    "IPython": ("magics/", "panel/"),
}
MUTABLE = {
    *("dict", "list", "set", "defaultdict", "deque", "Counter"),
    *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet"),
}
WRITERS = {
    *("append", "extend", "insert", "add", "update", "setdefault"),
    *("pop", "popitem", "clear", "remove", "discard"),
}


def name_of(path: Path) -> str:
    """gpumem_magic/trace/__init__.py -> "trace"."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def room(name: str) -> int:
    fits = [i for i, r in enumerate(ROOMS) if name == r or name.startswith(r + ".")]
    if not name:
        return len(ROOMS)
    assert fits, f"{name} is in no room: give it a place in ROOMS, and in the map of the README"
    return max(fits, key=lambda i: len(ROOMS[i]))


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}".replace(".", "/")
                is_module = (ROOT / f"{inner}.py").exists() or (ROOT / inner).is_dir()
                yield node, f"{node.module}.{alias.name}" if is_module else str(node.module)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_one_way(path):
    tree = ast.parse(path.read_text())
    here = room(name_of(path))
    for node, target in imports(tree):
        if target.split(".")[0] != "gpumem_magic":
            continue
        asks = name_of(path) in ("report", "view")  # a method of theirs asks its renderer
        lazy = asks and node not in tree.body
        there = room(target.removeprefix("gpumem_magic").strip("."))
        assert there <= here or lazy, f"{path.name}:{node.lineno} imports {target}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_each_library_has_one_door(path):
    inside = path.relative_to(PACKAGE).as_posix()
    tree = ast.parse(path.read_text())
    types = [n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
    names_only = {id(statement) for block in types for statement in block.body}
    for node, target in imports(tree):
        doors = DOORS.get(target.split(".")[0])
        allowed = doors is None or inside.startswith(doors) or id(node) in names_only
        assert allowed, f"{inside}:{node.lineno} imports {target}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_files_and_functions_are_small_and_described(path):
    text = path.read_text()
    tree = ast.parse(text)
    assert text.count("\n") <= 400
    described = [line for line in (ast.get_docstring(tree) or "").splitlines() if line]
    assert 1 <= len(described) <= 3
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, f"{path}:{node.lineno} {node.name}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_state_at_module_level(path):
    tree = ast.parse(path.read_text())
    assert not [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Global)]
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            name = ast.unparse(target)
            constant = name.isupper() or name.strip("_").isupper() or name == "__all__"
            assert constant or not is_mutable(node.value), f"{path.name}:{node.lineno} {name}"
            assert not list(changes(tree, name)), f"{path.name} changes its constant {name}"


def is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).split(".")[-1] in MUTABLE
    displays = ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp
    return isinstance(value, displays)


def changes(tree: ast.AST, name: str) -> Iterator[ast.AST]:
    """Places that write into the module-level `name`, or call a method that would."""
    for node in ast.walk(tree):
        written = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        called = isinstance(node, ast.Attribute) and node.attr in WRITERS
        if (written or called) and ast.unparse(node.value) == name:
            yield node


def test_importing_the_package_loads_nothing_heavy():
    probe = (
        "import sys, gpumem_magic;"
        "print([m for m in ('torch', 'matplotlib', 'ipywidgets') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_tests_stand_where_the_code_stands():
    """tests/trace/test_peak*.py is about gpumem_magic/trace/peak.py; the exceptions are named."""
    elsewhere = ("browser", "cuda", "isolation", "stub", "stacks")
    whole = {"test_architecture.py", "test_readme.py", "test_notebooks.py"}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        inside = path.relative_to(ROOT / "tests")
        if inside.parts[0] in elsewhere or inside.as_posix() in whole:
            continue
        folder = PACKAGE / inside.parent
        rooms = {folder.name, *(p.stem for p in folder.iterdir())}
        stem = inside.stem.removeprefix("test_")
        assert any(stem == r or stem.startswith(r + "_") for r in rooms), f"no module for {inside}"
