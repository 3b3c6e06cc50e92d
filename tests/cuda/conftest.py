"""Tests on a real CUDA device, or the stub that stands for one: one process has one allocator."""

from __future__ import annotations

import gc

import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a CUDA device, real (make verify-gpu) or stub")


def pytest_collection_modifyitems(items):
    reason = _missing()
    for item in items:
        if "/tests/cuda/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def _missing():
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    return None if torch.cuda.is_available() else "this PyTorch finds no CUDA device"


@pytest.fixture(scope="session", autouse=True)
def _torch_is_settled():
    """What torch replaces in itself on first use has been replaced before the first test looks."""
    import torch
    import torch._dynamo

    torch.empty(1, device="cuda")


@pytest.fixture(autouse=True)
def _fresh_allocator():
    """Each test begins with an empty cache and ends with nothing held."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    yield
    torch.cuda.memory._record_memory_history(None)
    gc.collect()
