"""Double precision that came along with a numpy array."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.shortage import is_short
from gpumem_magic.advice.rewrite import UnsafeError, enclose, set_keyword
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.advice.tree import lines_of
from gpumem_magic.units import MIB, format_bytes
from gpumem_magic.values.advice import Advice, Edit, Example, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names, variable_of
from gpumem_magic.values.recording import Category, Phase

_LEAST = 0.01
_MUCH = 32 * MIB
_SHARE = 0.1
"""Of the peak: from there on float64 is told wherever it came from."""

_SHOWN = 3
_NEED_DIGITS = frozenset({"gradcheck", "gradgradcheck", "linalg"})
"""What is computed in float64 for its digits."""

_MAKERS = ("torch.from_numpy", "torch.tensor", "torch.as_tensor", "torch.asarray")
_MEANT = ("float64", "double", "float128", "complex128")
_CHANGED = ("float", "half", "bfloat16", "type", "to_dense", "long", "int", "bool", "type_as")
_ARRAYS = """\
import numpy as np
import torch
samples = np.random.default_rng(0).normal(size=(2000, 1000))
"""


class Float64ByAccident(Rule):
    """numpy computes in float64, and `torch.from_numpy` and `torch.tensor` keep that.

    On the GPU such tensors take twice the memory of float32, everything computed from them does
    too, and most cards compute float64 at a small fraction of their speed. `.float()` before the
    tensor goes to the device, or `dtype=torch.float32`, mends it. Where double precision is meant,
    write `dtype=torch.float64`, and this rule is silent.
    """

    name: ClassVar[str] = "float64-by-accident"
    problem: ClassVar[str] = "tensors on the device are float64 because a numpy array was"
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            (".cuda()", ".float().cuda()"),
            setup=_ARRAYS,
            before="""\
x = torch.from_numpy(samples).cuda()  # all samples
mean = x.mean(0)
spread = ((x - mean) ** 2).mean(0)""",
            results=("mean", "spread"),
            within=1e-4,
        ),
        mended(
            (
                "self.points = torch.tensor(points, device=device)",
                "self.points = torch.tensor(points, device=device, dtype=torch.float32)",
            ),
            setup=_ARRAYS,
            before="""\
device = torch.device("cuda")

class Data:
    def __init__(self, size):
        points = np.linspace(0, 1, size)
        self.points = torch.tensor(points, device=device)

    def wave(self, k):
        return torch.sin(self.points * k)

