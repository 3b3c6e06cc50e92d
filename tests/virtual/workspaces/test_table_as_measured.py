"""Single calls on an H200: what PyTorch allocated for them there, to the byte (calls.txt of the
benchmarks; what is off there is said in the same file)."""

from __future__ import annotations

import json

import pytest

from gpumem_magic import predict
from tests.benches import BENCHMARKS, benchmark_module

with benchmark_module("verify_gpu") as _benchmark:
    CALLS = _benchmark.single_calls()
SEEN = json.loads((BENCHMARKS / "results" / "gpu-nvidia-h200.json").read_text())["fidelity"][
    "cells"
]
EXACT = [
    name
    for name in CALLS
    if (row := SEEN.get(f"call: {name}")) and row["allocated"] == row["end"] == 0
]


@pytest.mark.parametrize("names", [EXACT[i::8] for i in range(8)], ids=range(8))
def test_calls_take_what_they_took_on_a_real_card(names):
    assert len(names) > 10
    off = {}
    for name in names:
        report = predict(CALLS[name], {}, gpu="H200")
        seen = SEEN[f"call: {name}"]["bytes"]
        if report.error or abs(report.peak.allocated / seen - 1) > 1e-6:
            off[name] = (report.error, report.peak.allocated, seen)
    assert off == {}
