"""torch's own settings outlive no dry run."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem_magic.sources.virtual.dryrun.surroundings import unchanged_surroundings


def state():
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return {
        "dtype": torch.get_default_dtype(),
        "device": torch.empty(0).device,
        "functions": torch.overrides._get_current_function_mode_stack(),
        "dispatch": torch.utils._python_dispatch._get_current_dispatch_mode_stack(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "autocast": [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
        "autocast to": [torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda")],
        "autocast cache": torch.is_autocast_cache_enabled(),
        "autocast depth": (torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()),
        "deterministic": torch.get_deterministic_debug_mode(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "cudnn": (cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
        "tf32": (torch._C._get_cublas_allow_tf32(), torch._C._get_cudnn_allow_tf32()),
        "reduced": torch._C._get_cublas_allow_fp16_reduced_precision_reduction(),
        "precision": torch.get_float32_matmul_precision(),
        "attention": (
            *(cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()),
            cuda.cudnn_sdp_enabled(),
        ),
        "mkldnn": torch._C._get_mkldnn_enabled(),
        "einsum": (torch.backends.opt_einsum.enabled, torch.backends.opt_einsum.strategy),
        "threads": torch.get_num_threads(),
        "printing": dict(vars(torch._tensor_str.PRINT_OPTS)),
        "hooks": [
            [*value.items()]
            for place in (modules, optimizers)
            for name, value in sorted(vars(place).items())
            if name.startswith("_global_") and isinstance(value, dict)
        ],
        "full": modules._global_is_full_backward_hook,
        "safe": sorted(map(str, torch.serialization.get_safe_globals())),
        "warn": torch.is_warn_always_enabled(),
    }


def set_defaults():
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_printoptions(precision=9, sci_mode=True)


def set_flags():
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)
    torch.backends.opt_einsum.strategy = "optimal"
    torch.backends.mkldnn.set_flags(False)
    torch.set_warn_always(True)


def set_precision():
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = False


def set_tf32():
    torch.backends.cuda.matmul.allow_tf32 = True


def leave_modes_open():
    torch.set_grad_enabled(False)
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    torch.autocast("cpu", dtype=torch.float16, cache_enabled=False).__enter__()
    torch.autocast("cuda", dtype=torch.bfloat16).__enter__()
    torch.device("meta").__enter__()
    TorchFunctionMode().__enter__()
    TorchDispatchMode().__enter__()


def add_hooks():
    modules.register_module_forward_hook(print)
    modules.register_module_forward_pre_hook(print)
    modules.register_module_full_backward_hook(print)
    modules.register_module_module_registration_hook(print)
    optimizers.register_optimizer_step_post_hook(print)
    torch.serialization.add_safe_globals([torch.nn.Linear])


CHANGES = [set_defaults, set_flags, set_precision, set_tf32, leave_modes_open, add_hooks]


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("interrupt", [False, True])
def test_all_of_torch_is_as_it_was(change, interrupt):
    before = state()
    try:
        with unchanged_surroundings():
            change()
            if change is not leave_modes_open:
                assert state() != before
            if interrupt:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert interrupt
    assert state() == before


def test_a_users_own_settings_are_kept():
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("cpu")
    handle = modules.register_module_forward_hook(print)
    context, before = torch._GLOBAL_DEVICE_CONTEXT.device_context, state()
    try:
        with torch.no_grad(), torch.autocast("cpu"):
            inside = state()
            with unchanged_surroundings():
                torch.set_default_dtype(torch.float32)
                torch.set_grad_enabled(True)
                torch.clear_autocast_cache()
                handle.remove()
            assert state() == inside
        assert state() == before
        assert torch._GLOBAL_DEVICE_CONTEXT.device_context is context
    finally:
        handle.remove()
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def test_inference_mode_that_is_kept_in_a_variable_ends():
    kept = torch.inference_mode()
    with unchanged_surroundings():
        kept.__enter__()
        assert torch.is_inference_mode_enabled()
    assert not torch.is_inference_mode_enabled()
    del kept
    gc.collect()
    assert not torch.is_inference_mode_enabled()
    assert torch.ones(1, requires_grad=True).requires_grad


def test_the_generator_of_a_virtual_card_is_as_it_was(gpu):
    torch.cuda.manual_seed(5)
    before = torch.cuda.get_rng_state()
    with unchanged_surroundings():
        torch.randn(3, device="cuda")
        torch.cuda.manual_seed_all(7)
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_what_is_not_loaded_stays_so():
    code = (
        "import sys, torch\n"
        "from gpumem_magic.sources.virtual.dryrun.surroundings import unchanged_surroundings\n"
        "before = set(sys.modules)\n"
        "with unchanged_surroundings(): pass\n"
        "print(sorted(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
