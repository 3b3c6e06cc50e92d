"""Reports as a browser lays them out: low until they are opened, nothing cut off at any width."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpumem_magic.history import compare
from gpumem_magic.oom_text import explain
from gpumem_magic.renderers import mimebundle
from gpumem_magic.renderers.formats.files import page as whole_page
from gpumem_magic.values.advice import Advice, Known
from gpumem_magic.values.assessment import Assessment
from gpumem_magic.values.forecast import Fit, Fits, Forecast
from tests.renderers.conftest import MAKERS
from tests.renderers.test_explained import NEW
from tests.renderers.test_inventory import make_inventory

pytestmark = pytest.mark.browser

HEIGHT = 400  # pixels of a report as it is first shown
THEMES = {"light": "background:#fff;color:#1c1c1c", "dark": "background:#111;color:#e2e2e2"}

# Elements that are wider than what is around them, or whose content is wider than they are; but
# excerpts end with an ellipsis.
TOO_WIDE = """() => [...document.querySelectorAll('body *')]
  .filter(e => getComputedStyle(e).display != 'inline' && e.clientWidth)
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1
            || e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).textOverflow != 'ellipsis')
  .map(e => [e.tagName, e.textContent.slice(0, 60)])"""


@pytest.fixture(scope="module")
def tab(browser):
    page = browser.new_page()
    yield page
    page.close()


def shown(tab, name, width, theme="light"):
    """The report at `width` pixels, as in the output of a notebook."""
    show(tab, mimebundle(MAKERS[name]())["text/html"], width, THEMES[theme])


def show(tab, html, width, colours):
    tab.set_viewport_size({"width": width, "height": 500})
    body = f'<body style="margin:0;font-family:system-ui,sans-serif;{colours}">{html}</body>'
    tab.set_content(f'<!DOCTYPE html><meta charset="utf-8">{body}')
    tab.wait_for_function("() => [...document.images].every(image => image.naturalWidth)")


# How many rows of numbers each row of a table takes.
ROWS = """rows => rows.map(row => new Set([...row.children].slice(1).filter(c => c.colSpan == 1)
  .map(cell => Math.round(cell.getBoundingClientRect().bottom))).size)"""


def height(tab):
    return tab.evaluate("() => document.body.firstElementChild.getBoundingClientRect().height")


@pytest.mark.parametrize("name", sorted(set(MAKERS) - {"hostile"}))
def test_a_report_is_low_until_it_is_opened(tab, name):
    for width in (1400, 800, 600):
        shown(tab, name, width)
        assert height(tab) <= HEIGHT


def test_a_report_with_long_lines_and_an_advice_is_low_too(tab):
    """At 600 pixels, where code and advice would take two lines and more."""
    whole = MAKERS["calling"]()
    long = "losses.append(F.cross_entropy(logits.view(-1, 8000), ids.view(-1)))"
    lines = tuple(replace(line, source=long) for line in whole.lines)
    change = "Wrap lines 6-7 in torch.no_grad(); torch.inference_mode() does as well where nothing "
    advice = Advice("eval-is-not-no-grad", "Nothing goes backward.", change=f"{change}trains.")
    report = replace(whole, lines=lines, call_tree=(), advice=(advice,))
    show(tab, mimebundle(report)["text/html"], 600, THEMES["light"])
    assert height(tab) <= HEIGHT


def with_long_names(report):
    """The report with names and code that are longer than a line."""
    name = "the_encoder_of_the_captioning_model_that_somebody_has_given_a_long_name_to"
    source = f"{name}_output = {name}(images_of_the_batch)"
    lines = tuple(replace(line, source=source) for line in report.lines)
    cell = replace(report.cell, source="\n".join([source] * 9))
    return replace(report, name=f"{name}_in_the_first_epoch", lines=lines, cell=cell)


@pytest.mark.parametrize("name", ["calling", "predicted", "raised", "unfit", "story"])
def test_long_names_and_remarks_make_no_report_tall(tab, name):
    """One line of each is seen first; all of it can be opened."""
    remark = "Line 4 goes by values that nobody knows, and a sentence that says so is long. " * 5
    report = with_long_names(MAKERS[name]())
    report = replace(report, unknown={"others": remark, "context": remark.upper()})
    show(tab, mimebundle(report)["text/html"], 1000, THEMES["light"])
    assert height(tab) <= HEIGHT
    assert tab.evaluate(TOO_WIDE) == []


def test_what_stands_side_by_side_is_low_too(tab):
    fits, unfit = MAKERS["predicted"](), with_long_names(MAKERS["unfit"]())
    fit = Fit("batch_size", 96, fits, replace(unfit, name="batch_size = 97"), 9, notes=("So.",))
    calling, story = (with_long_names(MAKERS[name]()) for name in ("calling", "story"))
    answers = compare(calling, story), Forecast((unfit, unfit, unfit, fits)), Fits((fit, fit, fit))
    for answer in answers:
        show(tab, answer._repr_mimebundle_()["text/html"], 1000, THEMES["light"])
        assert height(tab) <= HEIGHT
        assert tab.evaluate(TOO_WIDE) == []


def beside_reports():
    """Answers that are no reports, of the most that they are likely to say."""
    unfit, fits = with_long_names(MAKERS["unfit"]()), MAKERS["predicted"]()
    first = replace(fits, notes=("One note. " * 30, "Another.", "A third."))
    fit = Fit("batch_size", 96, first, unfit, 9, notes=("So.",))
    none = Fit("batch_size", 0, None, unfit, 9, notes=("So.",))
    advice = Advice(
        "activations", "Activations wait. " * 5, "Checkpoint the blocks. " * 6,
        size=9 << 30, saving=9 << 30, known=Known.MEASURED, before=30 << 30, after=21 << 30,
        fits=False, price="One more forward pass.",
    )  # fmt: skip
    return {
        "cards": Forecast((first, *[unfit] * 3)),
        "largest": Fits((fit, none, none, none)),
        "advice": Assessment(
            replace(fits, name="train"), (advice,) * 5, (advice,) * 2, advice,
            (), 7, 14 << 30, False, 2.0,
        ),
        "explained": explain(NEW),
        "held": make_inventory(),
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(beside_reports()))
def test_answers_that_are_no_reports_are_low_too(tab, name, screenshots):
    for width in (1400, 800, 600):
        html = beside_reports()[name]._repr_mimebundle_()["text/html"]
        show(tab, html, width, THEMES["light"])
        tab.screenshot(path=screenshots / f"low-{name}-{width}.png", full_page=True)
        assert height(tab) <= HEIGHT
        assert tab.evaluate(TOO_WIDE) == []


@pytest.mark.parametrize("name", ["story", "calling", "unfit", "hostile", "unknown"])
def test_nothing_is_cut_off(tab, name, screenshots):
    for width in (1400, 600, 360):
        for theme in THEMES:
            shown(tab, name, width, theme)
            tab.screenshot(path=screenshots / f"{name}-{width}-{theme}.png", full_page=True)
        assert tab.evaluate(TOO_WIDE) == []
        tab.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = true)")
        tab.screenshot(path=screenshots / f"{name}-{width}-open.png", full_page=True)
        assert tab.evaluate(TOO_WIDE) == []


def test_a_bar_shows_its_share(tab):
    """In a narrow column as well: a bar of 71 % is 71 % of what can be seen of it."""
    shown(tab, "story", 600)
    story = MAKERS["story"]()
    share = story.peak.device_used / story.device.total
    seen = tab.evaluate(
        "() => { const bar = document.querySelector('div[title^=parameter]').parentElement;"
        "  const parts = [...bar.children].map(part => part.getBoundingClientRect().width);"
        "  return parts.reduce((a, b) => a + b) / bar.getBoundingClientRect().width; }"
    )
    assert seen == pytest.approx(share, abs=0.01)


def test_numbers_stand_below_their_headings(tab):
    shown(tab, "calling", 600)
    tab.evaluate("() => document.querySelector('details').open = true")
    table = tab.locator("table", has_text="By line")
    rows = table.locator("tr").evaluate_all(ROWS)
    assert [row for row in rows if row > 1] == []
    right = "all => all.map(cell => Math.round(cell.getBoundingClientRect().right))"
    heads = table.locator("thead th").evaluate_all(right)
    for row in range(3):
        cells = table.locator("tbody tr").nth(row).locator("th, td")
        assert cells.evaluate_all(right)[1 : len(heads)] == heads[1:]


def test_the_details_open_by_keyboard(tab):
    shown(tab, "calling", 800)
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    assert tab.get_by_text("By kind").is_visible()


def test_what_opens_has_its_triangle_in_the_classic_notebook_too(tab):
    """Bootstrap, its style sheet, makes a block of every summary."""
    html = mimebundle(MAKERS["calling"]())["text/html"]
    show(tab, f"<style>summary {{ display: block }}</style><div>{html}</div>", 800, "")
    display = "all => all.map(one => getComputedStyle(one).display)"
    assert set(tab.locator("summary").evaluate_all(display)) == {"list-item"}


def test_a_saved_page_is_low_as_well(tab, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(whole_page([MAKERS["calling"]()], "calling"))
    tab.set_viewport_size({"width": 1000, "height": 800})
    tab.goto(path.as_uri())
    assert tab.evaluate(TOO_WIDE) == []
    article = tab.locator("article > div").first
    assert article.bounding_box()["height"] <= HEIGHT


# The right edges of each column of numbers, in every table: one edge, where nothing wraps.
EDGES = """() => [...document.querySelectorAll('table')].map(table => {
  const rows = [...table.rows].map(row => [...row.cells].slice(1).filter(c => c.colSpan == 1));
  const right = cells => cells.map(cell => Math.round(cell.getBoundingClientRect().right * 2) / 2);
  return [table.caption.textContent, [...new Set(rows.map(row => right(row).join()))]];
}).filter(([_, edges]) => edges.length > 1)"""

# Sizes that a line's end divides from their unit.
DIVIDED = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  for (let node; node = walker.nextNode();) {
    if (node.parentElement.closest('code, pre, [dir=ltr]')) continue;
    for (const match of node.data.matchAll(/[\\d.]+\\s(?:[KMG]iB|bytes|%)/g)) {
      const range = document.createRange();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      const tops = [...range.getClientRects()].map(box => Math.round(box.top));
      if (new Set(tops).size > 1) found.push(node.data.slice(0, 80));
    }
  }
  return found;
}"""


