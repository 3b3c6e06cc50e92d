"""What predictions were compared with numbers that others measured on real GPUs."""

import json
from pathlib import Path

from gpumem_magic.virtual.catalog import lookup

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
RUNS = json.loads((BENCHMARKS / "results" / "published.json").read_text())["runs"]


def test_enough_runs_of_enough_sources_were_compared():
    assert len(RUNS) >= 15
    assert len({run["source"] for run in RUNS}) >= 5
    assert {run["counter"] for run in RUNS} <= {"allocated", "reserved", "after"}


def test_every_run_says_where_it_was_published_and_each_gap_is_explained():
    for run in RUNS:
        assert run["page"].startswith("https://")
        assert run["card"]
        assert run["versions"]
        off = 100 * (run["predicted"] / run["published"] - 1)
        assert abs(off - run["percent"]) < 0.01
        assert abs(off) <= 1 or run["cause"], run["title"]


def test_the_results_are_those_of_the_runs_that_are_listed(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import published_runs

    listed = [(run.title, run.counter) for run in published_runs.RUNS]
    assert [(run["title"], run["counter"]) for run in RUNS] == listed
    for run in published_runs.RUNS:
        assert compile(run.code, run.cell, "exec")
        assert lookup(run.source.key)
