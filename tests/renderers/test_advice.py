"""Advice as text and as HTML: below a report, measured, as a change, and what the rules say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpumem_magic.advice import RULES, pages_of
from gpumem_magic.renderers.advice import advice_pieces, difference, offered, saving
from gpumem_magic.renderers.document import Section
from gpumem_magic.renderers.html import Printer
from gpumem_magic.renderers.terminal import printed, width
from gpumem_magic.units import GIB, MIB
from gpumem_magic.values.advice import Advice, Edit, Example, Kind, Known, Saves
from gpumem_magic.values.assessment import Assessment, Change, RulePage, RulePages
from gpumem_magic.values.report import Report

LONG = "x" * 200


def advice_rows(report):
    return printed((Section(advice_pieces(report)),)).splitlines()


def advice_markup(report):
    return Printer().pieces(advice_pieces(report))


def changed(story, number, text):
    rows = story.cell.source.splitlines(keepends=True)
    rows[number - 1] = text
    return "".join(rows)


@pytest.fixture
def advice(story):
    """One of each shape: with a changed cell, without, of another size, and a fact."""
    start = story.cell.source.index("    optimizer.step()")
    return (
        Advice(
            "foreach-peak",
            "The step on line 7 makes 1.20 GiB of temporaries, for all parameters at once.",
            "Let Adam go through the parameters one by one: foreach=False.",
            line=7, size=1228 * MIB, edits=(Edit(start, start, "# slow\n"),),
            source=changed(story, 2, "optimizer = Adam(model.parameters(), foreach=False)\n"),
            saving=1228 * MIB, known=Known.EXACT, price="the step takes longer",
        ),
        Advice(
            "kept-graph", f"losses keeps {LONG} on line 6.", "Append loss.item().", line=6,
            size=300 * MIB, saving=200 * MIB, known=Known.ESTIMATED, saves=Saves.AFTER,
        ),
        Advice("clipping", "clip_grad_norm_ on line 6 saves no memory.", "Keep it.", saving=0),
        Advice("no-claim", "Gradients grow: they are never cleared.", "Clear them.", line=6),
    )  # fmt: skip


@pytest.fixture
def assessment(story, advice):
    first, second, fact, _ = advice
    measured = {"known": Known.MEASURED, "before": 24 * GIB, "fits": False}
    first = replace(first, saving=4 * GIB, after=20 * GIB, **measured)
    other = replace(first, rule="activations", line=5, price="", saving=GIB, after=23 * GIB)
    together = replace(
        first, rule="all together", problem="1 foreach-peak, 3 activations.",
        change="", saving=11 * GIB, after=13 * GIB, fits=True,
    )  # fmt: skip
    none = replace(first, rule="retained-graph", saving=0, after=24 * GIB, change="Drop it.")
    worse = replace(none, rule="frozen-layers", saving=-256 * MIB)
    return Assessment(
        replace(story, oom=None, error=None), (first, second, other, fact), (none, worse),
        together, (("step-in-backward", "AttributeError: no such hook"),), 7, 14 * GIB, False, 2.5,
    )  # fmt: skip


@pytest.fixture
def pages():
    example = Example("a = f(x)\n\nb = 1", "with g():\n    a = f(x)\n\nb = 1")
    text = ("What happens. " * 12, "What it costs.")
    return (
        RulePage("missing-g", "f runs without g", Kind.MISTAKE, text, (example, example)),
        RulePage("slow-h", f"h is slow, {LONG}", Kind.TRADE, text, (example,)),
    )


def views(assessment, advice, pages, story):
    return {
        "assessment": assessment,
        "change": Change(3, advice[0], story.cell.source),
        "rules": RulePages(pages),
        "rule": RulePages(pages[:1], in_full=True, note="No rule missing-gg; nearest:"),
    }


@pytest.mark.parametrize("name", ["assessment", "change", "rules", "rule"])
def test_golden(name, assessment, advice, pages, story, same_as_golden):
    view = views(assessment, advice, pages, story)[name]
    same_as_golden(f"advice-{name}.txt", view.text() + "\n")
    html = view._repr_mimebundle_()["text/html"]
    same_as_golden(f"advice-{name}.html", html.replace("><", ">\n<") + "\n")


def test_golden_below_a_report(story, advice, same_as_golden):
    advised = replace(story, advice=advice)
    rows = advice_rows(advised)
    same_as_golden("advice.txt", "\n".join(rows) + "\n")
    same_as_golden("advice.html", advice_markup(advised).replace("><", ">\n<") + "\n")
    # AND both are part of the report
    assert "\n".join(row.rstrip() for row in rows) in advised.text()
    assert advice_markup(advised) in advised._repr_mimebundle_()["text/html"]


def test_a_report_without_advice_says_nothing_of_it(story):
    assert advice_rows(story) == []
    assert advice_markup(story) == ""
    assert "--advise" not in story.text()


def test_each_piece_tells_problem_saving_how_it_is_known_and_price(story, advice):
    text = " ".join(" ".join(advice_rows(replace(story, advice=advice))).split())
    assert "1 foreach-peak: saves 1.20 GiB (" in text
    assert "at the peak, exact" in text
    assert "one by one: foreach=False. Price: the step takes longer." in text
    assert "+ optimizer = Adam(model.parameters(), foreach=False)" in text
    assert "2 kept-graph: 300.00 MiB (" in text
    assert "MiB (2 %) after the cell losses" in text  # no saving is claimed
    assert "3 clipping: saves nothing at the peak" in text
    assert "4 no-claim. Clear them." in text
    assert "--apply 1 puts the changed cell" in text


def test_what_nobody_measured_is_no_saving(story, advice):
    for text in (advice_rows(replace(story, advice=advice)), [saving(advice[1])]):
        assert not any("200.00 MiB" in row for row in text)


def test_three_are_shown_and_the_others_told_in_a_line(story, advice):
    many = replace(story, advice=tuple(replace(advice[0], problem=f"P{i}.") for i in range(7)))
    text = "\n".join(advice_rows(many))
    assert [text.count(f"P{i}.") for i in range(7)] == [1, 1, 1, 0, 0, 0, 0]
    assert "\n  7  foreach-peak: saves 1.20 GiB at the peak, exact. Let Adam" in text
    assert advice_markup(many).count("<details") == 4
    assert len(offered(many.advice)) == 7


def test_shared_evidence_is_told_once(story, advice):
    other = replace(advice[0], change="Take SGD.")
    text = " ".join(" ".join(advice_rows(replace(story, advice=(advice[0], other)))).split())
    assert text.count("makes 1.20 GiB of temporaries") == 1
    assert "Take SGD." in text
    # AND what grew is told with the error
    growth = replace(advice[1], rule="growth", problem="Memory grew by 1 MiB.")
    assert replace(story, advice=(growth,)).text().count("Memory grew by") == 1


def test_without_a_changed_cell_nothing_is_offered_to_apply(story, advice):
    text = "\n".join(advice_rows(replace(story, advice=advice[1:])))
    assert "--apply" not in text
    assert "%gpucheck --advise writes out what can be changed" in text
    exact = replace(advice[2], known=Known.EXACT)
    text = "\n".join(advice_rows(replace(story, advice=(exact,))))
    assert "%gpucheck --explain clipping tells more." in text


def test_every_line_fits_80_columns(assessment, advice, pages, story):
    texts = [view.text() for view in views(assessment, advice, pages, story).values()]
    texts.append("\n".join(advice_rows(replace(story, advice=advice))))
    for text in texts:
        for line in text.splitlines():
            assert width(line) <= 80 or LONG in line, line


def test_hostile_text_stays_text(hostile, assessment):
    evil = hostile.cell.source
    bad = Advice(evil, evil, evil, source=f"{evil}\nx", saving=5, known=Known.EXACT, price=evil)
    advised = replace(hostile, advice=(bad,))
    whole = replace(assessment, report=hostile, advice=(bad,), together=bad, useless=(bad,),
                    failed=((evil, evil),))  # fmt: skip
    for html in (advice_markup(advised), whole._repr_mimebundle_()["text/html"]):
        assert "<script" not in html
        assert "\x1b" not in html
        assert "\u202e" not in html
    assert "\x1b" not in advised.text() + whole.text()


def test_a_long_change_is_cut_in_a_report_but_not_when_applied(story):
    lines = [f"line{i} = {i}" for i in range(40)]
    source = "\n".join(lines)
    new = "\n".join(["with a:", *(f"    {line}" for line in lines)])
    one = Advice("wrap", "Bare.", "Wrap.", source=new, saving=MIB, known=Known.EXACT)
    report = replace(story, cell=replace(story.cell, source=source), advice=(one,))
    text = "\n".join(advice_rows(report))
    assert "... and 69 more lines" in text
    assert "+     line39 = 39" not in text
    assert "+     line39 = 39" in Change(1, one, source).text()
    assert "+     line39 = 39" in advice_markup(report)


def test_changed_lines_are_seen_to_their_ends(story):
    source = f'args = TrainingArguments("out", {", ".join(f"option_{i}={i}" for i in range(9))})'
    new = source.replace(")", ", fp16=True)")
    one = Advice("wrap", "Bare.", "Wrap.", source=new, saving=MIB, known=Known.EXACT)
    report = replace(story, cell=replace(story.cell, source=source), advice=(one,))
    rows = advice_rows(report)
    assert "option_8=8, fp16=True)" in " ".join(" ".join(rows).split())
    assert all(len(row) <= 80 for row in rows)


def test_a_difference_shows_what_changed_with_one_line_around_it():
    before = "a\nb\nc\nd\ne\nf\ng"
    after = "a\nB\nc\nd\ne\nf\nG"
    rows = ["".join(row) for row in difference(before, after).lines]
    assert rows == [" a", "-b", "+B", " c", "…", " f", "-g", "+G"]
    assert difference(before, before).lines == ()


def test_an_assessment_says_what_is_no_advice_here(assessment):
    text = " ".join(assessment.text().split())
    assert "7 dry runs from what is alive now" in text
    assert "does not fit the card" in text
    assert "Popular tips that do not help here" in text
    assert "retained-graph: saves nothing at the peak. It would be: Drop it." in text
    assert "frozen-layers: costs 256.00 MiB (1 %) at the peak" in text
    assert "note: step-in-backward is no advice here: the changed cell raised Attribute" in text
    assert "5 all together 24.0 GiB 13.0 GiB 11.0 GiB" in text
    assert "saves 11.00 GiB (46 %) at the peak; the cell then fits" in text
    assert "%gpucheck --apply 5 puts" in text


def test_where_the_cell_fails_it_says_that_nothing_was_measured(assessment, story):
    failed = replace(story, oom=None, error="NameError: name 'y' is not defined", error_line=3)
    text = Assessment(failed, (), runs=1).text()
    assert "Nothing was measured" in text
    assert "ends in line 3 with" in " ".join(text.split())
    assert "NameError: name 'y' is not defined." in " ".join(text.split())
    assert "No change that the rules know" not in text


def test_without_advice_it_says_so(assessment):
    text = replace(assessment, advice=(), useless=(), together=None, failed=()).text()
    assert "No change that the rules know would save memory here." in text
    assert "--apply" not in text


def test_what_saves_too_little_is_told_with_its_bytes(assessment):
    little = replace(assessment.useless[0], saving=3 * MIB)
    text = replace(assessment, useless=(little,)).text()
    assert "retained-graph: saves only 3.00 MiB (<1 %) at the peak" in " ".join(text.split())


def test_savings_that_cost_memory_say_so(advice):
    assert saving(replace(advice[0], saving=-GIB, before=4 * GIB)) == "costs 1.00 GiB (25 %) at " \
        "the peak"  # fmt: skip


def test_advice_survives_json(story, advice):
    advised = replace(story, advice=advice)
    again = Report.from_dict(json.loads(json.dumps(advised.to_dict())))
    assert again.advice == advice
    old = {key: value for key, value in advised.to_dict().items() if key != "advice"}
    assert Report.from_dict(old).advice == ()


def test_answers_are_saved_in_every_form_but_csv(assessment, advice, pages, story, tmp_path):
    for name, view in views(assessment, advice, pages, story).items():
        for suffix in (".txt", ".html", ".json"):
            view.save(tmp_path / f"{name}{suffix}")
        with pytest.raises(ValueError, match="saved as"):
            view.save(tmp_path / "a.csv")
    data = json.loads((tmp_path / "assessment.json").read_text())
    assert data["what"] == "assessment"
    assert data["advice"][0]["known"] == "measured"
    assert data["together"]["saving"] == 11 * GIB


def test_every_rule_has_a_page():
    for page in pages_of(RULES):
        assert page.text[0]
        text = RulePages((page,), in_full=True).text()
        assert page.name in text
        assert text.count("Example ") >= 2


def test_a_page_of_all_rules_opens_by_kind_and_says_once_what_a_kind_means():
    pages = RulePages(pages_of(RULES))
    seen = pages._repr_mimebundle_()["text/html"].partition("<details")[0]
    assert "gradients-kept" not in seen
    assert pages.text().count("has its price: told") + pages.text().count("Has its price") == 1
    assert all(rule.name in pages.text() for rule in RULES)
