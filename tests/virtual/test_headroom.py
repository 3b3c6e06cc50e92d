"""An operator whose results have no room is refused before the host spends memory on them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


from gpumem_magic.sources import host_memory  # noqa: E402
from gpumem_magic.units import GIB, MIB  # noqa: E402
from gpumem_magic.virtual.catalog import lookup  # noqa: E402
from gpumem_magic.virtual.gpu import VirtualGPU  # noqa: E402
from gpumem_magic.virtual.headroom import HostMemoryError  # noqa: E402


class Host:
    """A host whose free memory the test says, and how often it was asked for."""

    def __init__(self, free=GIB):
        self.free = free
        self.looks = 0

    def __call__(self):
        self.looks += 1
        return 16 * GIB, self.free


@pytest.fixture
def host():
    return Host()


@pytest.fixture
def gpu(host):
    with VirtualGPU(lookup("T4")) as gpu:
        gpu.tracker._headroom._look = host
        yield gpu


LARGE = {
    "distances": (lambda x: torch.cdist(x, x), 2**36),
    "differences": (lambda x: x[:, None] - x[None], 2**37),
    "products": (lambda x: x @ x.T, 2**36),
    "outer": (lambda x: torch.outer(x[:, 0], x[:, 1]), 2**36),
    "repeat": (lambda x: x.repeat(2**16, 1), 2**36),
    "rows": (lambda x: x[torch.zeros(2**12, dtype=torch.long).cuda().expand(2**20, -1)], 2**35),
    "pictures": (lambda x: torch.nn.functional.interpolate(x[None, None], (2**18, 2**16)), 2**36),
    "padding": (lambda x: torch.nn.functional.pad(x, (0, 2**17 - 2)), 2**36),
    "convolution": (
        lambda x: torch.nn.functional.conv_transpose1d(
            x.T[None], x.view(2, 1, -1)[..., :4], stride=2**16
        ),
        0,
    ),
    "conversion": (lambda x: x[:, :1].expand(-1, 2**16).double(), 2**36),
    "concatenation": (lambda x: torch.cat([x[:, :1].expand(-1, 2**15)] * 2), 2**35),
    "dropout": (lambda x: torch.nn.functional.dropout(x[:, :1].expand(-1, 2**16)), 0),
}


@pytest.mark.parametrize("name", LARGE)
def test_what_the_card_cannot_hold_is_refused_in_the_cards_words(gpu, host, name):
    make, size = LARGE[name]
    x = torch.rand(2**17, 2, device="cuda")
    host.free = 1 << 50
    before = gpu.allocator.allocated
    with pytest.raises(torch.OutOfMemoryError) as raised:
        make(x)
    assert f"Tried to allocate {size / GIB:.2f} GiB" in str(raised.value) or not size
    assert gpu.allocator.allocated - before < 64 * MIB


def test_what_backward_makes_is_refused_too(gpu, host):
    class Wide(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient.expand(2**33, -1).exp().sum(0)

    host.free = 1 << 50
    x = torch.rand(4, device="cuda", requires_grad=True)
    with pytest.raises(torch.OutOfMemoryError, match=r"128.00 GiB"):
        Wide.apply(x).sum().backward()


@pytest.mark.parametrize("make", [lambda x: x.repeat(2**10, 1), lambda x: torch.ones(2**28).cuda()])
def test_what_the_host_cannot_hold_is_refused_with_what_to_do(gpu, host, make):
    x = torch.rand(2**17, 2, device="cuda")
    host.free = 700 * MIB
    before = gpu.allocator.allocated
    with pytest.raises(HostMemoryError, match=r"700.00 MiB are left.*%%gpucheck"):
        make(x)
    assert gpu.allocator.allocated == before
    host.free = 8 * GIB
    assert (x + 1).is_cuda


def test_many_small_results_are_counted(gpu, host):
    kept = [torch.zeros(MIB, device="cuda")]

    def fill():
        for _ in range(1000):
            kept.append(kept[0] + 1)
            host.free -= 4 * MIB

    with pytest.raises(HostMemoryError):
        fill()
    assert host.free > 0.02 * 16 * GIB
    assert host.looks < 30


def test_small_operators_ask_nobody(gpu, host):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda()
    for _ in range(10):
        model(torch.rand(32, 64, device="cuda")).sum().backward()
    assert host.looks == 0


@pytest.fixture
def groups(tmp_path, monkeypatch):
    monkeypatch.setattr(host_memory, "_GROUPS", tmp_path)
    monkeypatch.setattr(host_memory, "_MEMBERSHIP", tmp_path / "cgroup")

    def write(membership, **files):
        (tmp_path / "cgroup").write_text(membership)
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write


def test_the_limit_of_a_container_is_the_hosts_memory(groups):
    groups(
        "0::/user/kernel\n",
        memory_dot_max=f"{2 * GIB}\n",
        memory_dot_current=f"{GIB}\n",
        memory_dot_stat=f"anon 5\ninactive_file {300 * MIB}\n",
        user__memory_dot_max="max\n",
        user__kernel__memory_dot_max=f"{4 * GIB}\n",
        user__kernel__memory_dot_current="0\n",
        user__kernel__memory_dot_stat="inactive_file 0\n",
    )
    assert host_memory.host_memory() == (2 * GIB, GIB + 300 * MIB)


def test_so_is_that_of_the_first_version(groups):
    groups(
        "5:cpu:/x\n4:memory:/out/of/sight\n",
        **{
            "memory__memory_dot_limit_in_bytes": f"{2 * GIB}\n",
            "memory__memory_dot_usage_in_bytes": f"{GIB}\n",
            "memory__memory_dot_stat": f"total_inactive_file {MIB}\n",
        },
    )
    assert host_memory.host_memory() == (2 * GIB, GIB + MIB)
