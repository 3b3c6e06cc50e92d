"""torch.distributed in one process, whose card is a virtual one."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.gpu import VirtualGPU

pytestmark = [
    pytest.mark.usefixtures("gpu"),
    pytest.mark.skipif(not dist.is_available(), reason="torch was built without it"),
]

WEIGHTS = (4_000_000, 4_000)
BUCKET = 2 * sum(WEIGHTS)


@pytest.fixture
def group(gpu, tmp_path, request):
    """One process that is a group of its own."""
    backend = getattr(request, "param", "gloo")
    where = f"file://{tmp_path / 'store'}"
    dist.init_process_group(backend, init_method=where, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def model():
    layers = [torch.nn.Linear(1000, 1000) for _ in range(2)]
    return torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1]).cuda()


@pytest.mark.usefixtures("group")
def test_ddp_takes_what_the_cuda_build_takes(model, blocks):
    """Sizes of torch 2.11's CUDA build, but for the bytes of two tensors of indices."""
    blocks()
    ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
    assert blocks() == [BUCKET, -BUCKET, BUCKET]
    x = torch.ones(10, 1000, device="cuda")
    ddp(x).sum().backward()
    blocks()
    loss = ddp(x).sum()
    large = [size for size in blocks() if abs(size) > 100]
    assert large[:3] == [-BUCKET, BUCKET // 2, BUCKET // 2]  # rebuilt, as gradients came
    loss.backward()
    assert blocks() == [
        *(4, 40_000, 40_000, -40_000, 4_000_000, 40_000, -40_000, 4_000, -4_000, -4_000_000),
        *(40_000, -40_000, -40_000, 4_000_000, 4_000, -40_000, -4_000, -4_000_000),
        -4,
    ]
    assert model[0].weight.grad.is_cuda


@pytest.mark.usefixtures("group")
def test_gradients_are_views_of_the_buckets(model, allocated):
    before = allocated()
    ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    ddp(torch.ones(1, 1000, device="cuda")).sum().backward()
    assert allocated() - before == pytest.approx(BUCKET, abs=2048)
    assert model[0].weight.grad.is_cuda


@pytest.mark.parametrize("group", ["nccl", "cpu:gloo,cuda:nccl", None], indirect=True)
@pytest.mark.usefixtures("group")
def test_gloo_stands_for_nccl_in_one_process(model):
    x = torch.ones(3, device="cuda")
    dist.all_reduce(x)
    dist.barrier()
    assert (x.device.type, x.tolist()) == ("cuda", [1, 1, 1])
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    ddp(torch.ones(1, 1000, device="cuda")).sum().backward()
    assert model[2].bias.grad.is_cuda


@pytest.mark.usefixtures("group")
def test_shards_of_one_process_take_what_is_gathered_besides(allocated):
    """Parameters become DTensors, whose shapes torch asks of fake tensors."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    model = torch.nn.Linear(1000, 1000, bias=False, device="cuda")
    before = allocated()
    fsdp.fully_shard(model, mesh=torch.distributed.init_device_mesh("cuda", (1,)))
    model(torch.ones(2, 1000, device="cuda")).sum().backward()
    assert (model.weight.is_cuda, model.weight.grad.to_local().is_cuda) == (True, True)
    assert allocated() - before == pytest.approx(WEIGHTS[0], abs=20_000)


@pytest.mark.usefixtures("group")
def test_functional_collectives_take_one_result():
    functional = pytest.importorskip("torch.distributed._functional_collectives")
    x = torch.ones(1_000_000, device="cuda")
    before = torch.cuda.memory_allocated()
    y = functional.all_reduce(x, "sum", dist.group.WORLD)
    assert torch.cuda.memory_allocated() - before == pytest.approx(4_000_000, abs=512)
    assert y.sum() == 1_000_000


def test_several_processes_are_refused_by_name(tmp_path):
    store = dist.HashStore()
    with pytest.raises(NotImplementedError, match="one card of one process: set WORLD_SIZE=1"):
        dist.init_process_group("nccl", store=store, rank=0, world_size=2)


@pytest.mark.usefixtures("group")
def test_models_of_the_host_stay_there(blocks):
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10))
    ddp(torch.ones(1, 10)).sum().backward()
    assert blocks() == []


def test_torch_is_as_it_was_afterwards(gpu):
    gpu.switch_off()
    before = dist.Reducer.__init__, dist.distributed_c10d._new_process_group_helper
    with VirtualGPU(lookup("T4")):
        assert dist.Reducer.__init__ is not before[0]
    assert before == (dist.Reducer.__init__, dist.distributed_c10d._new_process_group_helper)
    gpu.__enter__()
