"""An explained out-of-memory text: number by number, what it reads as, what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from gpumem_magic.oom_text import Explanation, Fact
from gpumem_magic.renderers.columns import left, right, wrap
from gpumem_magic.renderers.markup import CELL, EMPTY, NAME, ROOT, Markup, element, table
from gpumem_magic.renderers.predicted import frame
from gpumem_magic.units import format_bytes

_SIZE, _LABEL = 15, 16


def explained_text(explanation: Explanation) -> str:
    """The explanation for a terminal of 80 columns."""
    printed = [fact for fact in explanation.facts if not fact.derived]
    derived = [fact for fact in explanation.facts if fact.derived]
    sections = [
        _head(explanation),
        wrap(explanation.verdict),
        _facts("What it says", printed),
        _facts("What follows from it", derived),
        _listed("What it does not tell", [f"- {reason}" for reason in explanation.untold]),
        _listed("What to do next", _numbered(explanation.steps)),
    ]
    rows = "\n\n".join("\n".join(section) for section in sections if section)
    return "\n".join(row.rstrip() for row in rows.split("\n"))


def explained_html(explanation: Explanation) -> str:
    """The explanation as one <div> with inline styles."""
    known = explanation.reading.written_by
    return element(
        "div",
        element("div", element("strong", explanation.headline), style="font-size:1.1em"),
        element("div", f"as {known} writes it", style="opacity:0.75") if known else EMPTY,
        element("div", explanation.verdict, style=frame()),
        _table(explanation.facts),
        _list("What it does not tell", [f"• {reason}" for reason in explanation.untold]),
        _list("What to do next", _numbered(explanation.steps)),
        style=ROOT,
    )


def _head(explanation: Explanation) -> list[str]:
    known = explanation.reading.written_by
    return [*wrap(explanation.headline), *([f"as {known} writes it"] if known else [])]


def _facts(title: str, facts: Sequence[Fact]) -> list[str]:
    rows = [row for fact in facts for row in _fact(fact)]
    return [title, *rows] if rows else []


def _fact(fact: Fact) -> list[str]:
    start = f"{right(size_text(fact), _SIZE)}  {left(fact.label, _LABEL)} "
    return wrap(start + fact.meaning, " " * (_SIZE + _LABEL + 3))


def size_text(fact: Fact) -> str:
    """The size as printed, or "about" it where it is a difference of rounded numbers."""
    if fact.size is None:
        return "unknown"
    if fact.derived and fact.size.margin >= fact.size.about:
        return f"below {format_bytes(fact.size.high)}"
    about = "about " if fact.derived else ""
    return f"{about}{format_bytes(fact.size.about)}"


def _listed(title: str, items: Sequence[str]) -> list[str]:
    rows = [row for item in items for row in wrap(f"  {item}", "     ")]
    return [title, *rows] if rows else []


def _numbered(steps: Sequence[str]) -> list[str]:
    return [f"{number}. {step}" for number, step in enumerate(steps, 1)]


def _table(facts: Sequence[Fact]) -> Markup:
    if not facts:
        return EMPTY
    return table("Number by number", ("", "size", ""), [_row(fact) for fact in facts])


def _row(fact: Fact) -> Markup:
    meaning = f"{CELL.replace('nowrap', 'normal')};text-align:left"
    faint = "background:transparent;opacity:0.8" if fact.derived else "background:transparent"
    return element(
        "tr",
        element("th", fact.label, scope="row", style=f"{NAME};white-space:nowrap"),
        element("td", size_text(fact), style=CELL),
        element("td", fact.meaning, style=meaning),
        style=faint,
    )


def _list(title: str, items: Sequence[str]) -> Markup:
    entries = [element("div", item, style="padding:0 8px 0 20px") for item in items]
    name = element("div", title, style="font-weight:600;padding:2px 8px;margin:14px 0 0 0")
    return element("div", name, *entries) if entries else EMPTY
