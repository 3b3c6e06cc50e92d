"""Weights that are on the device twice while they are loaded."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.rewrite import UnsafeError, replace, set_keyword
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Edit, Example, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category

_PLAIN = frozenset(
    "epoch epochs step global_step iteration iter best_acc best_loss args config hparams "
    "hyper_parameters version arch".split()
)
"""Entries of checkpoints that are no tensors, as people name them."""

_SAVED = """\
import os, tempfile
import torch
from torch import nn
torch.manual_seed(0)
folder = tempfile.TemporaryDirectory()
path = os.path.join(folder.name, "weights.pt")

def build():
    return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)])

x = torch.ones(4, 1024, device="cuda")
trained = build()
optimizer = torch.optim.Adam(trained.parameters())
torch.save(trained.state_dict(), path)
torch.save({"model": trained.state_dict(), "epoch": 3}, path + ".whole")
del trained, optimizer
"""
_RESUME = """\
def resume(path, device="cuda"):
    model = build().to(device)
    checkpoint = torch.load(path + ".whole", map_location=device, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    return model, checkpoint["epoch"]

model, epoch = resume(path)
y = model(x).detach()"""


class CheckpointOnDevice(Rule):
    """A checkpoint is loaded onto the device, and then copied into a model that is there already.

    `torch.load` puts tensors where they were saved from, or where `map_location` says;
    `load_state_dict` copies them into the model's own parameters. Until the loaded ones are gone
    the weights are on the device twice, and for good where a variable of the notebook keeps them.
    With `map_location="cpu"` the second copy is in host memory; `mmap=True` reads it from the file
    as it is needed, and `weights_only=True` refuses to run code from the file. A model that is
    built under `torch.device("meta")` takes loaded tensors as they are, with `assign=True` in
    `load_state_dict`: then no second copy is made anywhere.
    """

    name: ClassVar[str] = "checkpoint-on-device"
    problem: ClassVar[str] = "loaded weights lie on the device beside the model's own"
    joins: ClassVar[bool] = True
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            ('location="cuda"', 'location="cpu"'),
            setup=_SAVED,
            before="""\
model = build().cuda()
state = torch.load(path, map_location="cuda")
model.load_state_dict(state)
y = model(x).detach()""",
            results=("y",),
        ),
        Example(
            setup=_SAVED,
            before=_RESUME,
            after=_RESUME.replace("map_location=device", 'map_location="cpu"'),
            results=("y", "epoch"),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        for load in _loads(cell):
            loaded = cell.born_in(load.call, lives) & (lives.birth >= 0)
            used = (Category.PARAMETER, Category.BUFFER, Category.OPTIMIZER_STATE)
            second = loaded & lives.at_peak & ~lives.of(*used)
            models = (lives.of(Category.PARAMETER) & lives.at_peak & ~loaded).any()
            size, saving = lives.bytes(second), lives.saved_at_peak(second)
            failed = trace.oom is not None and bool(loaded[lives.birth.argmax()])
            if not size or not models or saving < least_saving(trace):
                continue
            place, user = cell.place(load.call.lineno), cell.place(load.user.lineno)
            to_copy = "was to copy" if failed else "copies"
            advice = Advice(
                self.name,
                problem=(
                    f"{place} loads {format_bytes(size)}{' so far' if failed else ''} of weights "
                    f"onto the device, and {user} {to_copy} them into a model that is there."
                ),
                change=(
                    f'Load with map_location="cpu" on {place}; with mmap=True and '
                    "weights_only=True the host, too, reads no more than it must."
                ),
                line=load.call.lineno,
                name=load.name,
                size=size,
                saving=saving,
                known=Known.ESTIMATED if failed else Known.EXACT,
                price="the weights are copied from the host, once",
            )
            yield self.propose(cell, advice, partial(_on_host, cell, load))


@dataclass(frozen=True, slots=True)
class _Load:
    """A call of torch.load and a load_state_dict that is given what it loaded; name: of the
    variable in between, None where there is none."""

    call: ast.Call
    user: ast.Call
    name: str | None


def _loads(cell: Code) -> Iterator[_Load]:
    users = list(cell.calls(".load_state_dict"))
    for call in cell.calls("torch.load"):
        nested = next((u for u in users if call in ast.walk(u)), None)
        name = _target(cell.statement(call), call)
        if nested is not None:
            yield _Load(call, nested, None)
        elif name is not None and (user := _user(cell, users, call, name)) is not None:
            yield _Load(call, user, name)
        elif isinstance(cell.statement(call), ast.Return):
            function = cell.function(call)
            for made in cell.calls_of(function.name) if function is not None else ():
                nested = next((u for u in users if made in ast.walk(u)), None)
                name = _target(cell.statement(made), made)
                user = nested or (_user(cell, users, made, name) if name else None)
                if user is not None:
                    yield _Load(call, user, name)


def _user(cell: Code, users: list[ast.Call], call: ast.Call, name: str) -> ast.Call | None:
    """The load_state_dict, of the same function, that is given what the name means; an attribute's
    value may be used anywhere."""
    scope = cell.function(call)
    for user in users:
        here = "." in name or cell.function(user) is scope
        if here and any(_reads(cell, name, each) for each in user.args):
            return user
    return None


def _reads(cell: Code, name: str, within: ast.AST | None) -> Sequence[ast.expr]:
    """Where a name, or an attribute of this text, is read."""
    if "." not in name:
        return cell.reads(name, within)
    nodes = cell.nodes(ast.Attribute, within=within)
    return [n for n in nodes if isinstance(n.ctx, ast.Load) and cell.text(n) == name]


def _target(statement: ast.stmt, call: ast.Call) -> str | None:
    """The name that gets the loaded value, or an entry of it: `torch.load(...)["model"]`."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    value, target = statement.value, statement.targets[0]
    while isinstance(value, ast.Subscript):
        value = value.value
    plain = isinstance(target, ast.Name) or (
        isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
    )
    return ast.unparse(target) if value is call and plain else None


def _on_host(cell: Code, load: _Load) -> tuple[Edit, ...]:
    if load.name is not None:
        _require_only_loading(cell, load, load.name)
    if len(load.call.args) > 1:
        return replace(cell, load.call.args[1], '"cpu"')
    return set_keyword(cell, load.call, "map_location", '"cpu"')


def _require_only_loading(cell: Code, load: _Load, name: str) -> None:
    """Raises UnsafeError where loaded tensors may be used otherwise than to be copied."""
    if "." in name:
        raise UnsafeError(f"{name} may be read elsewhere")
    scope = cell.function(load.user)
    for read in cell.reads(name, scope):
        inside = [*cell.ancestors(read)]
        copied = any(
            isinstance(above, ast.Call) and cell.is_one_of(above.func, (".load_state_dict",))
            for above in inside
        )
        deleted = isinstance(cell.statement(read), ast.Delete)
        if not copied and not deleted and not _is_plain_entry(inside[0]):
            raise UnsafeError(f"line {read.lineno} uses {name} otherwise")


def _is_plain_entry(node: ast.AST) -> bool:
    """Whether it is `checkpoint["epoch"]` or the like, or asks for keys."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in _PLAIN
    return isinstance(node, ast.Attribute) and node.attr == "keys"
