"""Answers about memory in every form: text, HTML, plain values, files."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpumem_magic.oom_text import Explanation
from gpumem_magic.renderers.advice.html import assessment_html, change_html, pages_html
from gpumem_magic.renderers.advice.text import assessment_text, change_text, pages_text
from gpumem_magic.renderers.explained import explained_html, explained_text
from gpumem_magic.renderers.formats.csv import field
from gpumem_magic.renderers.formats.files import page, write
from gpumem_magic.renderers.formats.json import FORMAT, encode
from gpumem_magic.renderers.inventory.html import inventory_html
from gpumem_magic.renderers.inventory.names import breakdowns_html, breakdowns_text
from gpumem_magic.renderers.inventory.text import inventory_text, recovery_html, recovery_text
from gpumem_magic.renderers.markup import Markup
from gpumem_magic.values.answer import View
from gpumem_magic.values.assessment import Assessment, Change, RulePages
from gpumem_magic.values.inventory import Breakdown, Breakdowns, Holding, Inventory, Recovery

_COLUMNS = (
    *("kind", "name", "size", "count", "category", "shape", "dtype", "cell", "line", "also"),
    *("unneeded", "newest"),
)


def view_text(view: View) -> str:
    """The answer for a terminal of 80 columns."""
    if isinstance(view, Inventory):
        return inventory_text(view)
    if isinstance(view, Recovery):
        return recovery_text(view)
    if isinstance(view, Explanation):
        return explained_text(view)
    if isinstance(view, Assessment):
        return assessment_text(view)
    if isinstance(view, Change):
        return change_text(view)
    if isinstance(view, RulePages):
        return pages_text(view)
    return breakdowns_text(_breakdowns(view))


def view_html(view: View) -> str:
    """The answer as one <div> with inline styles."""
    if isinstance(view, Inventory):
        return inventory_html(view)
    if isinstance(view, Recovery):
        return recovery_html(view)
    if isinstance(view, Explanation):
        return explained_html(view)
    if isinstance(view, Assessment):
        return assessment_html(view)
    if isinstance(view, Change):
        return change_html(view)
    if isinstance(view, RulePages):
        return pages_html(view)
    return breakdowns_html(_breakdowns(view))


def view_dict(view: View) -> dict[str, Any]:
    """The answer as plain values, with the format number and what it is."""
    return {"format": FORMAT, "what": type(view).__name__.lower(), **encode(view)}


def save_view(view: View, path: str | os.PathLike[str]) -> None:
    """Write the answer in the form that the suffix says. Raises ValueError for another one."""
    forms: dict[str, Callable[[], str | bytes]] = {
        ".json": lambda: json.dumps(view_dict(view), allow_nan=False),
        ".html": lambda: page((), above=Markup(view_html(view))),
        ".txt": lambda: view_text(view) + "\n",
    }
    if isinstance(view, (Inventory, Recovery, Breakdown, Breakdowns)):
        forms[".csv"] = lambda: _csv(_holdings(view))
    write(Path(path), forms)


def _breakdowns(view: View) -> tuple[Breakdown, ...]:
    if isinstance(view, Breakdowns):
        return view.breakdowns
    if isinstance(view, Breakdown):
        return (view,)
    raise TypeError(f"no view of a {type(view).__name__}")


def _holdings(view: View) -> Sequence[Holding]:
    if isinstance(view, (Inventory, Recovery)):
        return view.holdings
    return [part for breakdown in _breakdowns(view) for part in breakdown.parts]


def _csv(holdings: Sequence[Holding]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for holding in holdings:
        values = encode(holding)
        writer.writerow([_cell(values[column]) for column in _COLUMNS])
    return buffer.getvalue()


def _cell(value: object) -> object:
    return field(", ".join(map(str, value)) if isinstance(value, list) else value)
