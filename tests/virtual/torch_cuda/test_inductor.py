"""Compiled code in a dry run, in the bytes that PyTorch's own allocator counted: torch 2.11's CUDA
build on a device whose kernels do nothing, with inductor's wrapper running."""

from gpumem_magic.predict import predict
from gpumem_magic.values.recording import Action
from gpumem_magic.virtual.torch_cuda.inductor import AS_WRITTEN, PLANNED

_HEAD = "import torch\nfrom torch import nn\n"


def _predicted(code):
    report = predict(_HEAD + code, {"__name__": "__main__"}, "40GiB")
    assert report.error is None, report.error
    return report


def test_inductors_plan_runs_forward_and_backward():
    code = (
        "torch.as_it_is = lambda model: model\n"
        "m = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Dropout(0.1), "
        "nn.Linear(4096, 1024)).cuda()\n"
        "x = torch.randn(512, 1024, device='cuda')\n"
        "c = torch.compile(m)\n"
        "for _ in range(2):\n"
        "    y = c(x)\n"
        "    y.sum().backward()\n"
    )
    report = _predicted(code)
    assert report.peak.allocated == 131_396_608
    assert report.peak.reserved == 165_675_008
    assert report.eager == predict(_HEAD + code.replace("compile", "as_it_is"), {}, "40GiB").peak
    assert report.notes == (PLANNED,)


def test_parts_between_graph_breaks_run_as_they_are_written():
    report = _predicted(
        "a = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()\n"
        "@torch.compile\n"
        "def f(x):\n"
        "    y = a(x).relu()\n"
        "    print('between')\n"
        "    return a(y * 2 + torch.sin(y)).sum()\n"
        "x = torch.randn(512, 1024, device='cuda')\n"
        "for _ in range(2):\n"
        "    f(x).backward()\n"
        "from torch.nn.attention.flex_attention import flex_attention\n"
        "q, slopes = torch.ones(1, 2, 128, 16).cuda(), torch.ones(2).cuda()\n"
        "scores = lambda score, batch, head, i, j: score + slopes[head] * (j - i)\n"
        "torch.compile(flex_attention)(q, q, q, score_mod=scores)\n"
        "assert torch.zeros(2, device='cuda').is_cuda\n"
    )
    assert report.output.startswith("between\nbetween\n")
    assert abs(report.peak.allocated / 164_971_520 - 1) < 0.02
    assert report.peak.reserved == 203_423_744
    assert PLANNED in report.notes


def test_flex_attention_holds_no_scores():
    report = predict(
        _HEAD + "from torch.nn.attention.flex_attention import create_block_mask, flex_attention\n"
        "q, k, v = (torch.randn(2, 8, 1024, 64, device='cuda', dtype=torch.float16, "
        "requires_grad=True) for _ in range(3))\n"
        "documents = torch.arange(1024, device='cuda') // 128\n"
        "def same(b, h, i, j):\n"
        "    return documents[i] == documents[j]\n"
        "def alibi(score, b, h, i, j):\n"
        "    return score + slopes[h] * (j - i)\n"
        "mask = create_block_mask(same, 2, None, 1024, 1024, device='cuda')\n"
        "slopes = torch.randn(8, device='cuda')\n"
        "flex = torch.compile(flex_attention, dynamic=False)\n"
        "for _ in range(2):\n"
        "    out = flex(q, k, v, score_mod=alibi, block_mask=mask)\n"
        "    out.sum().backward()\n",
        {},
        "40GiB",
    )
    assert report.error is None, report.error
    assert report.peak.allocated == 26_223_616
    assert report.eager.allocated > 400_000_000
    assert report.notes == (PLANNED,)


def test_what_is_on_the_host_or_compiled_otherwise_runs_as_it_is_written():
    report = _predicted(
        "c = torch.compile(nn.Linear(8, 8))\n"
        "assert c(torch.ones(2, 8)).shape == (2, 8)\n"
        "d = torch.compile(lambda x: x * 2, backend='eager')\n"
        "y = d(torch.ones(1024, device='cuda'))\n"
    )
    assert (report.peak.allocated, report.eager) == (8192, None)
    assert report.notes == (AS_WRITTEN,)


def test_autocast_with_fused_attention_is_planned_once():
    report = _predicted(
        "from torch._dynamo.utils import counters\n"
        "counters.clear()\n"  # what other tests compiled in this process
        "class Block(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.norm, self.qkv = nn.LayerNorm(512), nn.Linear(512, 1536)\n"
        "    def forward(self, x):\n"
        "        qkv = self.qkv(self.norm(x)).view(4, 256, 3, 8, 64).permute(2, 0, 3, 1, 4)\n"
        "        y = nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)\n"
        "        return x + y.transpose(1, 2).reshape(4, 256, 512)\n"
        "block = torch.compile(Block().cuda())\n"
        "x = torch.randn(4, 256, 512, device='cuda')\n"
        "for _ in range(3):\n"
        "    with torch.autocast('cuda', dtype=torch.bfloat16):\n"
        "        loss = block(x).square().mean()\n"
        "    loss.backward()\n"
        "print(counters['stats']['unique_graphs'])\n"
    )
    assert report.notes == (PLANNED,)
    assert report.output == "1\n"
    assert report.peak.allocated == 45_152_256


