"""Golden explanations, and what holds for each."""

from __future__ import annotations

import re

import pytest

from gpumem_magic.oom_text import Fact, Size, explain
from gpumem_magic.renderers.explained import size_text
from gpumem_magic.renderers.terminal import width

NEW = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity "
    "of 14.50 GiB of which 3.25 MiB is free. Process 4711 has 2.00 GiB memory in use. Including "
    "non-PyTorch memory, this process has 12.50 GiB memory in use. Of the allocated memory 12.25 "
    "GiB is allocated by PyTorch, and 128.00 MiB is reserved by PyTorch but unallocated."
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 2; 16.00 GiB total "
    "capacity; 13.00 GiB already allocated; 512.50 MiB free; 13.25 GiB reserved in total "
    "by PyTorch)"
)
TEXTS = {
    "explained_new": NEW,
    "explained_old": OLD,
    "explained_cut": OLD[:100],
    "explained_library": "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(h)`",
    "explained_none": "KeyError: <b>'loss'</b>",
}


def html_of(answer):
    return answer._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize("name", TEXTS)
def test_golden(name, same_as_golden):
    same_as_golden(f"{name}.txt", explain(TEXTS[name]).text() + "\n")


@pytest.mark.parametrize("name", ["explained_new", "explained_none"])
def test_golden_html(name, same_as_golden):
    text = html_of(explain(TEXTS[name])).replace("><", ">\n<") + "\n"
    same_as_golden(f"{name}.html", text)


@pytest.mark.parametrize("name", TEXTS)
def test_every_line_fits_80_columns(name):
    for line in explain(TEXTS[name]).text().split("\n"):
        assert width(line) <= 80, line
        assert line == line.rstrip()


@pytest.mark.parametrize("name", TEXTS)
def test_the_page_says_what_the_text_says(name):
    explanation = explain(TEXTS[name])
    page = re.sub(r"<[^>]*>", "", html_of(explanation)).replace("\xa0", " ")
    text = " ".join(explanation.text().split())
    verdict = (explanation.verdict,) if explanation.facts else ()
    for said in (explanation.headline, *verdict, *explanation.steps):
        assert said in text
        assert said.replace("'", "&#x27;").replace('"', "&quot;").replace(">", "&gt;") in page


def test_a_difference_of_rounded_numbers_is_about_that():
    assert size_text(Fact("free", Size(1 << 30, 5368710), "")) == "1.00 GiB"
    assert size_text(Fact("context", Size(1 << 30, 5368710), "", True)) == "about 1.00 GiB"
    assert size_text(Fact("context", Size(1000, 1 << 20), "", True)) == "below 1.00 MiB"
    assert size_text(Fact("context", None, "", True)) == "unknown"
