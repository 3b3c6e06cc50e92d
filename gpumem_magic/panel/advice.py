"""The section on advice: what to change in the chosen cell, and what that would save."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace

from gpumem_magic.advice import Advice, find_rule, pages_of, ranked
from gpumem_magic.assess import assessing, question_of
from gpumem_magic.dryrun import Scenario
from gpumem_magic.panel import controls
from gpumem_magic.panel.controls import MOST, as_many, told
from gpumem_magic.panel.desk import Desk, Draw, Section, cancel_button
from gpumem_magic.renderers import advice as words
from gpumem_magic.renderers import wording
from gpumem_magic.renderers.document import Bar, Line, Part, Piece, Span, Style
from gpumem_magic.renderers.explained import pages_document
from gpumem_magic.renderers.figure.palette import ALARM, ALLOCATED
from gpumem_magic.renderers.html import Printer, element, printed
from gpumem_magic.renderers.terminal import fit
from gpumem_magic.units import format_size
from gpumem_magic.values.assessment import Assessment, RulePages
from gpumem_magic.values.report import Report

_TOO_LONG = "The change is too long to be shown here; Insert cell gives all of it."

_LABEL = 120  # characters of a row of the list

_BOX = "border:1px solid rgba(128,128,128,0.45);border-radius:4px;padding:8px 12px;margin:4px 0"


def label(number: int, advice: Advice, report: Report) -> str:
    """Advice as one row of a list; what to do tells apart those of one rule."""
    facts = [advice.rule, words.saving(advice, report), words.how_known(advice)]
    said = ", ".join(wording.visible(fact) for fact in facts if fact)
    return fit(f"{number}  {said} \u00b7 {words.in_short(advice)}", _LABEL)


def card_html(report: Report, advice: Advice) -> str:
    """What is known of one piece of advice beside its `label`."""
    said = told(
        *_sizes(advice),
        Line(advice.problem),
        *_evidence(report, advice),
        Line(words.what_to_do(advice)),
        *_change(report, advice),
    )
    return element("div", said, style=_BOX)


def _sizes(advice: Advice) -> tuple[Piece, ...]:
    """Before and after as bars, where both were measured."""
    if advice.before is None or advice.after is None:
        return ()
    whole = max(advice.before, advice.after)
    sizes = (Part("as it is", advice.before, ALARM), Part("changed", advice.after, ALLOCATED))
    return tuple(
        piece
        for part in sizes
        for piece in (Line(f"{part.label} {format_size(part.size)}"), Bar((part,), whole))
    )


def _evidence(report: Report, advice: Advice) -> tuple[Line, ...]:
    facts: list[tuple[str | Span, ...]] = []
    if advice.line:
        source = wording.source_of(report, advice.line)
        facts.append((f"line {advice.line} ", Span(source, Style.CODE)))
    if advice.name:
        facts.append(("variable ", Span(advice.name, Style.CODE)))
    words_ = [word for fact in facts for word in (*fact, " \u00b7 ")][:-1]
    return (Line(("Evidence: ", *words_)),) if facts else ()


def _change(report: Report, advice: Advice) -> tuple[Piece, ...]:
    if advice.source is None:
        return ()
    changed = words.difference(report.cell.source, advice.source)
    shown, _ = as_many([Printer().pieces([changed])], MOST - 4000)
    return (changed,) if shown else (Line(_TOO_LONG, Style.FAINT),)


_NOTHING = "There is no advice for this cell. Measure looks for more, by dry runs."

_INSERTS = "Make the changed cell the next input"
_NO_CELL = "No changed cell is written out for this advice; its card says what to change"

_INSERTED = (
    "The changed cell is the next input: it appears below the next cell that you run. "
    "It can be copied from here as well:"
)


class AdviceSection(Section):
    """The advice for the chosen report, one card at a time."""

    title = "Advice"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.list = controls.rows("Advice", 3)
        self.card, self.answer = controls.html(), controls.html()
        self.measure = controls.button("Measure", "Run the changed cells without kernels")
        self.cancel = cancel_button(desk)
        self.insert = controls.button("Insert cell", _INSERTS)
        self.explain = controls.button("Explain", "What the rule means")
        self.ignore = controls.button("Ignore", "No advice of this rule any more")
        self.code = controls.lines("Changed cell", 8)
        controls.show(self.code, False)
        buttons = controls.across(self.measure, self.cancel, self.insert, self.explain, self.ignore)
        self.box = self.framed(self.list, self.card, buttons, self.answer, self.code)
        desk.on_change(self.list, "index", "Choosing advice", self._pick)
        desk.on_click_alone(self.measure, "Measuring the changes", self._measure)
        desk.on_click_alone(self.insert, "Inserting the cell", self._insert)
        desk.on_click(self.explain, "Explaining", self._explain)
        desk.on_click(self.ignore, "Ignoring the rule", self._ignore)

    @property
    def pieces(self) -> tuple[Draw, ...]:
        """The list and the card."""
        return (self.draw_list, self.draw_card, self.clear_answer)

    def draw_list(self) -> None:
        """All advice for the chosen report."""
        found = self.state.advice()
        report = self.state.report
        labels = [label(number, advice, report) for number, advice in enumerate(found, 1) if report]
        with self.list.hold_sync():
            self.list.options = labels
            self.list.index = self._place(found)
        controls.show(self.list, bool(labels))

    def draw_card(self) -> None:
        """The advice that is picked."""
        report, advice = self.state.report, self._advice
        self.insert.disabled = advice is None or advice.source is None
        self.insert.tooltip = _NO_CELL if self.insert.disabled else _INSERTS
        self.explain.disabled = self.ignore.disabled = advice is None
        if report is None or advice is None:
            self.card.value = told(Line(_NOTHING))
        else:
            self.card.value = card_html(report, advice)

    def clear_answer(self) -> None:
        """Take away what was said of another cell."""
        self.answer.value = ""
        if self.code.layout.display != "none":
            controls.show(self.code, False)

    @property
    def _advice(self) -> Advice | None:
        found = self.state.advice()
        place = self._place(found)
        return None if place is None else found[place]

    def _place(self, found: tuple[Advice, ...]) -> int | None:
        return min(self.state.picked, len(found) - 1) if found else None

    def _required(self) -> Advice:
        if self._advice is None:
            raise ValueError("there is no advice for this cell")
        return self._advice

    def _pick(self) -> None:
        if self.list.index is not None:
            self.state.picked = self.list.index
            self.draw_card()
            self.clear_answer()

    def _measure(self) -> None:
        desk, report = self.desk, self.state.report
        if report is None:
            raise ValueError("no cell was measured yet")
        host = desk.host
        desk.say("Measuring what each change saves: the cell is run without kernels ...")
        cell = host.files.with_code(report.cell)
        scenario = Scenario(cell, host.shell.user_ns, cells=host.files.cells(), again=True)
        question = question_of(report, scenario, host.files.python)
        ignore = frozenset((*self.state.ignored, *host.settings.ignored))
        measured: list[Advice] = []

        def so_far(advice: Advice) -> None:
            measured.append(advice)
            self._offer(report, ranked(measured, report.peak.allocated))

        flow = assessing(replace(question, ignore=ignore, so_far=so_far))
        show = functools.partial(self._show, report)
        desk.dry_runs.carry_out("Measuring", flow, show, partly=True)

    def _offer(self, report: Report, advice: Iterable[Advice]) -> None:
        self.state.remember(report, tuple(advice))
        self.state.picked = 0
        with self.desk.quiet():
            self.draw_list()
            self.draw_card()

    def _show(self, report: Report, found: Assessment) -> None:
        together = () if found.together is None else (found.together,)
        self._offer(report, (*together, *found.advice))
        self.answer.value = printed(words.assessment_document(found), plain=False)
        self.desk.say(f"Measured: {found.runs} dry runs.")

    def _insert(self) -> None:
        advice = self._required()
        if advice.source is None:
            raise ValueError(f"{advice.rule} has no changed cell: {advice.change}")
        if self.desk.front is not None:
            self.desk.front.send({"insert": advice.source})
        else:
            self.inserted(False)

    def inserted(self, done: bool) -> None:
        """The page has inserted the changed cell; or cannot, and the kernel has to."""
        source = self._required().source
        if done or source is None:
            self.desk.say("The changed cell was inserted below this one.")
            return
        self.desk.host.shell.set_next_input(source)
        self.code.value = source
        controls.show(self.code, True)
        self.answer.value = told(Line(_INSERTED))
        self.desk.say("The changed cell appears below the next cell that you run.")

    def _explain(self) -> None:
        rules = self._required().rule
        named = pages_of([find_rule(rules)]) if self._is_rule(rules) else ()
        if not named:
            self.answer.value = told(Line(self._required().problem))
        else:
            pages = pages_document(RulePages(named, in_full=True))
            self.answer.value = printed(pages, plain=False)

    def _is_rule(self, name: str) -> bool:
        try:
            find_rule(name)
        except KeyError:
            return False
        return True

    def _ignore(self) -> None:
        rule = self._required().rule
        self.state.ignored |= {rule}
        settings = self.desk.host.settings
        if self._is_rule(rule):
            settings.ignore = ",".join(dict.fromkeys((*settings.ignored, rule)))
        self.state.picked = 0
        with self.desk.quiet():
            self.draw_list()
        self.draw_card()
        self.clear_answer()
        self.desk.say(f"{rule} gives no advice from now on; %config GpuMem.ignore = '' ends that.")
