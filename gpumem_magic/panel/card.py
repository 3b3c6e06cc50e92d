"""One piece of advice as HTML: evidence, change, saving and how that is known."""

from __future__ import annotations

from gpumem_magic.advice import Advice
from gpumem_magic.panel.budget import MOST, as_many
from gpumem_magic.renderers import advice_wording as words
from gpumem_magic.renderers import pieces, wording
from gpumem_magic.renderers.advice_html import difference
from gpumem_magic.renderers.markup import EMPTY, ROOT, Markup, element, join
from gpumem_magic.renderers.palette import ALARM, ALLOCATED
from gpumem_magic.report import Report
from gpumem_magic.units import format_bytes

_TOO_LONG = "The change is too long to be shown here; Insert cell gives all of it."
_BOX = "border:1px solid rgba(128,128,128,0.45);border-radius:4px;padding:8px 12px;margin:4px 0"


def label(number: int, advice: Advice) -> str:
    """Advice as one row of a list."""
    facts = [advice.rule, words.saving(advice), words.how_known(advice)]
    return f"{number}  " + ", ".join(wording.visible(fact) for fact in facts if fact)


def card_html(report: Report, advice: Advice) -> str:
    """Everything that is known of one piece of advice."""
    saving = ", ".join(filter(None, (words.saving(advice, report), words.how_known(advice))))
    return element(
        "div",
        element("div", element("strong", advice.rule), style="font-size:1.1em"),
        element("div", element("strong", saving)) if saving else EMPTY,
        _sizes(advice),
        element("div", advice.problem, style="margin:6px 0 0 0"),
        _evidence(report, advice),
        element("div", words.what_to_do(advice), style="margin:6px 0 0 0"),
        _change(report, advice),
        style=f"{ROOT};{_BOX};overflow-wrap:anywhere",
    )


def _sizes(advice: Advice) -> Markup:
    """Before and after as bars, where both were measured."""
    if advice.before is None or advice.after is None:
        return EMPTY
    whole = max(advice.before, advice.after, 1)
    bars = [
        element(
            "div", f"{name} {format_bytes(size)}", pieces.bar([(name, size, colour)], whole, 60)
        )
        for name, size, colour in (
            ("as it is", advice.before, ALARM),
            ("changed", advice.after, ALLOCATED),
        )
    ]
    return element("div", *bars, style="margin:6px 0")


def _evidence(report: Report, advice: Advice) -> Markup:
    facts: list[str] = []
    if advice.line:
        source = pieces.source(wording.source_of(report, advice.line))
        facts.append(join(f"line {advice.line} ", source))
    if advice.name:
        facts.append(join("variable ", pieces.code(advice.name)))
    if advice.size is not None:
        facts.append(format_bytes(advice.size))
    if not facts:
        return EMPTY
    parts = [join(" \u00b7 " if i else "", fact) for i, fact in enumerate(facts)]
    return element("div", "Evidence: ", *parts, style="margin:6px 0 0 0")


def _change(report: Report, advice: Advice) -> Markup:
    if advice.source is None:
        return EMPTY
    changed = difference(report.cell.source, advice.source)
    shown, _ = as_many([changed], MOST - 4000)
    return shown[0] if shown else pieces.small(_TOO_LONG)
