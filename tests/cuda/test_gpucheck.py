"""%gpucheck on a CUDA device: totals to the byte, and memory back after an out-of-memory error."""

from __future__ import annotations

import weakref

import pytest
from IPython.utils.capture import capture_output

from gpumem_magic.values.inventory import HolderKind

torch = pytest.importorskip("torch")

from gpumem_magic.virtual.workspaces.scratch import (  # noqa: E402 - needs torch
    cublas_workspace_size,
)

MIB = 1 << 20

TRAIN = """\
def train(batch):
    model = torch.nn.Linear(1024, 1024).to('cuda')
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(batch, 1024, device='cuda')
    kept.append(weakref.ref(x.untyped_storage()))
    for step in range(2):
        model(x).relu().square().mean().backward()
        optimizer.step()
    return model
model = train({})
"""


@pytest.fixture
def run(shell):
    def run(cell):
        with capture_output() as shown:
            result = shell.run_cell(cell, store_history=True)
        texts = [output.data["text/plain"] for output in shown.outputs]
        return result, shown.stdout + shown.stderr + "".join(texts)

    run("%load_ext gpumem_magic\nimport torch, weakref\nkept = []")
    return run


@pytest.fixture
def _small():
    """PyTorch may have no more than 1 GiB."""
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((1 << 30) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def _block_size(tensor):
    """What the allocator gave: more than was asked for where a free block nearly fitted."""
    segments = torch.cuda.memory_snapshot()
    blocks = [block for segment in segments for block in segment["blocks"]]
    return next(block["size"] for block in blocks if block["address"] == tensor.data_ptr())


def test_every_byte_has_a_holder(run, shell):
    left = torch.cuda.memory_allocated()  # by tests before this one, in a shell that is gone
    run("a = torch.ones(1 << 20, device='cuda')\nb = [a[:5], torch.ones(3, device='cuda')]\na @ a")
    run("%%gpumem -q\nw = torch.ones(512, 512, device='cuda', requires_grad=True)\n"
        "loss = (w @ w).sum()")  # fmt: skip
    _, text = run("%gpucheck -o held")
    held = shell.user_ns["held"]
    assert sum(holding.size for holding in held.holdings) == torch.cuda.memory_allocated()
    assert held.level.allocated + held.cached.size == torch.cuda.memory_reserved()
    assert held.size_of(HolderKind.UNKNOWN) <= left
    names = {holding.name: holding.size for holding in held.holdings}
    tensors = {"a": shell.user_ns["a"], "b[1]": shell.user_ns["b"][1], "w": shell.user_ns["w"]}
    assert {name: names[name] for name in tensors} == {
        name: _block_size(tensor) for name, tensor in tensors.items()
    }
    assert "In[3]:2" in text
    if None not in (held.context, held.others, held.level.device_used):
        parts = held.level.reserved + held.context + held.others
        assert parts == held.level.device_used


@pytest.mark.usefixtures("_small")
def test_after_out_of_memory_free_brings_everything_back(run, shell):
    result, _ = run(TRAIN.format(1 << 17))
    assert type(result.error_in_exec).__name__ == "OutOfMemoryError"
    del result
    held = shell.user_ns["kept"][0]
    assert held() is not None
    _, text = run("%gpucheck -o held")
    assert shell.user_ns["held"].size_of(HolderKind.EXCEPTION) >= 512 * MIB
    assert "%gpucheck --free" in text
    # WHEN the command is given
    result, text = run("%gpucheck --free -o recovery")
    # THEN the device has its memory back, and a smaller batch runs
    assert result.success, text
    assert held() is None
    assert shell.user_ns["recovery"].freed >= 512 * MIB
    workspace = cublas_workspace_size(torch.cuda.get_device_capability())
    assert torch.cuda.memory_reserved() < 32 * MIB + 3 * workspace
    assert run(TRAIN.format(64))[0].success


def test_the_output_history_and_gradients(run, shell):
    run("model = torch.nn.Linear(512, 512, device='cuda')\nmodel(torch.ones(1, 512, "
        "device='cuda')).sum().backward()\ntorch.ones(1 << 20, device='cuda')")  # fmt: skip
    held = weakref.ref(shell.user_ns["_"].untyped_storage())
    run("%gpucheck --free")
    assert held() is not None
    run("%gpucheck --free --outputs")
    assert held() is None
    assert shell.user_ns["model"].weight.grad is not None
    run("%gpucheck --free --all")
    assert shell.user_ns["model"].weight.grad is None
