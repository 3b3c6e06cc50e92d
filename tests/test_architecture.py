"""The house rules that a machine can check; each test lists all that breaks its rule."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "gpumem_magic"
FILES = sorted(PACKAGE.rglob("*.py"))

# A module imports only from its own room and from rooms before it.
ROOMS = (
    *("units", "values", "allocator", "oom_text", "sources", "isolation", "virtual"),
    *("devices", "glance", "dryrun", "trace", "advice", "renderers", "pipeline"),
    *("snapshots", "history", "measure", "fitting", "rehearsal", "predict", "assess", "panel"),
    "magics",
    "__main__",
)

# Answers ask for their forms when they are shown: the one door that leads back.
LAZY_DOOR = "values.answer"

# Who may import what is heavy, or belongs to one room only (by prefix of the path in the package).
WITH_TORCH = (
    *("sources/", "isolation/", "virtual/", "dryrun/"),
    *("devices.py", "glance.py"),
)
DOORS = {
    "torch": WITH_TORCH,
    "pynvml": ("sources/cuda/nvml.py",),
    "matplotlib": ("renderers/figure/",),
    "anywidget": ("panel/",),
    "ipywidgets": ("panel/",),
    "IPython": ("magics/", "panel/"),
}
MOST_FILES = 16
MOST_LINES = 400
FEWEST_LINES = 40
MOST_PARAMETERS = 6

# A short file says why it is one, in its docstring, with one of these words.
REASON = re.compile(r"\b(because|apart|so that)\b")
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


NAMES = {name_of(path) for path in FILES}


@pytest.fixture(scope="module")
def trees():
    """The syntax tree of each file; not for good: other tests look through all objects."""
    return {path: ast.parse(path.read_text()) for path in FILES}


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Every import and the module it names, gpumem_magic's without the package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = str(node.module)
            if module.split(".")[0] != "gpumem_magic":
                yield node, module
                continue
            inside = module.removeprefix("gpumem_magic").strip(".")
            for alias in node.names:
                inner = f"{inside}.{alias.name}".strip(".")
                yield node, f"gpumem_magic.{inner if inner in NAMES else inside}".strip(".")


def own_imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    for node, target in imports(tree):
        if target.split(".")[0] == "gpumem_magic":
            yield node, target.removeprefix("gpumem_magic").strip(".")


def for_types_only(tree: ast.Module) -> set[int]:
    blocks = [n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
    return {id(statement) for block in blocks for statement in block.body}


def room(name: str) -> int:
    return ROOMS.index(name.split(".")[0]) if name else len(ROOMS)


def test_every_file_is_in_a_room():
    homeless = [name for name in NAMES if name and name.split(".")[0] not in ROOMS]
    assert not homeless, "give it a place in ROOMS, and in CONTRIBUTING's map"


def test_the_map_has_every_room_and_no_other():
    rooms = {f"{p.parent.relative_to(PACKAGE)}/" for p in PACKAGE.rglob("*/__init__.py")} - {"./"}
    rooms |= {path.name for path in PACKAGE.glob("*.py") if path.stem != "__init__"}
    table = (ROOT / "CONTRIBUTING.md").read_text().split("| room of `gpumem_magic/` |")[1]
    places = re.findall(r"^\| (`.+?`) \|", table, re.MULTILINE)
    assert {room for place in places for room in re.findall(r"`([\w./]+)`", place)} == rooms


def test_imports_are_absolute_and_go_one_way(trees):
    backward = [
        f"{name_of(path)}:{node.lineno} imports {target}"
        for path, tree in trees.items()
        for node, target in own_imports(tree)
        if room(target) > room(name_of(path))
        and id(node) not in for_types_only(tree)
        and not (name_of(path) == LAZY_DOOR and node not in tree.body)
    ]
    relative = [
        f"{name_of(path)}:{node.lineno}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not backward
    assert not relative


def test_no_modules_import_each_other_in_a_circle(trees):
    """Imports for types alone do not count, nor what a package's own __init__ is to its files."""
    graph: dict[str, set[str]] = {}
    for path, tree in trees.items():
        unseen = for_types_only(tree)
        graph[name_of(path)] = {
            target
            for node, target in own_imports(tree)
            if id(node) not in unseen and not (name_of(path) == LAZY_DOOR and node not in tree.body)
        }
    left = dict(graph)
    while free := [name for name, targets in left.items() if not targets & set(left) - {name}]:
        for name in free:
            del left[name]
    assert not left