def answers():
    """What has tables: reports, two of them compared, one cell on four cards."""
    fits, unfit = replace(MAKERS["predicted"](), name="train"), MAKERS["unfit"]()
    cards = [
        replace(fits, device=replace(fits.device, name=name, total=size << 30))
        for name, size in (("NVIDIA L4", 22), ("NVIDIA A100-SXM4-80GB", 79), ("NVIDIA H200", 140))
    ]
    return {
        "comparison": compare(MAKERS["calling"](), MAKERS["story"]()),
        "four-cards": Forecast((unfit, *cards)),
        **{name: MAKERS[name]() for name in ("story", "calling", "unfit", "unknown")},
    }


@pytest.mark.parametrize("name", sorted(answers()))
def test_numbers_are_in_line_and_keep_their_units(tab, name, screenshots):
    html = answers()[name]._repr_mimebundle_()["text/html"]
    for width in (1400, 800, 360):
        for theme, colours in THEMES.items():
            show(tab, html, width, colours)
            tab.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = true)")
            if name in ("comparison", "four-cards"):
                picture = screenshots / f"{name}-{width}-{theme}.png"
                tab.screenshot(path=picture, full_page=True)
        assert tab.evaluate(TOO_WIDE) == []
        assert tab.evaluate(DIVIDED) == []
        if width == 1400:
            assert tab.evaluate(EDGES) == []


