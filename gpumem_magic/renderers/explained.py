"""What --explain tells: an out-of-memory text, number by number, and what rules say."""

from __future__ import annotations

from collections.abc import Sequence

from gpumem_magic.oom_text import Explanation, Fact, Origin, rough
from gpumem_magic.renderers.advice import KINDS, difference
from gpumem_magic.renderers.document import (
    Document,
    Folded,
    Line,
    Piece,
    Row,
    Section,
    Span,
    Style,
    Table,
)
from gpumem_magic.renderers.wording import counted
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Kind
from gpumem_magic.values.assessment import RulePage, RulePages


def explained_document(explanation: Explanation) -> Document:
    """What a text means and what to do; its numbers on demand."""
    known = explanation.reading.written_by
    printed = [fact for fact in explanation.facts if not fact.derived]
    derived = [fact for fact in explanation.facts if fact.derived]
    untold = [("- ", reason) for reason in explanation.untold]
    steps = [(f"{number}. ", step) for number, step in enumerate(explanation.steps, 1)]
    writer = (Line(f"as {known} writes it", Style.FAINT),) if known else ()
    numbers = (
        Section(_table("What it says", printed)),
        Section(_table("What follows from it", derived)),
        Section((*_listed("What it does not tell", untold), *writer)),
    )
    headline = Span(explanation.headline, Style.STRONG)
    if explanation.reading.origin is Origin.NONE and explanation.untold:
        said = f": {'; '.join(explanation.untold)}. {' '.join(explanation.steps)}"
        return (Section((Line((headline, said)),)),)
    return (
        Section((Line(headline),)),
        Section((Line(explanation.verdict),), alarm=True),
        Section(_listed("What to do next", steps)),
        *((Folded("Details \u00b7 each number, and what is not told", numbers),) if untold else ()),
    )


def _table(title: str, facts: Sequence[Fact]) -> tuple[Piece, ...]:
    rows = tuple(
        Row((fact.label, size_text(fact)), (Line(fact.meaning, Style.FAINT),)) for fact in facts
    )
    return (Table(title, ("", "size"), rows),) if rows else ()


def size_text(fact: Fact) -> str:
    """The size as printed, or "about" it where it is a difference of rounded numbers."""
    if fact.size is None:
        return "unknown"
    if fact.derived and fact.size.margin >= fact.size.about:
        return f"below {format_bytes(fact.size.high)}"
    return rough(fact.size) if fact.derived else format_bytes(fact.size.about)


def _listed(title: str, items: Sequence[tuple[str, str]]) -> tuple[Piece, ...]:
    if not items:
        return ()
    return (Line(title, Style.HEADING), *(Line(item, indent=1, mark=mark) for mark, item in items))


def pages_document(pages: RulePages) -> Document:
    """The rules: a list, or all that is said of each."""
    note = Section((Line(pages.note),) if pages.note else ())
    if pages.in_full:
        return (note, *(section for page in pages.pages for section in _page(page)))
    by_kind = {kind: [one for one in pages.pages if one.kind is kind] for kind in KINDS}
    return (
        note,
        *(_of_kind(kind, rules) for kind, rules in by_kind.items() if rules),
        Section((Line("%gpucheck --explain RULE tells more of one.", Style.FAINT),)),
    )


def _of_kind(kind: Kind, pages: Sequence[RulePage]) -> Folded:
    rows = tuple(Row((Span(one.name, Style.STRONG),), (Line(one.problem),)) for one in pages)
    table = Table(KINDS[kind].capitalize(), ("",), rows)
    said = f"{counted(len(rows), 'rule')} \u00b7 {KINDS[kind]}"
    return Folded(said, (Section((table,)),))


def _page(page: RulePage) -> Document:
    title = Line((Span(page.name, Style.STRONG), f": {page.problem}"))
    examples = tuple(
        Section(
            (
                Line(f"Example {number}", Style.HEADING),
                difference(example.before, example.after, whole=True),
            )
        )
        for number, example in enumerate(page.examples, 1)
    )
    rest = examples[1:]
    more = (Folded(counted(len(rest), "more example"), rest),) if rest else ()
    prose = (Section((Line(_prose(text)),)) for text in page.text)
    return (
        Section((title, Line(KINDS[page.kind], Style.FAINT))),
        *prose,
        *examples[:1],
        *more,
    )


def _prose(text: str) -> tuple[Span, ...]:
    """A paragraph with what stands between backticks as code."""
    parts = enumerate(text.split("`"))
    return tuple(Span(part, Style.CODE if i % 2 else Style.PLAIN) for i, part in parts)
