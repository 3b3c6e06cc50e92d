"""Double precision that came along with a numpy array."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.rewrite import UnsafeError, enclose, set_keyword
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.advice.tree import lines_of
from gpumem_magic.units import MIB, format_bytes
from gpumem_magic.values.advice import Advice, Edit, Example, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names

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
        Example(
            setup=_ARRAYS,
            before="""\
x = torch.from_numpy(samples).cuda()  # all samples
mean = x.mean(0)
spread = ((x - mean) ** 2).mean(0)""",
            after="""\
x = torch.from_numpy(samples).float().cuda()  # all samples
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
        mended(
            ("batch = torch.from_numpy(part)", "batch = torch.from_numpy(part).float()"),
            setup=_ARRAYS,
            before="""\
means = []
for part in np.split(samples, 2):
    batch = torch.from_numpy(part)
    batch = batch.to("cuda", non_blocking=True)
    means.append((batch * 2).mean().item())""",
            results=("means",),
            within=1e-4,
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lifetimes
        if lives is None or _is_written(cell):
            return
        double = _double(lives)
        peak = int(lives.levels().max())
        if _is_meant(cell, names):
            yield from self._much(trace, cell, lives, double)
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
        elif not calls:
            yield from self._much(trace, cell, lives, double)

    def _much(
        self, trace: Trace, cell: Code, lives: Lifetimes, double: NDArray[np.bool_]
    ) -> Iterator[Advice]:
        """Tensors that are much of the peak, wherever they became float64."""
        double = double & lives.at_peak
        size, peak = lives.bytes(double), trace.peak.allocated or 0
        if size < max(_MUCH, _SHARE * peak) or _needs_digits(cell):
            return
        rows = sorted(np.flatnonzero(double).tolist(), key=lambda row: -int(lives.size[row]))
        names = list(dict.fromkeys(n for row in rows if (n := lives.name(row))))
        shown = f" ({', '.join(names[:_SHOWN])})" if names else ""
        yield Advice(
            self.name,
            problem=f"{format_bytes(size)} at the peak are float64{shown}.",
            change="float32 takes half, and is what models compute in: .float() where the array "
            "becomes a tensor (numpy's arrays are float64), and no .double() on the model.",
            line=max(int(lives.line[rows[0]]), 0) or None,
            name=names[0] if names else None,
            size=size,
            saving=lives.saved_at_peak(double) // 2,
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
            saving=lives.saved_at_peak(held) // 2,
            known=Known.ESTIMATED,
            price="7 digits in place of 16.",
        )
        return self.propose(cell, advice, partial(_single_all, cell, names, calls))


def _double(lives: Lifetimes) -> NDArray[np.bool_]:
    """Storages whose owner is float64, and those of the same size from the same place."""
    kinds = [label.dtype == "float64" for label in lives.labels]
    owned = np.array([*kinds, False], bool)[lives.label] & (lives.stack >= 0)
    places = {(int(lives.stack[i]), int(lives.size[i])) for i in np.flatnonzero(owned)}
    born = zip(lives.stack.tolist(), lives.size.tolist(), strict=True)
    return np.array([place in places for place in born], bool)


def _needs_digits(cell: Code) -> bool:
    words = {n.attr for n in cell.nodes(ast.Attribute)} | {n.id for n in cell.nodes(ast.Name)}
    return bool(words & _NEED_DIGITS)


def _is_written(cell: Code) -> bool:
    """Whether the cell asks for the type by its name: then it knows what it does."""
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
