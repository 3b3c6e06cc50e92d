"""Reports as a browser lays them out: low until they are opened, nothing cut off at any width."""

from __future__ import annotations

import pytest

from gpumem_magic.renderers import mimebundle
from gpumem_magic.renderers.formats.files import page as whole_page
from tests.renderers.conftest import MAKERS

pytestmark = pytest.mark.browser

HEIGHT = 400  # pixels of a report as it is first shown
THEMES = {"light": "background:#fff;color:#1c1c1c", "dark": "background:#111;color:#e2e2e2"}

# Elements that are wider than what is around them, or whose content is wider than they are.
TOO_WIDE = """() => [...document.querySelectorAll('body *')]
  .filter(e => getComputedStyle(e).display != 'inline' && e.clientWidth)
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1
            || e.scrollWidth > e.clientWidth + 1)
  .map(e => [e.tagName, e.textContent.slice(0, 60)])"""


@pytest.fixture(scope="module")
def tab(browser):
    page = browser.new_page()
    yield page
    page.close()


def shown(tab, name, width, theme="light"):
    """The report at `width` pixels, as in the output of a notebook."""
    tab.set_viewport_size({"width": width, "height": 500})
    html = mimebundle(MAKERS[name]())["text/html"]
    body = f'<body style="margin:0;font-family:system-ui,sans-serif;{THEMES[theme]}">{html}</body>'
    tab.set_content(f'<!DOCTYPE html><meta charset="utf-8">{body}')
    tab.wait_for_function("() => [...document.images].every(image => image.naturalWidth)")


def height(tab):
    return tab.evaluate("() => document.body.firstElementChild.getBoundingClientRect().height")


@pytest.mark.parametrize("name", sorted(set(MAKERS) - {"hostile"}))
def test_a_report_is_low_until_it_is_opened(tab, name):
    for width in (1400, 800, 600):
        shown(tab, name, width)
        assert height(tab) <= HEIGHT


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
    right = "all => all.map(cell => Math.round(cell.getBoundingClientRect().right))"
    heads = table.locator("thead th").evaluate_all(right)
    for row in range(3):
        cells = table.locator("tbody tr").nth(row).locator("th, td")
        assert cells.evaluate_all(right)[1:] == heads[1:]


def test_the_details_open_by_keyboard(tab):
    shown(tab, "calling", 800)
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    assert tab.get_by_text("By kind").is_visible()


def test_a_saved_page_is_low_as_well(tab, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(whole_page([MAKERS["calling"]()], "calling"))
    tab.set_viewport_size({"width": 1000, "height": 800})
    tab.goto(path.as_uri())
    assert tab.evaluate(TOO_WIDE) == []
    article = tab.locator("article > div").first
    assert article.bounding_box()["height"] <= HEIGHT
