"""What cannot be predicted says so by its name."""

from __future__ import annotations

import sys

import pytest
import torch

from gpumem_magic.sources.virtual.dryrun.refusals import refusing

LIBRARIES = {
    "flash_attn/__init__.py": "from flash_attn.flash_attn_interface import flash_attn_func\n",
    "flash_attn/flash_attn_interface.py": "def flash_attn_func(q, k, v): return q\n",
    "triton/__init__.py": "from triton.runtime.jit import JITFunction\n",
    "triton/runtime/__init__.py": "",
    "triton/runtime/jit.py": "class JITFunction:\n    def run(self): return 1\n",
    "bitsandbytes/__init__.py": "",
    "bitsandbytes/nn/__init__.py": "from bitsandbytes.nn.modules import Linear4bit\n",
    "bitsandbytes/nn/modules.py": "class Linear4bit:\n    def __init__(self): pass\n",
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


def refused(text):
    return pytest.raises(NotImplementedError, match=text)


def test_more_than_one_process_is_refused():
    with refusing(print):
        with refused(r"^torch.distributed.init_process_group is not supported in a dry run: "):
            torch.distributed.init_process_group("gloo", rank=0, world_size=1)
        with refused("DistributedDataParallel is not supported"):
            torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        from torch.distributed.fsdp import FullyShardedDataParallel

        with refused("FullyShardedDataParallel is not supported"):
            FullyShardedDataParallel(torch.nn.Linear(1, 1))
        with refused("torch.multiprocessing.spawn is not supported"):
            torch.multiprocessing.spawn(print)


def test_extensions_are_refused_before_they_are_compiled():
    with refusing(print):
        from torch.utils.cpp_extension import load_inline

        with refused("torch.utils.cpp_extension.load_inline is not supported"):
            load_inline("x", ["int main() {}"])


def test_kernels_of_others_are_refused_when_the_code_imports_them(libraries):
    with refusing(print):
        from bitsandbytes.nn import Linear4bit
        from cupy import is_available, zeros
        from flash_attn import flash_attn_func
        from triton import JITFunction

        with refused("flash_attn.*flash_attn_func is not supported"):
            flash_attn_func(1, 2, 3)
        with refused("a Triton kernel is not supported"):
            JITFunction().run()
        with refused("bitsandbytes.nn.modules.Linear4bit is not supported"):
            Linear4bit()
        with refused("cupy.zeros is not supported"):
            zeros(3)
        assert is_available()
    # THEN what was imported within works from now on
    assert flash_attn_func(1, 2, 3) == 1
    assert JITFunction().run() == 1
    assert isinstance(Linear4bit(), Linear4bit)
    assert zeros(3) == 3


def test_compiled_code_runs_eagerly_and_is_marked():
    calls, told = [], []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    module = torch.nn.Linear(2, 2)
    compiled = torch.compile(module, backend=backend)
    function = torch.compile(torch.sin, backend=backend)
    before = torch.compile, torch.nn.Module.compile, dict(vars(type(compiled)))
    x = torch.ones(1, 2)
    with refusing(told.append):
        assert torch.equal(compiled(x), module(x))
        assert torch.equal(function(x), torch.sin(x))
        assert torch.compile(module, mode="max-autotune") is module

        @torch.compile(backend=backend)
        def double(x):
            return x * 2

        assert torch.equal(double(x), x * 2)
        module.compile()
        assert torch.equal(module(x), compiled(x))
    assert calls == []
    assert len(told) == 1
    assert told[0].startswith("torch.compile: runs eagerly in a dry run")
    assert (torch.compile, torch.nn.Module.compile, dict(vars(type(compiled)))) == before
    assert module._compiled_call_impl is None
    # AND outside it is compiled as ever
    assert torch.equal(compiled(x), module(x))
    assert len(calls) == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_refused_afterwards(error):
    before = dict(vars(torch)), dict(vars(torch.distributed)), __builtins__["__import__"]
    with pytest.raises(error), refusing(print):
        raise error
    assert (dict(vars(torch)), dict(vars(torch.distributed)), __builtins__["__import__"]) == before


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("load_inline", "torch.utils.cpp_extension"),
        ("all_reduce", "torch.distributed"),
        ("barrier", "torch.distributed.distributed_c10d"),
        ("nested_tensor", "torch.nested"),
    ],
)
def test_names_imported_earlier_are_refused_too(name, module):
    function = getattr(pytest.importorskip(module), name)
    namespace = {"mine": function, "other": len}
    with refusing([].append) as rebind:
        rebind(namespace)
        with pytest.raises(NotImplementedError, match=f"{name}.* is not supported in a dry run: "):
            namespace["mine"]([])
    assert namespace["other"] is len
    assert getattr(pytest.importorskip(module), name) is function


def test_nested_tensors_of_the_other_layout_are_made():
    with refusing([].append):
        made = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert made.layout is torch.jagged