def test_each_library_has_one_door(trees):
    wrong = [
        f"{name_of(path)}:{node.lineno} imports {target}"
        for path, tree in trees.items()
        for node, target in imports(tree)
        if (doors := DOORS.get(target.split(".")[0]))
        and not path.relative_to(PACKAGE).as_posix().startswith(doors)
        and id(node) not in for_types_only(tree)
    ]
    assert not wrong


def test_folders_are_small_and_flat():
    folders = {path.parent for path in FILES}
    crowded = {
        str(folder.relative_to(PACKAGE)): count
        for folder in folders
        if (count := len(list(folder.glob("*.py")))) > MOST_FILES and folder.name != "rules"
    }
    deep = [str(f) for f in folders if len(f.relative_to(PACKAGE).parts) > 2]
    assert not crowded
    assert not deep


def test_files_are_small_and_described(trees):
    long = [name_of(path) for path in FILES if path.read_text().count("\n") > MOST_LINES]
    described = {
        name_of(path): [line for line in (ast.get_docstring(tree) or "").splitlines() if line]
        for path, tree in trees.items()
    }
    assert not long
    assert not [name for name, lines in described.items() if not 1 <= len(lines) <= 3]


def test_functions_are_small(trees):
    long = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= 60
    ]
    assert not long


def test_short_files_say_why(trees):
    short = [
        name_of(path)
        for path, tree in trees.items()
        if path.stem != "__init__"
        and path.read_text().count("\n") < FEWEST_LINES
        and not REASON.search(ast.get_docstring(tree) or "")
    ]
    assert not short


def test_functions_have_few_parameters(trees):
    """Frozen values may have as many fields as they need: their constructors are not written."""
    crowded = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and len(parameters(node)) > MOST_PARAMETERS
    ]
    assert not crowded


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [a.arg for a in named if a.arg not in ("self", "cls")]


def test_no_state_at_module_level(trees):
    found = [f"{name_of(path)}: {each}" for path, tree in trees.items() for each in state_of(tree)]
    assert not found


def state_of(tree: ast.Module) -> Iterator[str]:
    yield from (f"line {n.lineno}: global" for n in ast.walk(tree) if isinstance(n, ast.Global))
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            name = ast.unparse(target)
            constant = name.isupper() or name.strip("_").isupper() or name == "__all__"
            if not constant and is_mutable(node.value):
                yield f"line {node.lineno}: {name}"
            if any(changes(tree, name)):
                yield f"changes its constant {name}"


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
    whole = {
        "test_architecture.py",
        "test_coverage.py",
        "test_fuzz.py",
        "test_readme.py",
        "test_notebooks.py",
        "test_published.py",
        "test_speed.py",
    }
    whole |= {
        f"advice/causes/test_{name}.py"
        for name in (
            "beside",
            "causes",
            "fakes",
            "large",
            "leaks",
            "pairs",
            "registries",
            "told",
            "verdicts",
            "written",
        )
    }
    lost = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        inside = path.relative_to(ROOT / "tests")
        if inside.parts[0] in elsewhere or inside.as_posix() in whole:
            continue
        folder = PACKAGE / inside.parent
        rooms = {folder.name, *(p.stem for p in folder.iterdir())} if folder.is_dir() else set()
        stem = inside.stem.removeprefix("test_")
        if not any(stem == r or stem.startswith(r + "_") for r in rooms):
            lost.append(str(inside))
    assert not lost
