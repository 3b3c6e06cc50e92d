"""How reports reach the user: rich output in a notebook, plain text in a terminal."""

from __future__ import annotations

import sys
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from gpumem_magic.magics.options import Request
from gpumem_magic.renderers.text import summary_line
from gpumem_magic.report import Report


def show(
    shell: InteractiveShell, reports: tuple[Report, ...], request: Request, plot: bool
) -> None:
    """Show what `request` wants to see of its reports."""
    for report in reports if not request.quiet else ():
        if request.brief:
            tell(summary_line(report))
        else:
            show_report(shell, report, plot and request.plot)


def show_report(shell: InteractiveShell, report: Any, plot: bool = True) -> None:
    """Show a report, a comparison or a history; the figure only where `plot`."""
    formatter = shell.display_formatter
    if formatter is None or "text/html" not in formatter.active_types:
        tell(report.text())  # a terminal needs no figure, and so no matplotlib
    else:
        display(report)  # type: ignore[no-untyped-call]


def tell(text: str) -> None:
    """Print an answer."""
    print(text)  # noqa: T201


def warn(text: str) -> None:
    """Print one line about the extension itself, apart from what the user's code prints."""
    print(f"gpumem_magic: {text}", file=sys.stderr)  # noqa: T201
