"""Advice as text: below a report, measured by dry runs, as a change, and what the rules say."""

from __future__ import annotations

from collections.abc import Iterator

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.advice import wording as words
from gpumem_magic.renderers.columns import WIDTH, fit, left, right, wrap
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Example
from gpumem_magic.values.assessment import Assessment, Change, RulePage, RulePages
from gpumem_magic.values.report import Report

_MARGIN = "     "
_ROWS = 12  # of a change, below a report or an assessment; --apply shows all of them


def advice_rows(report: Report) -> list[str]:
    """The section of a report's text; nothing where there is no advice."""
    if not report.advice:
        return []
    rows = ["Advice"]
    for number, advice in enumerate(words.offered(report.advice), 1):
        rows += _piece(report, number, advice)
    more = words.hidden(report.advice)
    return [
        *rows,
        *([f"  {more}"] if more else []),
        *wrap(f"  {words.way_on(report.advice)}", "  "),
    ]


def _piece(report: Report, number: int, advice: Advice) -> Iterator[str]:
    facts = ", ".join(filter(None, (words.saving(advice, report), words.how_known(advice))))
    name = wording.visible(advice.rule)
    yield from wrap(f"  {number}  {name}{f': {facts}' if facts else ''}", _MARGIN)
    yield from _told(report, advice)


def _told(report: Report, advice: Advice) -> Iterator[str]:
    yield from wrap(f"{_MARGIN}{wording.visible(advice.problem)}", _MARGIN)
    yield from wrap(f"{_MARGIN}{words.what_to_do(advice)}", _MARGIN)
    if advice.source is not None:
        yield from _difference(report.cell.source, advice.source, _ROWS)


def _difference(before: str, after: str, most: int | None = None) -> Iterator[str]:
    changed = words.difference(before, after)
    if most is not None and len(changed) == most + 1:
        most += 1
    for row in changed[:most]:
        yield _line(row)
    if most is not None and len(changed) > most:
        yield f"{_MARGIN}  ... and {len(changed) - most} more lines"


def _line(row: words.Changed, columns: int | None = WIDTH) -> str:
    text = wording.visible(row.text)
    whole = f"{_MARGIN}  {row.sign or ' '} {text}"
    return whole.rstrip() if columns is None else fit(whole, columns).rstrip()


def assessment_text(assessment: Assessment) -> str:
    """What each change saves, for a terminal of 80 columns."""
    title = f"{wording.title(assessment.report)} · advice for {words.card(assessment)}"
    head = [*wrap(title), words.made_by(assessment), *wrap(words.as_it_is(assessment), "  ")]
    sections = [
        head,
        _changes(assessment),
        _useless(assessment),
        [row for note in words.failures(assessment) for row in wrap(f"note: {note}", "      ")],
        wrap(words.apply_line(assessment)),
    ]
    rows = "\n\n".join("\n".join(section) for section in sections if section)
    return "\n".join(row.rstrip() for row in rows.split("\n"))


def _changes(assessment: Assessment) -> list[str]:
    if not assessment.advice:
        return wrap(words.nothing_found(assessment))
    rows = [f"{'Change':<36}{'before':>13}{'after':>13}{'saves':>13}"]
    shown = words.offered(assessment.advice)
    for number, advice in enumerate(shown, 1):
        rows += _measured(assessment, number, advice)
    if more := words.hidden(assessment.advice):
        rows.append(f"  {more}")
    if assessment.together is not None:
        rows += _sizes(len(shown) + 1, assessment.together)
        rows += wrap(f"{_MARGIN}{wording.visible(assessment.together.problem)}", _MARGIN)
    return rows


def _measured(assessment: Assessment, number: int, advice: Advice) -> Iterator[str]:
    if advice.before is None:
        yield from _piece(assessment.report, number, advice)
        return
    yield from _sizes(number, advice)
    yield from _told(assessment.report, advice)


def _sizes(number: int, advice: Advice) -> Iterator[str]:
    sizes = (advice.before, advice.after, advice.saving)
    numbers = "".join(right(format_bytes(size), 13) for size in sizes)
    yield left(f"{number:>3}  {wording.visible(advice.rule)}", 36) + numbers
    yield from wrap(f"{_MARGIN}{words.measured(advice)}", _MARGIN)


def _useless(assessment: Assessment) -> list[str]:
    if not assessment.useless:
        return []
    rows = ["Popular tips that do not help here, measured as well"]
    for advice in assessment.useless:
        rows += wrap(f"  {words.unhelpful(advice)}", _MARGIN)
    return rows


def change_text(change: Change) -> str:
    """A change with all its lines; these are not cut."""
    rows = words.difference(change.source, change.advice.source or "")
    lines = [_line(row, None) for row in rows]
    return "\n".join([*wrap(words.applied(change.number, change.advice), "  "), "", *lines])


def pages_text(pages: RulePages) -> str:
    """The rules, for a terminal of 80 columns."""
    note = [*wrap(pages.note), ""] if pages.note else []
    if not pages.in_full:
        return "\n".join([*note, *_list(pages)])
    return "\n\n".join("\n".join([*note, *_page(page)]) for page in pages.pages)


def _list(pages: RulePages) -> Iterator[str]:
    for page in pages.pages:
        yield page.name
        yield from wrap(f"{_MARGIN}{page.problem}", _MARGIN)
        yield f"{_MARGIN}{words.KINDS[page.kind]}"
    yield ""
    yield "%gpucheck --explain RULE tells more of one."


def _page(page: RulePage) -> Iterator[str]:
    yield from wrap(f"{page.name}: {page.problem}")
    yield words.KINDS[page.kind]
    for paragraph in page.text:
        yield ""
        yield from wrap(paragraph)
    for number, example in enumerate(page.examples, 1):
        yield ""
        yield f"Example {number}"
        yield from _example(example)


def _example(example: Example) -> Iterator[str]:
    yield from _difference(example.before, example.after)
