"""What a predicted cell shows in a page, beyond what a measured one does."""

from __future__ import annotations

import re
from dataclasses import replace

from gpumem_magic.renderers import mimebundle
from gpumem_magic.renderers.formats.files import page


def report_html(report, plot=True):
    return mimebundle(report, plot)["text/html"]


def test_the_verdict_is_the_headline(reports):
    text = report_html(reports["unfit"](), plot=False)
    assert text.index("Probably does not fit") < text.index("at the peak")
    assert "The control flow was guessed" in text
    assert "predicted for Tesla T4 · dry run of" in text
    assert "Fits" not in report_html(reports["calling"](), plot=False)


def test_an_error_is_told_with_its_line(reports):
    text = report_html(reports["raised"](), plot=False)
    assert "The prediction ends in line 2: AttributeError" in text
    assert ">x.nonsense()</code>" in text
    assert "the cell raised" not in text


def test_output_is_folded_and_keeps_its_lines(reports):
    text = report_html(reports["unfit"](), plot=False)
    folded = text[text.rindex("<details") :]
    assert ">3 lines of output of the dry run</summary>" in folded
    assert "epoch 1: loss 0.50\nepoch 2: loss 0.50\nepoch 3" in folded


def test_output_cannot_act_or_weigh_too_much(reports):
    output = "<script>alert(1)</script>\x1b[31m\n" + "x" * 9000 + "\n" + "y\n" * 300
    text = page([replace(reports["unfit"](), output=output)])
    assert "<script>" not in text
    assert "\x1b" not in text
    assert max(map(len, re.findall("x+", text))) == 500
    assert "... and 102 more lines: see report.output" in text


def test_without_output_nothing_is_folded(reports):
    assert "output of the dry run" not in report_html(reports["predicted"](), plot=False)
