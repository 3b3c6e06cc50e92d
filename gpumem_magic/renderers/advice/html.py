"""Advice as HTML with inline styles: what `advice.py` has as text."""

from __future__ import annotations

from collections.abc import Iterator

from gpumem_magic.renderers import markup, wording
from gpumem_magic.renderers.advice import wording as words
from gpumem_magic.renderers.figure.palette import ALARM, ALLOCATED
from gpumem_magic.renderers.markup import CAPTION, EMPTY, ROOT, Markup, element, join, row, table
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Saves
from gpumem_magic.values.assessment import Assessment, Change, RulePage, RulePages
from gpumem_magic.values.report import Report

_ROWS = 200  # of a change; more would weigh on the notebook's file
_FAINT = "opacity:0.75;font-size:0.92em"
_PIECE = "padding:4px 8px;border-top:1px solid rgba(128,128,128,0.25)"
_CODE = (
    "padding:4px 0;margin:4px 0;overflow-x:auto;font-size:0.95em;line-height:1.45;"
    "border:1px solid rgba(128,128,128,0.25);border-radius:3px;background:transparent;"
    "color:inherit;font-family:ui-monospace, Menlo, Consolas, monospace"
)
_INSIDE = "white-space:normal;max-width:460px;overflow-wrap:anywhere"
"""In a table: long lines scroll or break, and leave room for the numbers."""

_BACK = {"+": "rgba(46,158,68,0.18)", "-": "rgba(204,102,51,0.18)"}


def advice_markup(report: Report) -> Markup:
    """The section of a report's HTML; nothing where there is no advice."""
    if not report.advice:
        return EMPTY
    entries = [
        _piece(report, number, advice)
        for number, advice in enumerate(words.offered(report.advice), 1)
    ]
    return element(
        "div",
        element("div", "Advice", style=CAPTION),
        *entries,
        *_remarks(words.hidden(report.advice), words.way_on(report.advice)),
        style="margin:14px 0 0 0",
    )


def _piece(report: Report, number: int, advice: Advice) -> Markup:
    known = words.how_known(advice)
    facts = [element("strong", f"{number}  {advice.rule}"), words.saving(advice, report)]
    head = join(*(join("  " if i else "", fact) for i, fact in enumerate(filter(None, facts))))
    faint = element("span", f", {known}", style="opacity:0.75") if known else EMPTY
    return element("div", element("div", head, faint), _told(report, advice), style=_PIECE)


def _told(report: Report, advice: Advice) -> Markup:
    parts = [element("div", text) for text in (advice.problem, words.what_to_do(advice)) if text]
    if advice.source is not None:
        shown = difference(report.cell.source, advice.source)
        summary = element("summary", "the changed code", style="cursor:pointer;opacity:0.85")
        parts.append(element("details", summary, shown))
    return join(*parts)


def difference(before: str, after: str) -> Markup:
    """The lines of a change, removed ones reddish, added ones greenish, each with its sign."""
    changed = words.difference(before, after)
    rows = [_line(row) for row in changed[:_ROWS]]
    cut = len(changed) - _ROWS
    more = markup.small(f"... and {cut} more lines") if cut > 0 else EMPTY
    return join(element("div", *rows, dir="ltr", style=_CODE), more)


def _line(changed: words.Changed) -> Markup:
    style = "white-space:pre;padding:0 8px;min-width:max-content"
    if changed.sign in _BACK:
        style += f";background:{_BACK[changed.sign]}"
    return element("div", f"{changed.sign or ' '} {changed.text}", style=style)


def assessment_html(assessment: Assessment) -> str:
    """What each change saves, as one <div>."""
    title = wording.title(assessment.report)
    below = f"advice for {words.card(assessment)} · {words.made_by(assessment)}"
    return element(
        "div",
        element("div", element("strong", title), style="font-size:1.1em"),
        element("div", below, style="opacity:0.75"),
        element("div", words.as_it_is(assessment)),
        _changes(assessment),
        _useless(assessment),
        *_remarks(*words.failures(assessment), words.apply_line(assessment)),
        style=ROOT,
    )


def _changes(assessment: Assessment) -> Markup:
    if not assessment.advice:
        return element("div", words.nothing_found(assessment))
    shown = words.offered(assessment.advice, assessment.together)
    rows = [_change(assessment, number, advice) for number, advice in enumerate(shown, 1)]
    head = ("change", "before", "after", "saves", "", "on the card")
    remarks = _remarks(words.hidden(assessment.advice))
    return join(table("What each change saves", head, rows), *remarks)


def _change(assessment: Assessment, number: int, advice: Advice) -> Markup:
    of = f" ({advice.saves.value})" if advice.saving and advice.saves is not Saves.PEAK else ""
    name = join(
        element("strong", f"{number}  {advice.rule}"),
        of,
        element("div", _told(assessment.report, advice), style=_INSIDE),
        _bar(advice),
    )
    return row(name, *_sizes(advice))


def _sizes(advice: Advice) -> Iterator[str]:
    measured = advice.before is not None
    yield from (format_bytes(size) if measured else "" for size in (advice.before, advice.after))
    yield element("strong", format_bytes(advice.saving)) if advice.saving else EMPTY
    share = wording.format_share(abs(advice.saving or 0), advice.before)
    yield share if measured else words.how_known(advice)
    yield words.fit(advice.fits)


def _bar(advice: Advice) -> Markup:
    """What stays, and what goes."""
    if advice.before is None:
        return EMPTY
    before, after = advice.before or 0, advice.after or 0
    parts = [("after", min(before, after), ALLOCATED), ("saved", before - after, ALARM)]
    return markup.bar(parts, before or 1, 160, height=4)


def _useless(assessment: Assessment) -> Markup:
    if not assessment.useless:
        return EMPTY
    title = "Popular tips that do not help here, measured as well"
    said = [markup.small(words.unhelpful(advice)) for advice in assessment.useless]
    return element("div", element("div", title, style=CAPTION), *said, style="margin:14px 0 0 0")


def change_html(change: Change) -> str:
    """A change with all its lines."""
    said = element("div", words.applied(change.number, change.advice))
    shown = difference(change.source, change.advice.source or "")
    return element("div", said, shown, style=ROOT)


def pages_html(pages: RulePages) -> str:
    """The rules as one <div>."""
    note = element("div", pages.note) if pages.note else EMPTY
    if pages.in_full:
        return element("div", note, *map(_page, pages.pages), style=ROOT)
    rows = [_entry(page) for page in pages.pages]
    below = markup.small("%gpucheck --explain RULE tells more of one.")
    return element("div", note, table("The rules", ("rule",), rows), below, style=ROOT)


def _entry(page: RulePage) -> Markup:
    kind = element("div", words.KINDS[page.kind], style=_FAINT)
    return row(join(element("strong", page.name), element("div", page.problem), kind))


def _page(page: RulePage) -> Markup:
    examples = [
        join(
            element("div", f"Example {number}", style=CAPTION),
            difference(example.before, example.after),
        )
        for number, example in enumerate(page.examples, 1)
    ]
    return join(
        element("div", element("strong", page.name), style="font-size:1.1em"),
        element("div", f"{page.problem} · {words.KINDS[page.kind]}", style="opacity:0.75"),
        *(element("div", _prose(text), style="margin:8px 0 0 0") for text in page.text),
        *examples,
    )


def _prose(text: str) -> Markup:
    """A paragraph with what stands between backticks as code."""
    parts = enumerate(text.split("`"))
    return join(*(element("code", part) if i % 2 else part for i, part in parts))


def _remarks(*texts: str) -> list[Markup]:
    return [markup.small(text) for text in texts if text]
