"""What is imported later is acted on, when it is complete and only then."""

from __future__ import annotations

import builtins
import importlib
import sys

import pytest

from gpumem_magic.isolation.arrivals import Arrivals


@pytest.fixture
def arrived(tmp_path, monkeypatch):
    """Modules that arrived, with the names they had then."""
    (tmp_path / "late_package").mkdir()
    (tmp_path / "late_package" / "__init__.py").write_text(
        "import late_package.part\nimport json, csv\nlast = 1\n"
    )
    (tmp_path / "late_package" / "part.py").write_text("import late_package\npart = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    for owner, name in ((builtins, "__import__"), (importlib._bootstrap, "_gcd_import")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # it puts back nothing by itself
    arrivals, arrived = Arrivals(), []
    for name, attribute in (("late_package", ""), ("late_package.part", "part"), ("sys", "")):
        arrivals.expect(name, lambda m: arrived.append((m.__name__, "last" in vars(m))), attribute)
    arrivals.expect("late_package", lambda module: arrived.append("never"), "absent")
    yield arrived
    for name in [n for n in sys.modules if n.startswith("late_package")]:
        del sys.modules[name]


@pytest.mark.parametrize("load", [__import__, importlib.import_module])
def test_each_module_arrives_once_and_whole(arrived, load):
    assert arrived == [("sys", False)]
    if load is importlib.import_module:
        load("late_package")
    else:
        import late_package
    import json  # noqa: F401

    import late_package  # noqa: F401

    assert sorted(arrived) == [("late_package", True), ("late_package.part", False), ("sys", False)]
