"""Attacks on tensors, models, graphs, torch's settings, and the account of the device."""

from __future__ import annotations

TENSOR = "import torch; x = torch.arange(4.0, device='cuda'); h = torch.arange(4.0)"
SAME = "assert x.tolist() == [0, 1, 2, 3] and h.tolist() == [0, 1, 2, 3]"
MODEL = """
    import torch
    x = torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)).cuda()
    opt = torch.optim.Adam(net.parameters(), lr=0.1)
    data = torch.ones(3, 4, device='cuda') * torch.arange(3.0, device='cuda')[:, None]
    def step():
        opt.zero_grad()
        loss = net(data).pow(2).sum()
        loss.backward()
        opt.step()
        return loss
    first = step().item()
"""


def on(attack: str, after: str = SAME):
    """An attack on the tensors x (device) and h (host)."""
    return {"setup": TENSOR, "attack": attack, "after": after}


def on_model(attack: str, after: str = "assert 0 <= step().item() < 1e9"):
    """An attack on a model that was trained one step."""
    return {"setup": MODEL, "attack": attack, "after": after}


ATTACKS = {
    "in place": on("x.zero_(); h.fill_(9); x += 1; h[0] = 5; x[1:].mul_(3)"),
    "through data": on("x.data.fill_(7); h.data = torch.zeros(2); x.data = torch.zeros(9, device='cuda')"),
    "through a view": {
        "setup": TENSOR + "; v, w = x[1:], h.view(2, 2)",
        "attack": "v.zero_(); w.t_(); w[0, 0] = 9",
        "after": SAME + " and w.tolist() == [[0, 1], [2, 3]]",
    },
    "through numpy": {
        "setup": TENSOR + "; n = h.numpy()",
        "attack": "n[:] = 9; h.numpy()[0] = 1",
        "after": SAME + " and n.tolist() == [0, 1, 2, 3]",
    },
    "an array below a tensor": {
        "setup": "import torch, numpy as np; n = np.arange(4.0); x = h = torch.from_numpy(n)",
        "attack": "h.zero_(); h.share_memory_() if 0 else 0",
        "after": SAME + " and n.tolist() == [0, 1, 2, 3]",
    },
    "a buffer below a tensor": {
        "setup": "import torch; b = bytearray(b'safe'); x = torch.frombuffer(b, dtype=torch.uint8)",
        "attack": "x.zero_()",
        "after": "assert b == b'safe'",
    },
    "through the storage": on("x.untyped_storage().fill_(0); h.untyped_storage()[0] = 9"),
    "the storage resized": on("x.untyped_storage().resize_(0); h.resize_(100); x.set_()"),
    "into shared memory": on("h.share_memory_(); h.zero_()"),
    "pinned": on("p = h.pin_memory(); p.zero_()", SAME),
    "copied into": on("x.copy_(torch.ones(4)); h.copy_(x); torch.add(h, 1, out=h)"),
    "random in place": on("x.normal_(); h.uniform_(); torch.nn.init.zeros_(x)"),
    "deleted": on("del x, h; import gc; gc.collect(); torch.cuda.empty_cache()"),
    "named anew": on("x = x * 2; h = None"),
    "flags": on("x.requires_grad_(); h.grad = torch.ones(4); x.mark = 1; h.retain_grad() if 0 else 0"),
    "exchanged": on("torch.utils.swap_tensors(x, h)"),
    "scattered": on("x.index_add_(0, torch.tensor([0, 1], device='cuda'), x[:2]); h.scatter_(0, "
                    "torch.tensor([0]), torch.tensor([9.0]))"),
    "in containers": {
        "setup": TENSOR + "; cache = {'k': [x], 'v': (h,)}",
        "attack": "cache['k'][0].zero_(); cache['k'].append(x); cache['v'][0].add_(1); cache['n'] = h",
        "after": SAME + " and list(cache) == ['k', 'v'] and len(cache['k']) == 1",
    },
    "sparse": {
        "setup": "import torch; x = torch.eye(3).to_sparse()",
        "attack": "x.values().zero_() if x.is_coalesced() else 0; x.coalesce().values().mul_(0)",
        "after": "assert x.to_dense().sum() == 3",
    },
    "a large tensor": {
        "setup": "import torch; x = torch.ones(1 << 22, device='cuda'); y = torch.ones(1 << 22)",
        "attack": "x.zero_(); y.mul_(0); z = x + 1",
        "after": "assert x.sum().item() == 1 << 22 and y.sum().item() == 1 << 22",
    },
    "a model trained": on_model("for n in range(3): step()"),
    "a model of the host trained": {
        "setup": MODEL.replace(".cuda()", "").replace(", device='cuda'", ""),
        "attack": "for n in range(3): step()",
        "after": "assert 0 <= step().item() < 1e9",
    },
    "gradients": on_model("net(data).sum().backward(); opt.zero_grad(set_to_none=True)"),
    "buffers of a normalisation": on_model("net(data); net[1].reset_running_stats()"),
    "modes of a model": on_model("net.eval(); net.requires_grad_(False); net[0].training = True"),
    "a model moved and cast": on_model("net.half(); net.cpu(); net.to(torch.float64)"),
    "a model of the host moved": {
        "setup": "import torch; net = torch.nn.Linear(2, 2); w = net.weight",
        "attack": "net.cuda(); net.weight.data.zero_(); net.half()",
        "after": "assert net.weight is w and net.weight.abs().sum() > 0 and w.dtype == torch.float32",
    },
    "a model loaded": on_model("net.load_state_dict({k: v * 0 for k, v in net.state_dict().items()})"),
    "a model changed": on_model(
        "del net[2]; net.append(torch.nn.ReLU()); net[0].weight = torch.nn.Parameter(torch.ones(4, 4).cuda())\n"
        "net.register_buffer('b', torch.ones(2)); net.new = torch.nn.Linear(1, 1)"
    ),
    "hooks of a model": {
        "setup": MODEL + "\n    seen = []\n    k = net.register_forward_hook(lambda *_: seen.append(1))\n",
        "attack": "net(data); net.register_full_backward_hook(print); net[0].register_forward_pre_hook(print)\n"
        "k.remove()",
        "after": "assert seen == []\ny = net(data)\nassert seen == [1]",
    },
    "hooks of a tensor": {
        "setup": "import torch; x = torch.ones(2, requires_grad=True); seen = []\n"
        "k = x.register_hook(seen.append)",
        "attack": "(x * 2).sum().backward(); x.register_hook(print); k.remove()",
        "after": "assert seen == [] and x.grad is None\n(x * 3).sum().backward()\nassert len(seen) == 1",
    },
    "hooks of all": """
        import torch
        torch.nn.modules.module.register_module_forward_hook(print)
        from torch.optim.optimizer import register_optimizer_step_post_hook as hook
        hook(print)
        torch.autograd.graph.saved_tensors_hooks(print, print).__enter__()
    """,
    "an optimizer": on_model("opt.param_groups[0]['lr'] = 9; opt.state.clear(); opt.add_param_group("
                             "{'params': [torch.ones(1, requires_grad=True)]})"),
    "an optimizer loaded": on_model("opt.load_state_dict(opt.state_dict()); opt.step()"),
    "a schedule and a scaler": {
        "setup": MODEL + "\n    plan = torch.optim.lr_scheduler.StepLR(opt, 1)\n    s = torch.amp.GradScaler()\n",
        "attack": "opt.step(); plan.step(); s.scale(net(data).sum()).backward(); s.step(opt); s.update()",
        "after": "assert plan.last_epoch == 0",
    },
    "an averaged model": {
        "setup": MODEL + "\n    mean = torch.optim.swa_utils.AveragedModel(net)\n",
        "attack": "mean.update_parameters(net)",
        "after": "assert mean.n_averaged.item() == 0",
    },
    "weights normalised": on_model("torch.nn.utils.parametrizations.weight_norm(net[0])\n"
                                   "torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)"),
    "the graph of an earlier cell": {
        "setup": "import torch; w = torch.ones(2, device='cuda', requires_grad=True); y = (w * w).sum()",
        "attack": "y.backward()",
        "after": "assert w.grad is None\ny.backward()\nassert w.grad.tolist() == [2, 2]",
    },
    "the graph of an earlier cell on the host": {
        "setup": "import torch; w = torch.ones(2, requires_grad=True); y = (w * w).sum()",
        "attack": "y.backward(); w.grad.zero_()",
        "after": "assert w.grad is None\ny.backward()\nassert w.grad.tolist() == [2, 2]",
    },
    "the graph of an earlier model": {
        "setup": MODEL + "\n    loss = net(data).pow(2).sum()\n    opt.zero_grad()\n",
        "attack": "loss.backward(); opt.step()",
        "after": "loss.backward()\nopt.step()\nassert net[0].weight.grad is not None",
    },
    "what a function saved": {
        "setup": """
            import torch
            class Twice(torch.autograd.Function):
                calls = 0
                @staticmethod
                def forward(ctx, x):
                    Twice.calls += 1
                    ctx.save_for_backward(x)
                    return x * 2
                @staticmethod
                def backward(ctx, g):
                    Twice.calls += 10
                    return g * 2
            w = torch.ones(2, device='cuda', requires_grad=True)
            y = Twice.apply(w).sum()
        """,
        "attack": "y.backward(); Twice.apply(w)",
        "after": "assert Twice.calls == 1\ny.backward()\nassert w.grad.tolist() == [2, 2]",
    },
    "defaults of torch": """
        import torch
        torch.set_default_dtype(torch.float64)
        torch.set_default_device('cuda')
        torch.set_printoptions(precision=1)
        torch.set_float32_matmul_precision('high')
    """,
    "gradients off": """
        import torch
        torch.set_grad_enabled(False)
        torch.autograd.set_detect_anomaly(True)
        torch.inference_mode().__enter__()
    """,
    "threads and determinism": """
        import torch
        torch.set_num_threads(1 if torch.get_num_threads() > 1 else 2)
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = True
    """,
    "autocast entered": {
        "setup": "import torch; c = torch.autocast('cuda', torch.float16)",
        "attack": "c.__enter__(); torch.set_autocast_dtype('cuda', torch.bfloat16)",
    },
    "a mode entered": """
        import torch
        from torch.overrides import TorchFunctionMode
        class Mode(TorchFunctionMode): pass
        Mode().__enter__()
        torch.device('cuda').__enter__()
    """,
    "memory of the device": {
        "setup": "import torch; x = torch.ones(1 << 20, device='cuda'); y = torch.ones(1 << 22, device='cuda')\ndel y",
        "attack": """
            z = [torch.ones(1 << 20, device='cuda') for n in range(20)]
            del x
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        """,
        "after": "assert x.sum().item() == 1 << 20",
    },
    "the limit of the device": {
        "attack": "import torch; torch.cuda.set_per_process_memory_fraction(0.1)",
        "after": "import torch\nx = torch.empty(3 << 30, dtype=torch.uint8, device='cuda')\ndel x",
    },
    "out of memory": {
        "attack": "import torch; x = [torch.ones(1 << 30, device='cuda') for n in range(9)]",
        "setup": "import torch; y = torch.ones(1 << 20, device='cuda')",
        "after": "assert y.sum().item() == 1 << 20",
        "error": None,
        "says": "out of memory",
        "real": False,
    },
    "streams and events": {
        "setup": "import torch; s = torch.cuda.Stream(); e = torch.cuda.Event(enable_timing=True)",
        "attack": "with torch.cuda.stream(s): y = torch.ones(3, device='cuda')\ne.record(); s.synchronize()",
        "real": False,
    },
    "by fit": {
        "setup": MODEL,
        "attack": "n = 4\nz = torch.ones(n, 1 << 20, device='cuda')\nstep()",
        "options": "--fit n",
        "after": "assert 0 <= step().item() < 1e9",
    },
    "by advise": {"setup": MODEL, "attack": "y = net(data).double()\nstep()", "options": "--advise",
                  "after": "assert 0 <= step().item() < 1e9"},
    "by predict": {"setup": MODEL, "attack": "step()", "by_function": True,
                   "after": "assert 0 <= step().item() < 1e9"},
    "sent through a queue to itself": {
        "setup": "import torch, torch.multiprocessing as mp; q = mp.get_context('fork').Queue()",
        "attack": """
            t = torch.ones(3)
            q.put({'t': t, 'n': torch.nn.Linear(2, 2)})
            got = q.get(timeout=5)
            got['t'].fill_(2)
            assert t[0].item() == 2 and got['n'].weight.shape == (2, 2)
        """,
        "after": "assert q.empty()",
        "not_sent": "a queue",
    },
}  # fmt: skip


def test_nothing_outside_changes(attack, play):
    play(attack)
