"""What libraries remember of the device is asked for anew inside, and stays as it was outside."""

from __future__ import annotations

import functools
import sys
import types

import pytest
import torch

from gpumem_magic import predict


@functools.cache
def device():
    return "cuda" if torch.cuda.is_available() else "cpu"


def test_a_remembered_device_is_the_card_inside_and_untouched_outside(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device() == "cpu"
    monkeypatch.undo()
    names = {"device": device}
    report = predict("assert device() == 'cuda'", names, gpu="T4")
    assert report.error is None
    assert device.cache_info().currsize == 1
    assert device() == "cpu"


@pytest.mark.parametrize("maxsize", [None, 4])
@pytest.mark.parametrize("packed", ["mask", "(mask, 7)"])
def test_tensors_that_a_function_remembers_stay(maxsize, packed, new_shell):
    with new_shell() as shell:
        shell.run_cell("%load_ext gpumem_magic\n%gpumem --device T4")
        shell.run_cell(
            f"import functools, torch\n@functools.lru_cache({maxsize})\ndef mask_of(n):\n"
            f"    mask = torch.ones(n).cuda()\n    return {packed}\nmask_of(1 << 18)"
        )
        shell.run_cell("%%gpucheck -o found\nagain = mask_of(1 << 18)")
        report = shell.user_ns["found"]
        shell.run_line_magic("unload_ext", "gpumem_magic")
    assert (report.before.allocated, report.peak.allocated) == (1 << 20, 1 << 20)


def test_the_state_of_accelerate_is_the_cards_inside(monkeypatch):
    module = types.ModuleType("accelerate.state")
    shared = {"device": torch.device("cpu")}
    module.PartialState = type("PartialState", (), {"_shared_state": shared})
    monkeypatch.setitem(sys.modules, "accelerate.state", module)
    code = "import torch\nx = torch.ones(256, device=state.PartialState._shared_state['device'])"
    report = predict(code, {"state": module}, gpu="T4")
    assert report.peak.allocated == 1024
    assert shared == {"device": torch.device("cpu")}


def test_a_torch_without_cuda_names_a_version_but_to_what_is_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "built_for_the_host.py").write_text("import torch\nversion = torch.version.cuda")
    code = """
import torch, built_for_the_host
assert int(torch.version.cuda.split(".")[0]) >= 11
assert built_for_the_host.version == known
"""
    known = torch.version.cuda
    assert predict(code, {"known": known}, gpu="L4").error is None
    assert torch.version.cuda == known
