"""torch.distributed of one process in a dry run: it meets nobody, and takes what it takes live."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpumem_magic import predict
from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.source import VirtualSource
from tests.dryrun.test_dryrun import dry, live, rows

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch was built without it")

GROUP = """
import os, torch
import torch.distributed as dist
os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
dist.init_process_group("nccl")
x = torch.ones(64, 512, device="cuda")
net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512))
net.cuda()
"""
STEPS = """
opt = torch.optim.AdamW(net.parameters())
for step in range(3):
    net(x).sum().backward()
    opt.step()
    opt.zero_grad()
dist.destroy_process_group()
"""
WRAPPED = {
    "ddp": "net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[0])",
    "ddp, unused": "net = torch.nn.parallel.DistributedDataParallel(net, find_unused_parameters=1)",
    "fsdp": "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nnet = FSDP(net)",
    "fully_shard": "from torch.distributed.fsdp import fully_shard\n"
    "mesh = dist.device_mesh.init_device_mesh('cuda', (1,))\n"
    "fully_shard(net[0], mesh=mesh), fully_shard(net, mesh=mesh)",
}
COLLECTIVES = """
out, host, found = torch.empty_like(x), [torch.zeros(3)], [None]
dist.all_reduce(x, async_op=True).wait()
dist.broadcast(x, 0), dist.barrier(), dist.all_gather([out], x), dist.all_to_all_single(out, x)
dist.scatter(out, [x], 0), dist.gather(x, [out], 0), dist.reduce(x, 0)
dist.all_gather(host, torch.arange(3.0))
dist.all_gather_object(found, {"a": 3})
told = [host[0].tolist(), *found]
for collective in (dist.gather_object, dist.scatter_object_list):
    collective([found] if collective is dist.gather_object else found, found)
dist.broadcast_object_list(found, src=0)
dist.all_reduce(x, group=dist.new_group([0]))
print(told, dist.get_backend(), dist.get_world_size())
"""


@pytest.fixture
def group(tmp_path):
    """A group that the notebook has made, with its threads."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/at", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_a_model_of_one_process_does_what_it_does_live(wrap):
    code = f"{GROUP}{wrap}\n{STEPS}"
    expected = live(code)
    gc.collect()
    found = dry(code)
    assert found.error is None
    assert rows(found) == rows(expected)


def test_collectives_hand_back_what_they_are_given():
    report = predict(GROUP + COLLECTIVES, {}, "T4")
    assert report.error is None
    assert report.output == "[[0.0, 1.0, 2.0], {'a': 3}] nccl 1\n"


@pytest.mark.usefixtures("group")
def test_a_group_from_before_sends_nothing_and_is_left_alone():
    net = DistributedDataParallel(torch.nn.Linear(3, 3))
    again = "dist.destroy_process_group()\n" + GROUP
    names = {"net": net, "dist": dist, "torch": torch, "x": torch.ones(2, 3)}
    report = predict(f"{COLLECTIVES}net(x).sum().backward()\ndel net\n{again}", names, "T4")
    assert report.error is None
    # AND the notebook's own goes on
    dist.all_reduce(x := torch.ones(2))
    assert (x.tolist(), dist.get_backend()) == ([1, 1], "gloo")


def test_stores_that_a_cell_makes_find_nobody():
    report = predict(
        """
import torch.distributed as dist
for store in (dist.TCPStore("localhost", 29500, 1, True), dist.FileStore("at", 1)):
    store.set("a", "b")
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    dist.destroy_process_group()
print(store.get("a"), store.path, isinstance(store, dist.FileStore))
        """,
        {},
        "T4",
    )
    assert report.error is None
    assert report.output == "b'b' at True\n"


def test_a_group_is_made_beside_the_virtual_card_of_another_shell():
    shells = [VirtualSource(lookup("T4")) for _ in range(2)]
    for source in shells:
        source.enter()
        source.leave()
    try:
        found = dry(GROUP + COLLECTIVES, origin=shells[-1])
    finally:
        for source in reversed(shells):
            source.close()
    assert found.error is None


def test_what_is_not_set_is_missed_as_ever(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    code = "import torch\ntorch.distributed.init_process_group('gloo', rank=0)"
    assert "WORLD_SIZE expected, but not set" in predict(code, {}, "T4").error