def test_four_cards_say_once_what_they_have_alike(tab, screenshots):
    show(tab, answers()["four-cards"]._repr_mimebundle_()["text/html"], 1000, THEMES["light"])
    tab.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = true)")
    said = tab.inner_text("body")
    assert said.count("at the peak: ") == 1
    assert said.count("Fits: ") == 3
    assert said.count("Probably does not fit: ") == 1


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_of_nbconvert_shows_what_the_notebook_showed(tab, tmp_path, screenshots, theme):
    """Without scripts and without a kernel; the folds open, nothing is cut off."""
    nbconvert, nbformat = (pytest.importorskip(name) for name in ("nbconvert", "nbformat"))
    bundles = [answers()[name]._repr_mimebundle_() for name in ("story", "comparison", "calling")]
    cells = [
        nbformat.v4.new_code_cell(
            "%%gpumem\ntrain()",
            outputs=[nbformat.v4.new_output("display_data", data={"text/html": data["text/html"]})],
        )
        for data in bundles
    ]
    exporter = nbconvert.HTMLExporter(theme=theme, embed_images=True)
    text, _ = exporter.from_notebook_node(nbformat.v4.new_notebook(cells=cells))
    page = tmp_path / "notebook.html"
    page.write_text(re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL))
    for width in (1400, 800, 360):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.goto(page.as_uri())
        tab.wait_for_function("() => [...document.images].every(image => image.naturalWidth)")
        tab.screenshot(path=screenshots / f"nbconvert-{width}-{theme}.png", full_page=True)
        assert tab.evaluate(DIVIDED) == []
    tab.get_by_text("Details", exact=False).first.click()
    assert tab.get_by_text("By kind").first.is_visible()
    wide = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.className)"
    assert tab.locator(".jp-OutputArea-output").evaluate_all(wide) == []
