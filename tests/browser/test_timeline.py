"""The timeline of a saved page: what it says of a moment, by mouse and by keyboard; where it zooms;
which blocks it lists."""

from __future__ import annotations

import pytest

from gpumem_magic.units import format_bytes
from gpumem_magic.values.recording import Category
from tests.renderers.conftest import MAKERS

pytest.importorskip("torch")
pytestmark = pytest.mark.browser

CELL = """\
import torch
net = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(2)]).cuda()
x = torch.ones(4096, 1024, device="cuda")
loss = net(x).sum()
loss.backward()
"""
PLOT, SAID = ".g-plot", ".g-said"


@pytest.fixture(scope="module")
def report():
    from gpumem_magic import predict

    return predict(CELL, {}, gpu="T4", name="step")


@pytest.fixture
def page(browser, report, tmp_path):
    """The saved page, without network."""
    path = tmp_path / "report.html"
    report.save(path)
    context = browser.new_context(offline=True, viewport={"width": 1000, "height": 1000})
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    page.locator(PLOT).wait_for()
    yield page
    context.close()
    assert errors == []


def over(page, report, point, kind):
    """The mouse upon the middle of a band, at a point of the timeline."""
    line, box = report.timeline, page.locator(PLOT).bounding_box()
    at = list(Category).index(kind)
    size = line.by_category[point, :at].sum() + line.by_category[point, at] / 2
    highest = max(line.allocated.max(), line.reserved.max()) * 1.04
    x = box["x"] + box["width"] * (point + 0.5) / len(line.time)
    page.mouse.move(x, box["y"] + box["height"] * (1 - size / highest))


def test_hover_tells_bytes_kind_and_line_of_the_moment(page, report):
    line = report.timeline
    for point in (line.peak, len(line.time) // 2):
        over(page, report, point, Category.PARAMETER)
        said = page.locator(SAID).inner_text()
        parameters = int(line.by_category[point, 0])
        assert f"parameter {format_bytes(parameters)}" in said
        assert f"{format_bytes(int(line.allocated[point]))} allocated" in said
        number = int(line.line[point])
        assert f"line {number}: {CELL.splitlines()[number - 1]}" in said
    over(page, report, line.peak, Category.PARAMETER)
    assert "(the peak)" in page.locator(SAID).inner_text()


def test_a_click_lists_the_blocks_of_a_band_with_their_stacks(page, report):
    over(page, report, report.timeline.peak, Category.PARAMETER)
    page.mouse.down()
    page.mouse.up()
    table = page.locator(".g-blocks table")
    assert table.locator("caption").inner_text().startswith("parameter at ")
    columns, *rows = table.locator("tr").all_inner_texts()
    assert columns.split() == ["name", "size", "tensor", "made", "in"]
    assert len(rows) == 4  # two weights, two biases
    assert "net[0].weight" in rows[0]
    assert "4.0 MiB" in rows[0]
    assert "float32[1024, 1024]" in rows[0]
    assert rows[0].count("line 2") == 1  # where it was made; the stack has no more to tell
    assert "predicted cell" not in "".join(rows)
    assert page.locator(".g-blocks").get_by_text("not listed").count() == 0


def test_the_module_that_ran_is_told_of_a_moment_and_of_a_block(page, report):
    line = report.timeline
    forward = next(p for p in range(len(line.time)) if line.line[p] == 4)
    over(page, report, forward, Category.PARAMETER)
    assert "net[0..1]" in page.locator(SAID).inner_text()
    over(page, report, line.peak, Category.ACTIVATION)
    page.mouse.down()
    page.mouse.up()
    rows = page.locator(".g-blocks tr").all_inner_texts()
    assert any("net[0..1] (activation)" in row for row in rows)


def test_a_brush_zooms_and_whole_comes_back(page, report):
    box = page.locator(PLOT).bounding_box()
    ends = page.locator(".g-ends")
    whole = ends.inner_text()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.5, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, y, steps=5)
    page.mouse.up()
    assert ends.inner_text() != whole
    assert page.locator(".g-blocks table").count() == 0

    # THEN the same pixel is another moment: the middle of what was brushed
    line = report.timeline
    page.mouse.move(box["x"] + box["width"] * 0.5, y)
    point = int(len(line.time) * 0.625)
    assert f"{format_bytes(int(line.allocated[point]))} allocated" in (
        page.locator(SAID).inner_text()
    )
    page.get_by_role("button", name="Whole").click()
    assert ends.inner_text() == whole


def test_all_of_it_with_the_keyboard_alone(page, report):
    line = report.timeline
    plot = page.locator(PLOT)
    plot.focus()
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert plot.get_attribute("aria-valuenow") == "3"
    assert f"{format_bytes(int(line.allocated[3]))} allocated" in (
        plot.get_attribute("aria-valuetext")
    )
    page.keyboard.press("p")
    assert plot.get_attribute("aria-valuenow") == str(line.peak)
    page.keyboard.press("ArrowUp")
    assert "parameter" in plot.get_attribute("aria-valuetext")
    page.keyboard.press("Enter")
    caption = page.locator(".g-blocks caption").inner_text()
    parameters = int(line.by_category[line.peak, 0])
    assert caption.endswith(format_bytes(parameters))
    whole = page.locator(".g-ends").inner_text()
    page.keyboard.press("+")
    assert page.locator(".g-ends").inner_text() != whole
    page.keyboard.press("0")
    assert page.locator(".g-ends").inner_text() == whole
    page.keyboard.press("Shift+Tab")  # to the buttons
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    axis = page.get_by_role("button", name="Axis: time")
    assert axis.get_attribute("aria-pressed") == "true"


def test_hostile_text_stays_text(browser, tmp_path):
    path, page, errors = tmp_path / "hostile.html", browser.new_page(), []
    MAKERS["hostile"]().save(path)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    page.locator(PLOT).first.press("Enter")
    assert page.locator(".g-blocks table").count() == 1
    assert page.locator("script").count() == 1  # the page's own
    assert errors == []
    page.close()


def test_it_looks_as_it_should(page, screenshots):
    wide = """() => [...document.querySelectorAll('body *')].filter(e => e.clientWidth
      && getComputedStyle(e).display != 'inline' && !e.closest('svg')
      && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""
    page.locator(PLOT).press("Enter")
    for width in (1400, 800, 360):
        page.set_viewport_size({"width": width, "height": 900})
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            page.screenshot(path=screenshots / f"page-{width}-{theme}.png", full_page=True)
        assert page.evaluate(wide) == []
