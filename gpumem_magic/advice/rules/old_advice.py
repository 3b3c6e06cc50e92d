"""Advice of old answers and tutorials, followed where it does nothing, or the opposite."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar

from gpumem_magic.advice import rewrite
from gpumem_magic.advice.changes.no_grad import without_graph
from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.gradient_flow import (
    NO_GRAPH,
    GradientFlow,
    backward_calls,
    goes_backward,
)
from gpumem_magic.advice.evidence.unused_graphs import (
    UnusedGraph,
    find_unused_graphs,
)
from gpumem_magic.advice.rewrite import UnsafeError
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.advice.tree import defined, header
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Edit, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category

_DEEP = """\
import torch
from torch import nn
from torch.autograd import Variable
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(10)]).cuda()
data = torch.randn(4096, 512)
"""
_OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)\n"
_TRAINED = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4)).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(128, 64, device="cuda")
labels = torch.randint(0, 4, (128,), device="cuda")
criterion(model(x), labels).backward()
optimizer.step()
"""


class RemovedVolatile(Rule):
    """`Variable(x, volatile=True)` no longer keeps autograd from recording.

    Before PyTorch 0.4 a volatile input made everything computed from it free of a graph. The flag
    was removed with `Variable` itself: PyTorch prints a warning once, ignores it, and records, so
    that inference needs the memory of training. Use the tensor as it is, and put what reads it
    under `torch.no_grad()`. The numbers are the same.
    """

    name: ClassVar[str] = "removed-volatile"
    problem: ClassVar[str] = "volatile=True is ignored, and the forward pass is recorded"
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_DEEP,
            before="inputs = Variable(data.cuda(), volatile=True)\noutput = model(inputs)",
            after="inputs = data.cuda()\nwith torch.no_grad():\n    output = model(inputs)",
            results=("output",),
        ),
        mended(
            (
                "        batch = Variable(batch, requires_grad=False, volatile=True)\n",
                "        with torch.no_grad():\n",
            ),
            ("        out = model", "            out = model"),
            ("        total +=", "            total +="),
            setup=_DEEP,
            before="""\
def test(model, loader):
    model.eval()
    total = 0
    for batch in loader:
        batch = Variable(batch, requires_grad=False, volatile=True)
        out = model(batch)
        total += out.abs().sum().item()
    return total

total = test(model, data.cuda().split(2048))""",
            results=("total",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        reading = volatile_readers(cell, names)
        for graph in find_unused_graphs(trace, cell, names) if reading else ():
            flags = [call for call in reading if reading[call].intersection(graph.statements)]
            if not flags:
                continue
            line = flags[0].lineno
            advice = graph.advice(self.name)
            advice = replace(
                advice,
                problem=f"volatile=True on line {line} does nothing since PyTorch 0.4. "
                + advice.problem,
                change=f"Use the tensor itself, and wrap {graph.place} in torch.no_grad().",
                line=line,
            )
            yield self.propose(cell, advice, partial(_without_flags, cell, graph, flags))


_VARIABLE = ("torch.autograd.Variable", "torch.autograd.variable.Variable", "Variable")
_VOLATILE = ("volatile=True", "volatile=1")


def volatile_readers(cell: Code, names: Names) -> dict[ast.Call, set[ast.stmt]]:
    """By call of Variable with `volatile=True`, the statement that it is in and those that read
    its value, right or by way of others; looked for once, for all rules that ask."""
    return cell.once(_volatile_readers, names)


def _volatile_readers(cell: Code, names: Names) -> dict[ast.Call, set[ast.stmt]]:
    found = {
        call: {cell.statement(call)}
        for call in cell.calls(*_VARIABLE)
        if any(ast.unparse(keyword) in _VOLATILE for keyword in call.keywords)
    }
    if not found:
        return found
    flow = GradientFlow(cell, names)
    for statement in cell.nodes(ast.stmt):
        behind = flow.origin(header(statement)).statements
        for call, readers in found.items():
            flagged = cell.statement(call)
            if flagged in behind or _reads(cell, statement, flagged):
                readers.add(statement)
    return found


def _reads(cell: Code, statement: ast.stmt, flagged: ast.stmt) -> bool:
    """Whether a statement reads a name that another one of its function sets, by any operation."""
    return cell.function(flagged) is cell.function(statement) and any(
        cell.reads(name, within=value) for value in header(statement) for name in defined(flagged)
    )


def _without_flags(cell: Code, graph: UnusedGraph, flags: list[ast.Call]) -> Iterator[Edit]:
    for call in flags:
        yield from _tensor_itself(cell, call)
    yield from without_graph(cell, graph)


def _tensor_itself(cell: Code, call: ast.Call) -> tuple[Edit, ...]:
    """The tensor in place of `Variable(tensor, volatile=True)`; nothing where that is `x = x`."""
    known = (*_VOLATILE, "requires_grad=False")
    others = [keyword for keyword in call.keywords if ast.unparse(keyword) not in known]
    if len(call.args) != 1 or others or call.lineno != call.end_lineno:
        raise UnsafeError("the Variable has more arguments, or more lines, than expected")
    tensor, statement = call.args[0], cell.statement(call)
    becomes = f"{ast.unparse(tensor)} = {ast.unparse(call)}"
    if isinstance(tensor, ast.Name) and ast.unparse(statement) == becomes:
        return rewrite.remove(cell, statement)
    atom = isinstance(tensor, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    text = cell.text(tensor)
    return rewrite.replace(cell, call, text if atom else f"({text})")


class BackwardUnderNoGrad(Rule):
    """A forward pass under `torch.no_grad()` leaves nothing for `backward()` to go through.

    The error "element 0 of tensors does not require grad and does not have a grad_fn" says that the
    loss was computed without a graph. Where the forward pass stands under `torch.no_grad()` or
    `torch.inference_mode()`, in a `with` block or by a decorator, the training step has to move out
    of it. This is about a correct program: training needs the memory that `no_grad` saves.
    """

    name: ClassVar[str] = "backward-under-no-grad"
    problem: ClassVar[str] = "backward() failed, because its forward pass ran without gradients"
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_TRAINED,
            before="""\
for step in range(2):
    optimizer.zero_grad()
    with torch.no_grad():  # saves memory
        output = model(x)
        # compare
        loss = criterion(output, labels)
        loss.backward()
    optimizer.step()""",
            after="""\
for step in range(2):
    optimizer.zero_grad()
    output = model(x)
    # compare
    loss = criterion(output, labels)
    loss.backward()
    optimizer.step()""",
        ),
        mended(
            ("@torch.no_grad()\n", ""),
            setup=_TRAINED,
            before="""\
@torch.no_grad()
def train_step(model, batch, labels):
    optimizer.zero_grad()
    loss = criterion(model(batch), labels)
    loss.backward()
    optimizer.step()
    return loss.item()

print(train_step(model, x, labels))""",
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        if trace.error is None or _NO_GRAPH_TO_FOLLOW not in trace.error:
            return
        flow = GradientFlow(cell, names, everywhere=True)
        for call in backward_calls(cell):
            step = [cell.statement(call), *flow.origin(goes_backward(call)).statements]
            off = {s: next(cell.contexts(s, *NO_GRAPH), None) for s in step}
            if any(around is None and _runs_a_model(names, s) for s, around in off.items()):
                continue  # that one's parameters may be frozen
            for around in dict.fromkeys(off.values()):
                if around is not None:
                    yield self._advice(cell, call, set(step), *around)

    def _advice(
        self, cell: Code, call: ast.Call, step: set[ast.stmt], block: ast.stmt, context: ast.expr
    ) -> Advice:
        line = context.lineno
        advice = Advice(
            self.name,
            problem=f"backward() on line {call.lineno} has nothing to go through: its forward pass "
            f"stands under {cell.text(context)} of line {line} (to line "
            f"{block.end_lineno or line}).",
            change="Move the forward pass, the loss and backward() out of it.",
            line=line,
            saving=0,
            known=Known.EXACT,
        )

        def edits() -> tuple[Edit, ...]:
            if not isinstance(block, ast.With):
                return rewrite.undecorate(cell, context)
            if not all(_belongs(cell, step, call, statement) for statement in block.body):
                raise UnsafeError("the block holds more than the training step")
            return rewrite.unwrap(cell, block)

        return self.propose(cell, advice, edits)


_NO_GRAPH_TO_FOLLOW = "does not require grad and does not have a grad_fn"
_STEPS = (".backward", ".step", ".zero_grad", ".item", ".train", ".eval", "print")


def _runs_a_model(names: Names, statement: ast.stmt) -> bool:
    calls = [n.func for v in header(statement) for n in ast.walk(v) if isinstance(n, ast.Call)]
    models = [names.modules.get(f.id) for f in calls if isinstance(f, ast.Name)]
    return any(model is not None and model.parameters for model in models)


def _belongs(cell: Code, step: set[ast.stmt], call: ast.Call, statement: ast.stmt) -> bool:
    """Whether a statement is part of the training step, or touches no graph."""
    if statement in step or cell.inside(call, statement):
        return True
    calls = cell.calls(*_STEPS, within=statement)
    return isinstance(statement, ast.Expr) and calls[:1] == [statement.value]


class ClippingIsNotMemory(Rule):
    """Gradients clipped in order to save memory.

    `clip_grad_norm_` and `clip_grad_value_` change the values of gradients, in place. Each gradient
    takes the same bytes before and after, and the activations, which mostly set the peak, are freed
    by then. Clip against gradients that explode; against a lack of memory it does nothing. The rule
    speaks only where a comment or a message at the clipping says that memory was meant.
    """

    name: ClassVar[str] = "clipping-is-not-memory"
    problem: ClassVar[str] = "gradients are clipped in order to save memory, which it does not"
    kind: ClassVar[Kind] = Kind.FACT
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            (
                "    # keep GPU memory in check\n"
                "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
                "",
            ),
            setup=_DEEP + _OPTIMIZER,
            before="""\
for part in data.cuda().chunk(2):
    optimizer.zero_grad()
    model(part).square().mean().backward()
    # keep GPU memory in check
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()""",
            rewritten=False,
        ),
        mended(
            ('    print("clipping gradients to avoid CUDA out of memory")\n', ""),
            ("clip_value=0.5)", "clip_value=0.5)  # against exploding gradients"),
            setup=_DEEP + _OPTIMIZER,
            before="""\
from torch.nn.utils import clip_grad_value_

def train_step(model, batch):
    loss = model(batch).square().mean()
    loss.backward()
    print("clipping gradients to avoid CUDA out of memory")
    clip_grad_value_(model.parameters(), clip_value=0.5)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()

losses = [train_step(model, part) for part in data.cuda().chunk(2)]""",
            results=("losses",),
            rewritten=False,
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        for call in cell.calls(*_CLIPS):
            for words in _words(cell, cell.statement(call)):
                if not _MEMORY.search(words) or _DENIED.search(words):
                    continue
                size = _gradients(trace)
                yield Advice(
                    self.name,
                    f'Line {call.lineno} clips gradients, and the text beside it ("{words}") is '
                    "about memory. Clipping changes values in place: the "
                    f"{format_bytes(size)} of gradients take the same before and after it.",
                    "Keep it against exploding gradients, but look elsewhere for memory.",
                    line=call.lineno,
                    size=size,
                    saving=0,
                    known=Known.EXACT,
                )
                break


_CLIPS = (
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grad_value_",
    "torch.nn.utils.clip_grad.clip_grad_norm_",
    "torch.nn.utils.clip_grad.clip_grad_value_",
    ".clip_grad_norm_",
    ".clip_grad_value_",
)
_MEMORY = re.compile(
    r"\bOOM\b|out[- ]of[- ]memory|\bv-?ram\b|memory (?:usage|use|footprint|peak|spike|consumption)"
    r"|(?:sav|reduc|lower|limit|fre|less|bound|cap)\w*\b[^.\n]*\b(?:memory|gpu ram)\b"
    r"|\b(?:gpu|cuda) (?:memory|ram)\b",
    re.IGNORECASE,
)
_DENIED = re.compile(r"\b(?:not|no|never|nothing)\b|n't\b", re.IGNORECASE)


def _words(cell: Code, statement: ast.stmt) -> Iterator[str]:
    """Comments on the statement and right above it, and messages printed right before or after."""
    first, last = cell.first_line(statement), statement.end_lineno or statement.lineno
    for line in cell.lines[first - 1 : last]:
        code, sign, comment = line.rpartition("#")
        if sign and code.count('"') % 2 == code.count("'") % 2 == 0:  # in no string
            yield comment.strip()
    for line in reversed(cell.lines[: first - 1]):
        if not line.lstrip().startswith("#"):
            break
        yield line.lstrip("# \t").strip()
    for other in (*cell.before(statement)[-1:], *cell.after(statement)[:1]):
        for call in cell.calls("print", within=other):
            for text in cell.nodes(ast.Constant, within=call):
                if re.search(r"\bclip|\bgrad", str(text.value), re.IGNORECASE):
                    yield str(text.value).strip()


def _gradients(trace: Trace) -> int:
    """Bytes of all gradients that there were at one moment, as far as the trace shows them."""
    lives = trace.lives
    return int((lives.levels() - lives.levels(lives.of(Category.GRADIENT))).max())
