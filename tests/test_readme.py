"""The README tells the truth: its cells run and show what it says, its tables miss nothing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def cells_and_outputs():
    """[code, expected output or None] of the README's blocks, in order."""
    pairs = []
    for language, text in BLOCK.findall(README):
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


def test_every_cell_runs_and_shows_what_the_readme_says(tmp_path):
    pairs = cells_and_outputs()
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(code.rstrip("\n")) for code, _ in pairs]
    )
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()

    compared = 0
    for cell, (_, expected) in zip(notebook.cells, pairs, strict=True):
        if expected is not None:
            assert normalised(shown(cell)) == normalised(expected)
            compared += 1
    assert compared >= 2


def test_every_option_is_in_the_table():
    from gpumem_magic.magics.gpumem import OPTIONS

    for option in OPTIONS.options:
        assert option.flags[-1] in README, option.flags


def test_every_setting_is_in_the_table():
    from gpumem_magic.magics.settings import GpuMem

    for name, trait in GpuMem.class_own_traits(config=True).items():
        row = re.search(rf"^\| `{name}` \| `(.*?)` \|", README, re.MULTILINE)
        assert row, name
        assert row[1] == str(trait.default_value)


def test_every_rule_is_in_the_table():
    """WRITE_README=1 writes the table anew."""
    from gpumem_magic.advice import RULES
    from gpumem_magic.values.advice import Kind

    told = {Kind.MISTAKE: "always", Kind.TRADE: "when memory is short", Kind.FACT: "always"}
    rows = [f"| `{rule.name}` | {rule.problem} | {told[rule.kind]} |" for rule in RULES]
    table = "\n".join(["", "| rule | what it finds | told |", "|---|---|---|", *rows, ""])
    start, end = "<!-- rules -->", "<!-- end of rules -->"
    above, _, rest = README.partition(start)
    found, _, below = rest.partition(end)
    if os.environ.get("WRITE_README"):
        (ROOT / "README.md").write_text(f"{above}{start}\n{table.lstrip()}{end}{below}")
    assert found.strip() == table.strip()


def test_advice_costs_no_more_than_promised():
    results = json.loads((ROOT / "benchmarks" / "results" / "advice.json").read_text())
    promised = re.search(r"costs no run and at most ([\d.]+) s", README)[1]
    assert max(cell["seconds"] for cell in results["cells"]) <= float(promised)


def test_the_costs_are_those_that_were_measured():
    results = ROOT / "benchmarks" / "results"
    measured = {}
    for part in json.loads((results / "overhead.json").read_text()).values():
        measured.update(part)
    for run in json.loads((results / "analysis.json").read_text())["analysis"]:
        measured[f"{run['events']:,} memory events"] = run["seconds"]
    section = README.split("## What it costs")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(.*)` \| ([\d.]+) (?:µs|ms|s) \|", section, re.MULTILINE)
    assert len(rows) >= 10
    for name, told in rows:
        assert float(told) == round(measured[name], len(told.split(".")[1])), name


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake ([a-z][a-z-]*)", README))))
def test_every_make_target_exists(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)\)", README))
def test_every_link_leads_somewhere(link):
    assert (ROOT / link).exists()
