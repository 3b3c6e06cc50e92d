"""The benchmarks as modules, for tests of what they measure."""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@contextmanager
def benchmark_module(name):
    """A benchmark; what it imports of its folder is forgotten at the end."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module(name)
    for new in set(sys.modules) - before:
        file = getattr(sys.modules[new], "__file__", None)
        if file and Path(file).is_relative_to(BENCHMARKS):
            del sys.modules[new]
