"""What is asked of modules before a fork, and what notes show of a call."""

from __future__ import annotations

import importlib.util
import sys
import types

from gpumem_magic.isolation.telling import described, users_modules
from gpumem_magic.virtual.libraries.remembered import functions_that_ask


def test_a_module_that_loads_itself_late_is_not_loaded(tmp_path, monkeypatch):
    (tmp_path / "late.py").write_text("raise SystemExit('loaded')")
    spec = importlib.util.spec_from_file_location("late", tmp_path / "late.py")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "late", module)
    spec.loader.exec_module(module)
    found = users_modules()
    functions_that_ask()
    assert "late" in found
    assert type(module) is not types.ModuleType  # it is one once it is loaded


def test_what_is_no_module_is_no_module_of_the_user(monkeypatch):
    monkeypatch.setitem(sys.modules, "number", 3)
    assert "number" not in users_modules()


def test_notes_keep_secrets_to_themselves_and_nothing_else():
    named = {"token": "a", "API_KEY": "b", "password": 1234, "max_new_tokens": 8, "sort_keys": True}
    shown = described("f", (1,), named)
    assert shown == "f(1, token=..., API_KEY=..., password=..., max_new_tokens=8, sort_keys=True)"
