"""README and docs tell the truth: their cells run and show what they say, tables miss nothing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import nbformat
import pytest
from jupyter_client import KernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = (README, *sorted(DOCS.glob("*.md")))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FORGET = """\
get_ipython().run_line_magic("unload_ext", "gpumem_magic")
get_ipython().reset()
"""
WITH_CELLS = [page for page in PAGES if "```python" in page.read_text()]


def cells_and_outputs(page):
    """[code, expected output or None] of the page's blocks, in order."""
    pairs = []
    for language, text in BLOCK.findall(page.read_text()):
        if language == "python":
            pairs.append([text, None])
        elif language == "text":
            pairs[-1][1] = text
    return pairs


def shown(cell):
    """What a person sees below the cell, as text."""
    texts = [
        output.text if output.output_type == "stream" else output.data["text/plain"]
        for output in cell.outputs
    ]
    return "\n".join(text.rstrip("\n") for text in texts)


def normalised(text):
    """Without what differs from run to run: times, and blanks at the ends of lines."""
    text = re.sub(r"\d+(\.\d+)? (ms|s)\b", "# s", text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def matches(expected, text):
    """Whether `text` is `expected`, in which a line of three dots stands for any lines."""
    parts = re.split(r"^\.\.\.\n?", normalised(expected) + "\n", flags=re.MULTILINE)
    pattern = r"(?:.*\n)*?".join(map(re.escape, parts))
    return re.fullmatch(pattern, normalised(text) + "\n")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs cells, all in one kernel, which has forgotten those of the page before."""
    resources = {"metadata": {"path": str(tmp_path_factory.mktemp("pages"))}}
    kernel = KernelManager()
    kernel.start_kernel(cwd=resources["metadata"]["path"])

    def run(codes):
        cells = [nbformat.v4.new_code_cell(code.rstrip("\n")) for code in (FORGET, *codes)]
        notebook = nbformat.v4.new_notebook(cells=cells)
        NotebookClient(notebook, kernel, timeout=120, resources=resources).execute()
        return notebook.cells[1:]

    yield run
    kernel.shutdown_kernel(now=True)


@pytest.mark.parametrize("page", WITH_CELLS, ids=lambda page: page.stem)
def test_every_cell_runs_and_shows_what_the_page_says(page, run):
    """WRITE_DOCS=1 writes what differs and is not cut short anew."""
    pairs = cells_and_outputs(page)
    cells = run(code for code, _ in pairs)
    found = [(shown(cell), said) for cell, (_, said) in zip(cells, pairs, strict=True)]
    wrong = [pair for pair in found if pair[1] is not None and not matches(pair[1], pair[0])]
    if os.environ.get("WRITE_DOCS"):
        text = page.read_text()
        for new, old in wrong:
            text = text.replace(old, normalised_ends(new), 1) if "\n...\n" not in old else text
        page.write_text(text)
    for new, said in wrong:
        assert normalised(new) == normalised(said)


def normalised_ends(text):
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"


def test_the_readme_is_read_in_a_minute():
    assert len(README.read_text().splitlines()) <= 150


def test_every_option_is_in_the_table():
    from gpumem_magic.magics.gpumem import OPTIONS

    for option in OPTIONS.options:
        assert option.flags[-1] in (DOCS / "magics.md").read_text(), option.flags


def test_every_setting_is_in_the_table():
    from gpumem_magic.magics.settings import GpuMem

    text = (DOCS / "magics.md").read_text()
    for name, trait in GpuMem.class_own_traits(config=True).items():
        row = re.search(rf"^\| `{name}` \| `(.*?)` \|", text, re.MULTILINE)
        assert row, name
        assert row[1] == (str(trait.default_value) or '""')


def test_every_rule_is_in_the_table():
    """WRITE_DOCS=1 writes the table anew."""
    from gpumem_magic.advice import RULES
    from gpumem_magic.values.advice import Kind

    told = {Kind.MISTAKE: "always", Kind.TRADE: "when memory is short", Kind.FACT: "always"}
    rows = [f"| `{rule.name}` | {rule.problem} | {told[rule.kind]} |" for rule in RULES]
    table = "\n".join(["", "| rule | what it finds | told |", "|---|---|---|", *rows, ""])
    start, end = "<!-- rules -->", "<!-- end of rules -->"
    page = DOCS / "advice.md"
    above, _, rest = page.read_text().partition(start)
    found, _, below = rest.partition(end)
    if os.environ.get("WRITE_DOCS"):
        page.write_text(f"{above}{start}\n{table.lstrip()}{end}{below}")
    assert found.strip() == table.strip()


def test_advice_costs_no_more_than_promised():
    results = json.loads((ROOT / "benchmarks" / "results" / "advice.json").read_text())
    text = (DOCS / "advice.md").read_text()
    promised = re.search(r"costs no run and at most ([\d.]+) s", text)[1]
    assert max(cell["seconds"] for cell in results["cells"]) <= float(promised)


def test_the_costs_are_those_that_were_measured():
    results = ROOT / "benchmarks" / "results"
    measured = {}
    for part in json.loads((results / "overhead.json").read_text()).values():
        measured.update(part)
    for run in json.loads((results / "analysis.json").read_text())["analysis"]:
        measured[f"{run['events']:,} memory events"] = run["seconds"]
    section = (DOCS / "numbers.md").read_text().split("## What it costs")[1]
    rows = re.findall(r"^\| `(.*)` \| ([\d.]+) (?:µs|ms|s) \|", section, re.MULTILINE)
    assert len(rows) >= 10
    for name, told in rows:
        assert float(told) == round(measured[name], len(told.split(".")[1])), name


TEXT = "".join(page.read_text() for page in PAGES)
LINK = re.compile(r"\]\(([^)#:]+)\)")


@pytest.mark.parametrize("target", sorted(set(re.findall(r"(?:`|\$ )make ([a-z][a-z-]*)", TEXT))))
def test_every_make_target_exists(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page):
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not missing


def test_the_pages_build_without_a_warning(tmp_path):
    sphinx = pytest.importorskip("sphinx.cmd.build")
    pytest.importorskip("myst_nb")
    pytest.importorskip("furo")
    stays = ["-D", "nb_execution_mode=off"]  # test_notebooks.py runs the notebooks
    assert sphinx.main(["-qW", "--keep-going", *stays, str(DOCS), str(tmp_path)]) == 0
    assert (tmp_path / "notebooks/1-first-measurement.html").exists()
    page = (tmp_path / "advice.html").read_text()
    assert "missing-no-grad" in page
    fetched = re.findall(r'(?:src|<link[^>]+href)="(https?:[^"]+)"', page)
    assert not fetched
