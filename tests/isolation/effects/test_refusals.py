"""What cannot be predicted says so by its name."""

from __future__ import annotations

import os
import re
import sys

import pytest
import torch

from gpumem_magic import predict

LIBRARIES = {
    "flash_attn/__init__.py": "from flash_attn.flash_attn_interface import flash_attn_func\n",
    "flash_attn/flash_attn_interface.py": "def flash_attn_func(q, k, v): return q\n",
    "xformers/__init__.py": "",
    "xformers/ops.py": "def probe(): return 3\nFOUND = probe()\n",
    "cupy/__init__.py": "def zeros(n): return n\ndef is_available(): return True\n",
}


@pytest.fixture
def libraries(tmp_path, monkeypatch):
    """Small libraries of these names, which are not loaded yet."""
    names = {path.split("/")[0] for path in LIBRARIES}
    if any(name in sys.modules for name in names):
        pytest.skip("the real one is loaded")
    for path, text in LIBRARIES.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [n for n in sys.modules if n.partition(".")[0] in names]:
        del sys.modules[name]


def refused(code, **names):
    """The error of a cell in a dry run."""
    return predict(code, names, "T4").error or ""


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (
            "torch.distributed.init_process_group('gloo', world_size=2, rank=0, init_method="
            "'tcp://10.0.0.1:9')",
            "torch.distributed",
        ),
        ("torch.multiprocessing.spawn(print)", "torch.multiprocessing.spawn"),
        (
            "from torch.utils.cpp_extension import load_inline\n"
            "load_inline('x', ['int main() {}'])",
            "torch.utils.cpp_extension.load_inline",
        ),
    ],
)
def test_what_needs_other_processes_or_a_compiler_is_refused(code, named):
    error = refused("import torch\n" + code)
    assert error.startswith("NotImplementedError: ")
    assert named in error
    assert re.search("is not supported in a dry run: |: set WORLD_SIZE=1", error)


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("from flash_attn import flash_attn_func\nflash_attn_func(1, 2, 3)", "flash_attn_func"),
        ("from xformers.ops import FOUND, probe\nassert FOUND == 3\nprobe()", "xformers.ops.probe"),
        ("from cupy import is_available, zeros\nassert is_available()\nzeros(3)", "cupy.zeros"),
    ],
)
def test_kernels_of_others_are_refused_when_the_code_imports_them(libraries, code, named):
    assert named in refused(code)
    # AND outside they work, and were not imported
    names = {}
    assert not {
        name for name in sys.modules if f"{name.partition('.')[0]}/__init__.py" in LIBRARIES
    }
    exec(code, names)


@pytest.mark.skipif(os.environ.get("GPUMEM_MAGIC_PROCESS") == "fresh", reason="it is not sent")
def test_compiled_code_runs_eagerly_and_is_marked():
    calls = []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    module = torch.nn.Linear(2, 2)
    names = {
        "torch": torch,
        "backend": backend,
        "module": module,
        "compiled": torch.compile(module, backend=backend),
        "function": torch.compile(torch.sin, backend=backend),
        "x": torch.ones(1, 2),
        "calls": calls,
    }
    code = (
        "assert torch.equal(compiled(x), module(x))\n"
        "assert torch.equal(function(x), torch.sin(x))\n"
        "assert torch.equal(torch.compile(module, mode='max-autotune')(x), module(x))\n"
        "double = torch.compile(backend=backend)(lambda x: x * 2)\n"
        "assert torch.equal(double(x), x * 2)\n"
        "module.compile()\n"
        "assert torch.equal(module(x), compiled(x))\n"
        "assert calls == []\n"
    )
    report = predict(code, names, "T4")
    assert report.error is None
    told = [note for note in report.notes if note.startswith("torch.compile: runs eagerly")]
    assert len(told) == 1
    # AND outside it is compiled as ever
    assert module._compiled_call_impl is None
    assert torch.equal(names["compiled"](names["x"]), module(names["x"]))
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("load_inline", "torch.utils.cpp_extension"),
        ("nested_tensor", "torch.nested"),
    ],
)
def test_names_imported_earlier_are_refused_too(name, module):
    function = getattr(pytest.importorskip(module), name)
    error = refused("mine([])", mine=function)
    assert name in error
    assert "is not supported in a dry run: " in error
    assert getattr(pytest.importorskip(module), name) is function


def test_nested_tensors_of_the_other_layout_are_made():
    code = "made = torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged)\nmade.layout"
    assert refused(code, torch=torch) == ""


def test_attention_among_nested_tensors_says_what_to_do():
    code = (
        "rows = [torch.ones(2, 8), torch.ones(3, 8)]\n"
        "x = torch.nested.nested_tensor(rows, layout=torch.jagged)\n"
        "x = x.unflatten(-1, [2, 4]).transpose(1, 2).requires_grad_()\n"
        "torch.nn.functional.scaled_dot_product_attention(x, x, x)"
    )
    assert "use padded tensors and a mask" in refused(code, torch=torch)
