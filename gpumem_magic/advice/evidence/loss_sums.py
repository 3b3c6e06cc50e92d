"""Reads how a sum or mean of gathered losses is written."""

from __future__ import annotations

import ast

from gpumem_magic.advice.code import Code


def divisor_of(cell: Code, loop: ast.For, value: ast.expr, name: str, listed: bool) -> str | None:
    """By what an expression divides the sum of the losses under a name; None: it is no such sum."""
    match value:
        case ast.Name(id=same) if same == name and not listed:
            return ""
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            inner = divisor_of(cell, loop, left, name, listed)
            return cell.text(right) if inner == "" else None
        case ast.Call(func=ast.Name(id="sum"), args=[ast.Name(id=same)], keywords=[]):
            return "" if same == name and listed else None
        case ast.Call(
            func=ast.Attribute(
                value=ast.Call(args=[ast.Name(id=same)], keywords=[]) as stack, attr=how
            ),
            args=[],
            keywords=[],
        ) if same == name and listed and cell.dotted(stack.func) == "torch.stack":
            if how == "sum":
                return ""
            return length_of(cell, loop.iter) if how == "mean" else None
        case ast.Call(args=[inner], keywords=[], func=func) if cell.dotted(func) in (
            "torch.mean",
            "torch.sum",
        ):
            match inner:
                case ast.Call(args=[ast.Name(id=same)], keywords=[], func=stack_of) if (
                    same == name and listed and cell.dotted(stack_of) == "torch.stack"
                ):
                    mean = cell.dotted(func) == "torch.mean"
                    return length_of(cell, loop.iter) if mean else ""
    return None


def length_of(cell: Code, source: ast.expr) -> str | None:
    """How many rounds a loop over an expression makes, as text; None where that is not known."""
    match source:
        case ast.Name():
            return f"len({source.id})"
        case ast.Call(func=ast.Name(id="range"), args=[count], keywords=[]):
            return cell.text(count)
        case ast.Call(func=ast.Name(id="enumerate" | "zip"), args=[first, *_]):
            return length_of(cell, first)
        case ast.Call(func=ast.Attribute(attr="split" | "chunk")):
            return f"len({cell.text(source)})"
    return None
