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
    text = "\n" * (above + _leading_blank(code)) + _python(shell, code)
    filename = shell.compile.cache(text, shell.execution_count, raw_code=raw)
    shell.compile.ast_parse(text, filename)  # what is no Python changes no device
    running = shell.displayhook.exec_result
    cell = Cell(raw, filename, running.execution_count if running else None)
    if monitor.measuring:
        return _run(shell, text, filename)
    started = False
    with harmless("starting to measure"):
        started = monitor.start(request)
    error = None
    try:
        return _run(shell, text, filename)
    except BaseException as raised:
        error = raised
        raise
    finally:
        if started:
            with harmless("measuring"):
                reports = monitor.stop(request, cell, error)
                show(shell, reports, request, monitor.settings.plot)
        del error  # it would hold this frame, and the frame everything that the code held


def _leading_blank(code: str) -> int:
    """Blank lines on top of the code, which IPython's transformers take away."""
    return len(code[: len(code) - len(code.lstrip())].splitlines()) if code.strip() else 0


def _python(shell: Any, code: str) -> str:
    return str(shell.transform_cell(code))


def _run(shell: Any, text: str, filename: str) -> Any:
    tree = shell.transform_ast(shell.compile.ast_parse(text, filename))
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not text.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    exec(shell.compile(tree, filename, "exec"), shell.user_global_ns, shell.user_ns)
    if last is None:
        return None
    return eval(shell.compile(last, filename, "eval"), shell.user_global_ns, shell.user_ns)
