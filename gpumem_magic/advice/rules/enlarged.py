"""One operator that makes much of little: distances of all pairs, repeated rows, one-hot rows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import ClassVar, Final

import numpy as np

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.passes import grown
from gpumem_magic.advice.evidence.shortage import is_short
from gpumem_magic.advice.evidence.unused_graphs import find_unused_graphs
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.advice.rules.enlarged_facts import is_a_piece, of_wide_numbers
from gpumem_magic.advice.rules.enlarged_rows import ROWS, of_rows
from gpumem_magic.advice.tree import root
from gpumem_magic.trace.enlarged import DERIVATIVES, EMBEDDINGS
from gpumem_magic.units import MIB, format_bytes
from gpumem_magic.values.advice import Advice, Example, Kind, Known
from gpumem_magic.values.findings import Enlarged, Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category, Phase

_LEAST: Final = 32 * MIB
_SHARE: Final = 0.25
_SHARE_IF_SHORT: Final = 0.1
"""Of the peak, the request that failed included."""

_MANY: Final = 3
"""Results from which they may be those of passes."""

_WIDE: Final = 4096
_MUCH_WIDER: Final = 6
_VOCABULARY: Final = 30_000
"""Outputs of a linear layer are classes or words rather than features if they are so many, and so
many times its inputs; or as many as a vocabulary."""

_PAIRS: Final = frozenset(
    {"sub", "add", "mul", "div", "pow", "eq", "ne", "lt", "le", "gt", "ge", "where", "minimum"}
    | {"maximum", "logical_and", "logical_or", "masked_fill", "rsub", "_cdist_forward"}
    | {"linalg_vector_norm", "_euclidean_dist"}
)
_DIFFERENCES: Final = frozenset(
    {"sub", "rsub", "pow", "_cdist_forward", "linalg_vector_norm", "_euclidean_dist"}
)
_PRODUCTS: Final = frozenset({"mm", "bmm", "addmm", "baddbmm", "matmul", "_scaled_mm"})

_WHOLE: Final = re.compile(
    r"linalg|cholesky|lu_factor|inverse|solve|lstsq|eigh?|svd|slogdet|logdet|det|triangular_solve"
)
"""What is given a matrix as a whole, whose rows cannot be taken in pieces."""

_ONE_HOT: Final = (
    "One-hot rows say what an index says: F.embedding(index, weight) for one_hot @ weight, "
    "F.cross_entropy(logits, index, label_smoothing=...) for a loss, == for a mask. "
    "Where they are needed, make them of the type they are used in, by pieces."
)
_SCORES: Final = (
    "Compute it for some rows at a time, or only for those that are read: of a language model's "
    "last layer the next word needs the last position alone, x[:, -1:] (a model of transformers: "
    "logits_to_keep=1)."
)
_OF_PAIRS: Final = (
    "A layer that is applied to every pair makes its outputs for all of them: take some rows of "
    "one side at a time, each with its part of the loss and checkpointed; or fewer pairs."
)
_DECOMPOSED: Final = (
    "linalg is given the matrix of all pairs as a whole, and each step on the way there takes as "
    "much again: compute in place where nothing goes backward through it (mul_(), exp_(), "
    "diagonal().add_()); float32 takes half of float64; or take fewer points, or blocks of them."
)
_OUTER: Final = (
    "An outer product for each row is as large as a matrix of weights: take some rows at a time "
    "and reduce each part (vmap(..., chunk_size=n) of gradients for each sample); x.T @ y is their "
    "sum, and F.bilinear() what a layer computes of them."
)
_DENSE: Final = (
    "A dense matrix holds all the zeros as well: sparse @ x (torch.sparse.mm) multiplies by the "
    "sparse one as it is, and a graph's edges can be added up without a matrix "
    "(out.index_add_(0, target, x[source]))."
)
_JACOBIAN: Final = (
    "A Jacobian has a row for each output of each sample, and so has the basis that it is made of: "
    "take some samples at a time, and keep of each part what is read of it. Its product with a "
    "vector is torch.func.vjp() or jvp(), a Hessian's jvp() of grad(), without the matrix."
)
_EXAMPLE = """\
import torch
torch.manual_seed(0)
points = torch.randn(1024, 64, device="cuda")
"""


class EnlargedResult(Rule):
    """One operator makes a result with many times the elements of what it is given.

    `x[:, None] - y[None]` holds N x M x D numbers where only N x M distances are wanted; a product
    `x @ x.T` holds all pairs at once, which `topk()` or a softmax then reduces; `x[index]` copies a
    row for each of its neighbours; `repeat()` copies what `expand()` only looks at again; a one-hot
    row takes 8 bytes for each word of the vocabulary where one index says the same; the gradient of
    an embedding has a row for each word, also for those that no batch had. What is computed of such
    a result takes as much again. The rule sees operators, so it speaks on a virtual card and in
    predictions.
    """

    name: ClassVar[str] = "enlarged-result"
    problem: ClassVar[str] = "one operator makes much of little"
    kind: ClassVar[Kind] = Kind.FACT
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            (
                "(points[:, None] - points[None]).pow_(2).sum(-1).sqrt()",
                'torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")',
            ),
            setup=_EXAMPLE,
            before="far = (points[:, None] - points[None]).pow_(2).sum(-1).sqrt().amax().item()\n",
            rewritten=False,
            results=("far",),
            within=1e-3,
        ),
        mended(
            ("row.repeat(4096, 1, 1)", "row.expand(4096, -1, -1)"),
            setup="import torch\nrow = torch.randn(1, 64, 64, device='cuda')\n",
            before="rows = row.repeat(4096, 1, 1)\ntotal = rows[:, 0, 0].sum().item()\n",
            rewritten=False,
            results=("total",),
            within=1e-3,
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        share = _SHARE_IF_SHORT if is_short(trace) else _SHARE
        asked = sum(one.size for one in trace.enlarged if one.failed)
        least = max(_LEAST, share * ((trace.peak.allocated or 0) + asked))
        of_pairs = (one for one in trace.enlarged if one.op in _PAIRS and len(one.shape) > 2)
        paired = {int(np.prod(one.shape[:-1])) for one in of_pairs}
        for one in trace.enlarged:
            change = _cure(one) or (_OF_PAIRS if _positions(one) in paired else "")
            if _are_collected(cell, trace, one) or (
                _is_linear(one) and _are_read(trace.lives, one)
            ):
                change = ""
            if change and _is_linear(one) and not _trains(trace, cell, names):
                change = _SCORES
            if one.op in _PAIRS | _PRODUCTS and not _is_linear(one) and _decomposes(cell, one):
                change = _DECOMPOSED if trace.oom else ""
            if one.op.startswith("upsample") and one.layer:
                continue  # of a model: large is what its result has to be
            if not is_short(trace) and is_a_piece(cell, one):
                continue
            small = one.op in EMBEDDINGS and one.size >= _LEAST  # its three other tables are not
            if change and (one.size >= least or small):
                yield Advice(
                    self.name,
                    problem=_problem(one),
                    change=change + of_wide_numbers(cell, trace.lives, one),
                    line=None if one.cell else one.line,
                    size=None if one.failed else one.size,
                    saving=one.size,
                    known=Known.ESTIMATED,
                )
        yield from self._scattered(cell, trace, least)

    def _scattered(self, cell: Code, trace: Trace, least: float) -> Iterator[Advice]:
        """One-hot rows that `zeros(...).scatter_(dim, index, value)` writes, and what of their size
        is computed of them."""
        lives = trace.lives
        for call in cell.calls(".scatter_"):
            function, statement = cell.function(call), cell.statement(call)
            if len(call.args) != 3 or not _is_number(call.args[2]):
                continue
            made = cell.assigned(root(call.func), within=function) if root(call.func) else ()
            places = [statement, *made]
            born = np.logical_or.reduce([cell.born_in(place, lives) for place in places])
            rows = lives.size * (born & (lives.born == Phase.FORWARD))
            alike = lives.size == rows.max(initial=0)
            of = cell.born_in(function, lives) if function else born
            own = alike & (born | (of & ~lives.recorded))
            size = lives.bytes(own & lives.at_peak)
            if rows.any() and size >= least:
                yield Advice(
                    self.name,
                    problem=f"line {call.lineno} writes one-hot rows; {format_bytes(size)} of the "
                    "peak are these, and what is computed of them.",
                    change=_ONE_HOT,
                    line=call.lineno,
                    size=size,
                    saving=lives.saved_at_peak(own),
                    known=Known.ESTIMATED,
                )


def _trains(trace: Trace, cell: Code, names: Names) -> bool:
    """Whether a backward pass ran in the cell, or may have been about to."""
    lives = trace.lives
    if np.any(lives.born == Phase.BACKWARD):
        return True
    return bool(np.any(lives.recorded)) and not find_unused_graphs(trace, cell, names)


def _are_collected(cell: Code, trace: Trace, one: Enlarged) -> bool:
    """Whether they are results of many passes, which something keeps: each alone is not large."""
    kept = (g for g in grown(cell, trace) if g.passes >= one.count - 1 and not g.anew)
    return one.count >= _MANY and any(2 * growth.size >= one.size for growth in kept)


def _decomposes(cell: Code, one: Enlarged) -> bool:
    """Whether the function that makes all pairs, or what is around it, gives a matrix to linalg."""
    statement = cell.looped(one.line, one.cell)[0]
    within = cell.function(statement) if statement is not None else None
    words = (node.attr for node in cell.nodes(ast.Attribute, within=within))
    return len(set(one.shape[-2:])) == 1 and any(map(_WHOLE.fullmatch, words))


def _is_linear(one: Enlarged) -> bool:
    return one.layer == "linear"


def _are_read(lives: Lifetimes, one: Enlarged) -> bool:
    """Whether another layer has weights for so many inputs: then these are no classes."""
    weights = np.flatnonzero(lives.of(Category.PARAMETER)).tolist()
    shapes = (lives.tensor(row)[0] or () for row in weights)
    return any(len(shape) == 2 and shape[1] == one.shape[-1] for shape in shapes)


def _positions(one: Enlarged) -> int:
    """How many rows a linear layer was given; 0 of other results."""
    return int(np.prod(one.shape[:-1])) if _is_linear(one) else 0


def _is_number(value: ast.expr) -> bool:
    """Whether the same value is written everywhere: a number, or what is computed of numbers."""
    kinds = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Attribute, ast.Name)
    return isinstance(value, kinds) and not isinstance(value, ast.Name)


def _problem(one: Enlarged) -> str:
    of = " and ".join(dict.fromkeys(str([*shape]) for shape in one.operands))
    place = f"{one.cell + ' ' if one.cell else ''}line {one.line}" if one.line else "the cell"
    made = f"{one.op} makes {[*one.shape]}{of and f' of {of}'}"
    own, several = one.size - one.derived, f" in {one.count} results" if one.count > 1 else ""
    if not own:
        size = format_bytes(one.derived)
        return f"{place}: {made}, gone by then; what was computed of it holds {size}."
    what = "earlier ones" if one.failed and not several else "it"
    rest = f"; what was computed of {what}, {format_bytes(one.derived)}" if one.derived else ""
    verb = ("holds and asks for" if several else "asks for") if one.failed else "holds"
    return f"{place} {verb} {format_bytes(own)}{several}: {made}{rest}."


def _cure(one: Enlarged) -> str:
    """What to do in its place; "" where large is what it has to be."""
    if one.op in EMBEDDINGS:
        return (
            "The gradient of an embedding has a row for every entry, whether it was looked up or "
            "not, and Adam keeps two more tables: sparse=True where it is made, with SparseAdam or "
            "Adagrad, makes gradients of the looked-up rows only; SGD keeps no tables."
        )
    if one.op == "one_hot":
        return _ONE_HOT
    if one.op == "_to_dense":
        return _DENSE
    if one.layer == DERIVATIVES:
        return _JACOBIAN
    if one.op == "eye":
        return (
            "An identity matrix is N x N numbers for N ones. m.diagonal().add_(1) adds to the "
            "diagonal in place; a sparse tensor holds a graph's edges alone; rows that are looked "
            "up in it are one-hot, for which F.embedding(index, weight) reads the weights' rows."
        )
    if one.op == "im2col":
        return (
            "unfold() copies each element once for every window that it lies in: a convolution "
            "(F.conv2d with the weights in its form) computes the same sums without the copies; "
            "else take a few of the batch at a time."
        )
    if one.op.startswith("upsample"):
        return (
            "Enlarge some of them at a time, and keep of each what is wanted of it, such as a mask "
            "of 1 byte or the host's copy; F.interpolate() of half precision takes half."
        )
    if one.op in ("_linalg_svd", "linalg_qr"):
        return (
            f"The {max(one.shape)} x {max(one.shape)} matrix is that of all directions, most of "
            "which the input has nothing of: full_matrices=False (svd) or mode='reduced' (qr) "
            "leaves them out; for a few components, torch.pca_lowrank() or svd_lowrank()."
        )
    if one.op in _PRODUCTS:
        return _of_product(one)
    if one.op in _PAIRS and (len(one.operands) > 1 or one.op == "pow"):
        return _of_pairs(one)
    return of_rows(one)


def _of_product(one: Enlarged) -> str:
    if _is_linear(one):
        if not _are_classes(one.shape[-1], min(one.operands[-1], default=1)):
            return ""
        return (
            "Compute the last layer and the loss in pieces of the positions (each checkpointed "
            "where it is trained), or only for the positions that are needed; the loss takes as "
            "much again, twice."
        )
    if one.layer == "activation":
        return (
            "nn.MultiheadAttention makes all weights where need_weights is True, as it is unless "
            "told otherwise: where nobody reads them, its second result, need_weights=False lets "
            "F.scaled_dot_product_attention compute the first without holding them."
        )
    if one.op == "bmm" and one.operands[-1][-2:-1] == (1,):
        return _OUTER
    if len(one.shape) == 3:
        return (
            "If these are scores of attention, F.scaled_dot_product_attention computes the same "
            f"without holding them; else {ROWS}."
        )
    pairs = f"All pairs at once: {ROWS} (x[i:i+n] @ y.T, then topk() or sum())."
    alike = len(set(one.shape[-2:])) == 1
    if not alike and _are_classes(one.shape[-1], min(one.operands[-1], default=1)):
        return f"{pairs} Of logits: they and the loss in pieces of the positions."
    return pairs


def _are_classes(outputs: int, inputs: int) -> bool:
    return outputs >= min(_VOCABULARY, max(_WIDE, _MUCH_WIDER * inputs))


def _is_column_and_row(one: Enlarged) -> bool:
    """Whether [n, 1] and [n] were broadcast to [n, n]."""
    n = one.shape[-1]
    return set(one.operands) == {(n, 1), (n,)} and one.shape == (n, n)


def _of_pairs(one: Enlarged) -> str:
    if _is_column_and_row(one):
        return (
            f"A column of {one.shape[0]} numbers and a row of as many make all pairs: if they were "
            "to be taken one by one, both need one shape (.squeeze(1), or .view_as(the other)). "
            f"If pairs are meant, {ROWS}."
        )
    if len(one.shape) < 3:
        return f"All pairs at once: {ROWS}."
    if one.op == "mul" and {s[-2:].index(1) for s in one.operands if 1 in s[-2:]} == {0, 1}:
        return _OUTER
    if one.op in ("mul", "div"):
        return (
            "A sum of products of all pairs is a matrix product: (a[:, None] * b).sum(-1) is "
            f"a @ b.T, and cosine similarity F.normalize(a) @ F.normalize(b).T. Or {ROWS}."
        )
    of_vectors = all(s[-1:] in ((), one.shape[-1:]) for s in one.operands)  # not triples of numbers
    if one.op in _DIFFERENCES and of_vectors:
        return (
            "Distances of all pairs do not need the differences: torch.cdist(a, b) holds only "
            f"N x M of them. Where they are something else, {ROWS}."
        )
    return f"All pairs at once: {ROWS}."