data = Data(1_000_000)
total = data.wave(3).sum().item()
waves = [data.wave(k) for k in range(1, 4)]""",
            results=("total",),
            within=1e-4,
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        written = _is_written(cell)
        if written and not is_short(trace):
            return
        double = _double(lives)
        peak = int(lives.levels().max())
        double |= _computed_by_double(cell, names, lives)
        if written or _is_meant(cell, names):
            yield from self._much(trace, cell, names, double)
            return
        made = {
            call: double & np.isin(lives.line, _lines(cell, call)) & (lives.birth >= 0)
            for call in cell.calls(*_MAKERS)
            if _keeps_float64(cell, names, call)
        }
        calls = [call for call, own in made.items() if own.any()]
        held = np.logical_or.reduce([made[call] for call in calls]) if calls else double
        if calls and lives.bytes(held) >= max(2 * MIB, _LEAST * peak):
            yield self._advice(cell, names, lives, calls, held)
        else:
            yield from self._much(trace, cell, names, double)

    def _much(
        self, trace: Trace, cell: Code, names: Names, double: NDArray[np.bool_]
    ) -> Iterator[Advice]:
        """Tensors that are much of the peak, wherever they became float64."""
        lives = trace.lives
        held = double & lives.at_peak
        size, peak = lives.bytes(held), trace.peak.allocated or 0
        if size < max(_MUCH, _SHARE * peak) or _needs_digits(cell):
            return
        rows = sorted(np.flatnonzero(held).tolist(), key=lambda row: -int(lives.size[row]))
        models = [n for n, m in names.modules.items() if {*m.dtypes} == {"float64"}]
        told = (n for row in rows if (n := lives.name(row)) and ".state[" not in n)
        tensors = (n for n in told if variable_of(n) not in models)
        names_of = list(dict.fromkeys([*(n for n in models if n in cell.spoken()), *tensors]))
        shown = f" ({', '.join(names_of[:_SHOWN])})" if names_of else ""
        why, change = _as_default(names) if names.default[0] == "float64" else ("", _ANY_CHANGE)
        yield Advice(
            self.name,
            problem=f"{format_bytes(size)} at the peak are float64{shown}{why}.",
            change=f"float32 takes half, and is what models compute in: {change}",
            line=max(int(lives.line[rows[0]]), 0) or None,
            name=names_of[0] if names_of else None,
            size=size,
            saving=_halved(lives, double),
            known=Known.ESTIMATED,
            price="7 digits in place of 16.",
        )

    def _advice(
        self,
        cell: Code,
        names: Names,
        lives: Lifetimes,
        calls: list[ast.Call],
        held: NDArray[np.bool_],
    ) -> Advice:
        size = format_bytes(lives.bytes(held))
        problem = (
            f"The array on line {calls[0].lineno} is float64, and so is the tensor: {size} on the "
            "device."
        )
        change = "Make it float32 before it goes to the device."
        if len(calls) > 1:
            lines = list(dict.fromkeys(str(call.lineno) for call in calls))
            where = f"line {lines[0]}" if len(lines) == 1 else f"lines {', '.join(lines)}"
            problem = f"The arrays on {where} are float64, and so are the tensors: {size} on the "
            problem += "device."
            change = "Make all of them float32 before they go to the device."
        advice = Advice(
            self.name,
            problem=problem,
            change=change,
            line=calls[0].lineno,
            name=next((n for i in np.flatnonzero(held) if (n := lives.name(int(i)))), None),
            size=lives.bytes(held),
            saving=_halved(lives, held),
            known=Known.ESTIMATED,
            price="7 digits in place of 16.",
        )
        return self.propose(cell, advice, partial(_single_all, cell, names, calls))


_ANY_CHANGE = (
    ".float() where the array becomes a tensor (numpy's arrays are float64), and no .double() nor "
    ".to(torch.float64) on the model."
)


def _as_default(names: Names) -> tuple[str, str]:
    """Why all tensors are float64 where torch was told to make them so, and what ends it."""
    cell = names.default[1]
    where = "" if cell is None else f" in In[{cell}]"
    return (
        f", as torch was told to make all tensors{where}",
        "torch.set_default_dtype(torch.float32), and make the model and the data anew.",
    )


def _halved(lives: Lifetimes, storages: NDArray[np.bool_]) -> int:
    """How much lower the peak would be with storages of half the size."""
    levels, others = lives.levels(), lives.levels(storages)
    return int(levels.max() - (levels + others).max() // 2)


_OTHER_FLOATS = frozenset({"float32", "float16", "bfloat16", "complex64", "complex128"})


def _double(lives: Lifetimes) -> NDArray[np.bool_]:
    """Storages whose owner is float64, and those that are taken to be alike."""
    kinds = [label.dtype == "float64" for label in lives.labels]
    owned = np.array([*kinds, False], bool)[lives.label] & (lives.stack >= 0)
    place = lives.size * (len(lives.stacks) + 1) + lives.stack
    alike: NDArray[np.bool_] = np.isin(place, place[owned])
    made = np.unique(lives.label[(lives.birth >= 0) & (lives.label >= 0)]).tolist()
    if _OTHER_FLOATS & {lives.labels[label].dtype for label in made}:
        return alike
    # Where the cell is known to make no other floats: results of the size of a large one.
    computed = (lives.born == Phase.FORWARD) & (lives.birth >= 0) & (lives.label < 0)
    alike |= computed & np.isin(lives.size, lives.size[owned & (lives.size >= MIB)])
    return alike


def _computed_by_double(cell: Code, names: Names, lives: Lifetimes) -> NDArray[np.bool_]:
    """What nobody named: results of `.double()`, and of a function's that go on with it; what
    models compute whose parameters are all float64."""
    found = np.zeros(len(lives), bool)
    for call in cell.calls(".double"):
        function = cell.function(call)
        own = cell.born_in(cell.statement(call), lives) & (lives.born == Phase.FORWARD)
        if function is not None and own.any():
            alike = lives.size == lives.size[own].max()
            found |= alike & cell.born_in(function, lives)
    spoken = {name for name in cell.spoken() if name in names.modules}
    models = [names.modules[name].dtypes for name in spoken if names.modules[name].parameters]
    if models and all({*kinds} == {"float64"} for kinds in models):
        found |= lives.of(Category.ACTIVATION, Category.PARAMETER, Category.GRADIENT)
        found |= lives.recorded & ~lives.of(Category.WORKSPACE)
    found &= lives.birth >= 0
    return found


def _needs_digits(cell: Code) -> bool:
    words = {n.attr for n in cell.nodes(ast.Attribute)} | {n.id for n in cell.nodes(ast.Name)}
    return bool(words & _NEED_DIGITS)


def _is_written(cell: Code) -> bool:
    """Whether the cell asks for the type by its name: it knows what it does, unless memory is
    short."""
    asked = any(n.attr == "float64" for n in cell.nodes(ast.Attribute))
    return asked or bool(cell.calls("torch.set_default_dtype"))


def _is_meant(cell: Code, names: Names) -> bool:
    """Whether the cell speaks of double precision, or a model computes in it."""
    words = {n.attr for n in cell.walk() if isinstance(n, ast.Attribute)}
    words |= {n.value for n in cell.walk() if isinstance(n, ast.Constant)
              and isinstance(n.value, str)}  # fmt: skip
    models = any("float64" in facts.dtypes for facts in names.modules.values())
    return models or bool(words & {*_MEANT, "set_default_dtype"})


def _keeps_float64(cell: Code, names: Names, call: ast.Call) -> bool:
    """Whether the call makes a tensor of a numpy array, and nothing there changes its type."""
    if not call.args or any(k.arg in ("dtype", None) for k in call.keywords):
        return False
    around = next((a for a in cell.ancestors(call) if isinstance(a, ast.stmt)), None)
    attributes = (
        {n.attr for n in ast.walk(around) if isinstance(n, ast.Attribute)} if around else set()
    )
    if attributes & set(_CHANGED) or "dtype" in {
        k.arg for n in ast.walk(around or call) if isinstance(n, ast.Call) for k in n.keywords
    }:
        return False
    return cell.dotted(call.func) == "torch.from_numpy" or _is_array(cell, names, call.args[0])


def _is_array(cell: Code, names: Names, given: ast.expr) -> bool:
    """Whether an expression is known to be a numpy array."""
    if isinstance(given, ast.Subscript):
        return _is_array(cell, names, given.value)
    if isinstance(given, ast.BinOp):
        return any(_is_array(cell, names, side) for side in (given.left, given.right))
    if isinstance(given, ast.Call):
        return cell.dotted(given.func).startswith("numpy.")
    if not isinstance(given, ast.Name):
        return False
    if names.others.get(given.id) == "numpy.ndarray":
        return True
    makers = [s.value for s in cell.assigned(given.id) if isinstance(s, ast.Assign)]
    return any(isinstance(m, ast.Call) and _is_array(cell, names, m) for m in makers)


def _lines(cell: Code, call: ast.Call) -> list[int]:
    """The lines that the tensor gets to the device on: of the call, or of later moves by name."""
    statement = cell.statement(call)
    found = list(lines_of(statement))
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    for target in targets:
        if isinstance(target, ast.Name):
            moves = (r for r in cell.reads(target.id) if _is_moved(cell, r))
            found += [cell.statement(read).lineno for read in moves]
    return found


def _is_moved(cell: Code, read: ast.Name) -> bool:
    above = cell.parent(read)
    return isinstance(above, ast.Attribute) and above.attr in ("cuda", "to")


def _single_all(cell: Code, names: Names, calls: list[ast.Call]) -> Iterator[Edit]:
    """All of them, since few operations take both types. Raises UnsafeError where older tensors
    that the cell reads would stay float64."""
    for name, facts in names.tensors.items():
        if facts.dtype != "float64" or not facts.on_device or next(cell.assigned(name), None):
            continue
        if cell.reads(name):
            raise UnsafeError(f"{name}, which was there before, is float64 as well")
    for call in calls:
        yield from _single(cell, call)


def _single(cell: Code, call: ast.Call) -> Iterator[Edit]:
    torch = cell.spelling("torch")
    if cell.dotted(call.func) == "torch.from_numpy" or not torch:
        yield from enclose(cell, call, "", ".float()")
    else:
        yield from set_keyword(cell, call, "dtype", f"{torch}.float32")
