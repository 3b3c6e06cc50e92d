"""Gradient clipping that was meant to save memory."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category

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

_SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(2048, 1024, device="cuda")
"""


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
        Example(
            setup=_SETUP,
            before="""\
for part in x.chunk(2):
    optimizer.zero_grad()
    model(part).square().mean().backward()
    # keep GPU memory in check
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()""",
            after="""\
for part in x.chunk(2):
    optimizer.zero_grad()
    model(part).square().mean().backward()
    optimizer.step()""",
            rewritten=False,
        ),
        mended(
            (
                '    print("clipping gradients to avoid CUDA out of memory")\n'
                "    clip_grad_value_(model.parameters(), clip_value=0.5)\n",
                "    clip_grad_value_(model.parameters(), clip_value=0.5)"
                "  # against exploding gradients\n",
            ),
            setup=_SETUP,
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

losses = [train_step(model, part) for part in x.chunk(2)]""",
            results=("losses",),
            rewritten=False,
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        for call in cell.calls(*_CLIPS):
            words = next((w for w in _words(cell, cell.statement(call)) if _is_about(w)), None)
            if words is None:
                continue
            size = _gradients(trace, names)
            yield Advice(
                self.name,
                f'Line {call.lineno} clips gradients, and the text beside it ("{words}") is about '
                f"memory. Clipping changes values in place: the {format_bytes(size)} of gradients "
                "take the same before and after it.",
                "Keep it against exploding gradients, but look elsewhere for memory.",
                line=call.lineno,
                size=size,
                saving=0,
                known=Known.EXACT,
            )


def _is_about(words: str) -> bool:
    return bool(_MEMORY.search(words)) and not _DENIED.search(words)


def _words(cell: Code, statement: ast.stmt) -> Iterator[str]:
    """Comments on the statement and right above it, and messages printed right before or after."""
    first, last = cell.first_line(statement), statement.end_lineno or statement.lineno
    for number in range(first, last + 1):
        yield _comment(cell, number)
    above = first - 1
    while above >= 1 and cell.lines[above - 1].lstrip().startswith("#"):
        yield cell.lines[above - 1].lstrip("# \t").strip()
        above -= 1
    block = cell.block(statement)
    at = block.index(statement)
    for other in (*block[max(at - 1, 0) : at], *block[at + 1 : at + 2]):
        for call in cell.calls("print", within=other):
            for text in _texts(call):
                if re.search(r"\bclip|\bgrad", text, re.IGNORECASE):
                    yield text.strip()


def _texts(call: ast.Call) -> Iterator[str]:
    for node in ast.walk(call):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _comment(cell: Code, number: int) -> str:
    """The comment at the end of a line of code; "" where a string may hold the sign."""
    code, sign, comment = cell.lines[number - 1].rpartition("#")
    return comment.strip() if sign and code.count('"') % 2 == code.count("'") % 2 == 0 else ""


def _gradients(trace: Trace, names: Names) -> int:
    """Bytes of all gradients that there were at one moment, as far as the trace shows them."""
    lives = trace.lifetimes
    if lives is None:
        return 0
    mask = lives.of(Category.GRADIENT)
    return int((lives.levels() - lives.levels(mask)).max())
