"""Runs what IPython does not run for us: `%gpumem STATEMENT`, and `%%gpumem` inside a cell."""

from __future__ import annotations

import ast
from typing import Any

from gpumem_magic.events import Cell
from gpumem_magic.magics.display import show
from gpumem_magic.magics.monitor import Monitor, harmless
from gpumem_magic.magics.options import Request


def run_measured(monitor: Monitor, request: Request, code: str, above: int, raw: str) -> Any:
    """Run `code` in the user's namespace and measure it; the value of its last expression.

    above: lines of `raw`, the text shown in the Report, that stand above the code. Inside another
    measured cell the code just runs. Errors of the code go through, after the Report.
    """
    shell = monitor.shell
    cell, text = as_cell(shell, code, above, raw)
    if monitor.measuring:
        return _run(shell, text, cell.filename)
    started = False
    with harmless("starting to measure"):
        started = monitor.start(request)
    error = None
    try:
        return _run(shell, text, cell.filename)
    except BaseException as raised:
        error = raised
        raise
    finally:
        if started:
            with harmless("measuring"):
                reports = monitor.stop(request, cell, error)
                show(shell, reports, request, monitor.settings.plot)
        del error  # it would hold this frame, and the frame everything that the code held


def as_cell(shell: Any, code: str, above: int, raw: str) -> tuple[Cell, str]:
    """The cell that holds `code`, and the code as Python with true line numbers; SyntaxErrors go
    through, before anything is changed."""
    text = "\n" * (above + _leading_blank(code)) + str(shell.transform_cell(code))
    running = shell.displayhook.exec_result
    number = running.execution_count if running else None
    filename = shell.compile.cache(text, number or shell.execution_count, raw_code=raw)
    shell.compile.ast_parse(text, filename)
    return Cell(raw, filename, number), text


def _leading_blank(code: str) -> int:
    """Blank lines on top of the code, which IPython's transformers take away."""
    return len(code[: len(code) - len(code.lstrip())].splitlines()) if code.strip() else 0


def _run(shell: Any, text: str, filename: str) -> Any:
    tree = shell.transform_ast(shell.compile.ast_parse(text, filename))
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not text.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    exec(shell.compile(tree, filename, "exec"), shell.user_global_ns, shell.user_ns)
    if last is None:
        return None
    return eval(shell.compile(last, filename, "eval"), shell.user_global_ns, shell.user_ns)