def test_convolutions_are_planned_in_the_layout_of_the_card():
    report = _predicted(
        "m = nn.Sequential(nn.Conv2d(64, 128, 3, 2, 1), nn.BatchNorm2d(128), nn.ReLU(), "
        "nn.Conv2d(128, 128, 3, 1, 1), nn.BatchNorm2d(128), nn.ReLU()).cuda()\n"
        "c = torch.compile(m)\n"
        "x = torch.randn(16, 64, 32, 32, device='cuda')\n"
        "for _ in range(2):\n"
        "    loss = c(x).square().mean()\n"
        "    loss.backward()\n"
    )
    assert PLANNED in report.notes
    assert report.peak.allocated == 28_356_608


def test_neither_a_loop_of_the_cell_nor_a_cast_breaks_the_graph():
    report = _predicted(
        "torch._dynamo.utils.counters.clear()\n"
        "blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(3)).cuda()\n"
        "@torch.compile\n"
        "def run(x):\n"
        "    for block in blocks:\n"
        "        x = block(x.to(torch.float32)).relu()\n"
        "    return x.sum()\n"
        "run(torch.randn(32, 64, device='cuda')).backward()\n"
        "print(sum(torch._dynamo.utils.counters['graph_break'].values()))\n"
    )
    assert report.notes == (PLANNED,)
    assert report.output == "0\n"


def test_fused_attention_takes_its_buffers_in_compiled_code_too():
    code = (
        "q = torch.randn(4, 8, 256, 64, device='cuda', dtype=torch.half, requires_grad=True)\n"
        "attend = {}(lambda q: nn.functional.scaled_dot_product_attention(q, q, q))\n"
        "attend(q).backward(torch.ones(4, 8, 256, 64, device='cuda', dtype=torch.half))\n"
    )

    def taken(run):
        events = _predicted(code.format(run)).basis.recording.events
        return events.size[events.action == Action.ALLOC].tolist()

    in_float32 = 4 * 8 * 256 * 64 * 4  # the gradient of the queries
    assert in_float32 in taken("torch.compile")
    assert in_float32 in taken("")


def test_tracing_takes_no_memory_and_may_have_unknown_sizes():
    code = "norm = {}\ny = norm(torch.ones(4096, 1024, device='cuda'))"
    norm = "nn.RMSNorm(1024, device='cuda')"
    plain = _predicted(code.format(norm)).peak.allocated
    for how in ("", ", dynamic=True"):
        report = _predicted(code.format(f"torch.compile({norm}{how})"))
        assert plain - 2**20 < report.peak.allocated <= plain
        assert report.notes == (PLANNED,)


def test_the_same_graph_is_planned_once_and_another_for_itself():
    report = _predicted(
        "from torch._dynamo.utils import counters\n"
        "counters.clear()\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer, self.kind = nn.Linear(512, 512), None\n"
        "    def forward(self, x):\n"
        "        if self.kind is None:\n"
        "            self.kind = 'found'\n"
        "        return self.layer(x).relu().square().mean()\n"
        "net = Net().cuda()\n"
        "c = torch.compile(net, dynamic=False)\n"
        "x = torch.ones(256, 512, device='cuda')\n"
        "def planned():\n"
        "    c(x).backward()\n"
        "    return counters['aot_autograd']['total']\n"
        "print(planned(), planned(), len(net.layer.weight.grad))\n"
        "net.kind = 'other'\n"
        "with torch.autocast('cuda'):\n"
        "    print(planned())\n"
    )
    assert report.output == "1 1 512\n2\n"


def test_what_code_makes_on_the_card_by_its_name_is_planned():
    report = _predicted(
        "net = nn.Linear(256, 256).cuda()\n"
        "@torch.compile\n"
        "def f(x):\n"
        "    places = torch.arange(256, device=torch.device('cuda'))\n"
        "    return (net(x.to('cuda')) + torch.zeros(256, device='cuda') + places).sum()\n"
        "f(torch.randn(64, 256, device='cuda')).backward()\n"
    )
    assert report.notes == (PLANNED,)


def test_programs_are_exported_for_the_card():
    report = _predicted(
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(512, 512)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x) + torch.ones(512, device='cuda')\n"
        "net, x = Net().cuda(), torch.ones(256, 512, device='cuda')\n"
        "batch = torch.export.Dim('batch', min=2, max=512)\n"
        "program = torch.export.export(net, (x,), dynamic_shapes={'x': {0: batch}})\n"
        "lower = program.run_decompositions()\n"
        "print(torch.cuda.max_memory_allocated())\n"
        "for one in program, lower:\n"
        "    y = one.module()(torch.ones(512, 512, device='cuda'))\n"
        "    print(y.device, y.shape[0])\n"
        "host = torch.export.export(nn.Linear(3, 3), (torch.ones(2, 3),))\n"
        "print(host.module()(torch.ones(2, 3)).device)\n"
    )
    size = 4 * (512 * 512 + 512 + 256 * 512)
    assert report.output == f"{size}\ncuda:0 512\ncuda:0 512\ncpu\n"
