"""What to do in place of copies of the same rows: looked up, repeated, seen in windows."""

from __future__ import annotations

from typing import Final

import numpy as np

from gpumem_magic.trace.enlarged import LOOKUPS
from gpumem_magic.values.findings import Enlarged

ROWS: Final = "take the rows in pieces, and reduce each piece before the next"

_TIMES: Final = 4
_COPIES: Final = frozenset({"repeat", "clone", "repeat_interleave", "_to_copy"})


def of_rows(one: Enlarged) -> str:
    """What to do in place of copies of the same rows."""
    if _is_of_pairs(one):
        return (
            "A row of the table for every pair of positions repeats the same few rows. Where "
            "queries are multiplied by them, (q @ table.T).gather(-1, index) holds a number for "
            f"each pair in place of a row; else {ROWS}."
        )
    if _is_of_edges(one) and one.op == "embedding":
        return (
            "A row of the table is copied for every index that means it, such as each pair of a "
            "user and an item: take some of the indices at a time, and keep of their rows what is "
            "wanted, such as a score."
        )
    if (_is_of_edges(one) and len(one.shape) == 2) or _is_of_heads(one):
        return (
            "Each row is copied for every index that means it, such as the edges of a graph: add "
            "up the results of some of the indices at a time (index_add_, scatter), or multiply by "
            "a sparse matrix, which holds no row twice. What is computed of them takes as much "
            "again each: fewer features before they are looked up, and fewer edges in a batch."
        )
    if _is_of_edges(one) or _is_of_neighbours(one):
        return (
            "Each row is copied for every index that means it, such as those of neighbours, and "
            "all that is computed of the copies takes as much again each. A linear layer of the "
            "rows, before they are looked up, is computed once for each: lin(x)[index] in place of "
            "lin(x[index]). A sum or a maximum of those of one place can be taken for some places "
            "at a time, each part under torch.utils.checkpoint where it is trained."
        )
    if _are_matrices(one):
        return (
            "A whole matrix is copied for every index that means it, such as the weights of each "
            "token's expert: go through the matrices, which are fewer, and take together what "
            "means the same (x[index == i] @ w[i]); else some of the indices at a time."
        )
    if one.op in ("clone", "_to_copy") and len(one.shape) > len(one.operands[0]):
        return (
            "Windows that overlap copy each element once for every window that it lies in: "
            "unfold() alone only looks at them, and reshape() or contiguous() copies. Copy those "
            "of one batch at a time."
        )
    if one.op in _COPIES:
        return (
            "expand() gives the same values without a copy, and broadcasting needs neither; keys "
            "and values of grouped attention: scaled_dot_product_attention(..., enable_gqa=True)."
        )
    return ""


def _is_of_pairs(one: Enlarged) -> bool:
    """Whether rows of a table of distances were looked up for each pair of positions: L x L x D of
    at most 4 L rows, as those of distances in an image are."""
    if one.op not in LOOKUPS or len(one.shape) < 3 or not one.operands:
        return False
    rows, columns, width = one.shape[-3:]
    most = 2 * rows + 1 if one.op == "embedding" else 4 * rows  # of words there may be as few
    tables = [t for t in one.operands if len(t) == 2 and t[1] == width and t[0] <= most]
    return rows == columns and bool(tables)


def _is_of_edges(one: Enlarged) -> bool:
    """Whether rows were looked up by an index that means each of them several times, of each of a
    batch; of words, of which an embedding is given a table of texts, there may be as few."""
    *batch, rows, width = 0, 0, *one.shape
    sources = [s for s in one.operands if len(s) == len(one.shape) and s[-1] == width > 1]
    return (
        one.op in LOOKUPS
        and (len(one.shape) == 2 or one.op in ("gather", "index_select"))
        and any([*s[:-2]] == batch[2:] and s[-2] * _TIMES <= rows for s in sources)
    )


def _is_of_heads(one: Enlarged) -> bool:
    """Whether rows of several heads each were looked up: there are more of them than each has
    numbers, which no weights of experts are."""
    return _are_matrices(one) and any(s[0] > np.prod(s[1:]) for s in one.operands if len(s) > 2)


def _are_matrices(one: Enlarged) -> bool:
    """Whether matrices were looked up by an index that means each of them several times."""
    return one.op in LOOKUPS and any(
        len(s) > 2 and s[1:] == one.shape[1:] and s[0] * _TIMES <= one.shape[0]
        for s in one.operands
    )


def _is_of_neighbours(one: Enlarged) -> bool:
    """Whether several of the same rows were looked up for each of many places: [N, k, D] of [M, D],
    as the nearest points are."""
    if one.op not in LOOKUPS - {"embedding"} or len(one.shape) < 3:
        return False
    *batch, _, near, width = one.shape
    sources = [s for s in one.operands if len(s) > 1 and s[-1] == width > 1]
    return any(
        s[-2] >= _TIMES * near and np.prod(s) * _TIMES <= np.prod(one.shape)
        for s in sources
        if len(s) == 2 or [*s[:-2]] == batch
    )
