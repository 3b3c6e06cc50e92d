"""How reports reach the user: rich output in a notebook, plain text in a terminal."""

from __future__ import annotations

import sys
from typing import Protocol

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from gpumem_magic.magics.options import Request
from gpumem_magic.renderers import mimebundle, post_mortem_bundle
from gpumem_magic.renderers.advice_wording import offered
from gpumem_magic.renderers.post_mortem import post_mortem_text
from gpumem_magic.renderers.text import report_text, summary_line
from gpumem_magic.report import Report


class Text(Protocol):
    """What can be shown in a notebook as it is, and in a terminal as text."""

    def text(self) -> str:
        """The whole of it in 80 columns."""


def show(
    shell: InteractiveShell, reports: tuple[Report, ...], request: Request, plot: bool
) -> None:
    """Show what `request` wants to see of its reports."""
    for report in reports if not request.quiet else ():
        if request.brief and report.oom:
            show_post_mortem(shell, report)
        elif request.brief:
            rules = ", ".join(dict.fromkeys(advice.rule for advice in offered(report.advice)))
            tell(summary_line(report) + (f" · advice: {rules}" if rules else ""))
        else:
            show_report(shell, report, plot and request.plot)


def show_report(shell: InteractiveShell, report: Report, plot: bool) -> None:
    """Show a report in full, the figure only if `plot`."""
    if is_rich(shell):
        display(mimebundle(report, plot), raw=True)  # type: ignore[no-untyped-call]
    else:
        tell(report_text(report))  # a terminal needs no figure, and so no matplotlib


def show_post_mortem(shell: InteractiveShell, report: Report) -> None:
    """Show what a report says of an out-of-memory error, without the rest of it."""
    if is_rich(shell):
        display(post_mortem_bundle(report), raw=True)  # type: ignore[no-untyped-call]
    else:
        tell(post_mortem_text(report))


def show_text(shell: InteractiveShell, found: Text) -> None:
    """Show a history or a comparison."""
    if is_rich(shell):
        display(found)  # type: ignore[no-untyped-call]
    else:
        tell(found.text())


def is_rich(shell: InteractiveShell) -> bool:
    """Whether HTML is shown."""
    formatter = shell.display_formatter
    return formatter is not None and "text/html" in formatter.active_types


def tell(text: str) -> None:
    """Print an answer."""
    print(text)  # noqa: T201


def warn(text: str) -> None:
    """Print one line about the extension itself, apart from what the user's code prints."""
    print(f"gpumem_magic: {text}", file=sys.stderr)  # noqa: T201
