"""What libraries keep for the process: their own names, random numbers, defaults, the shell."""

from __future__ import annotations

import random
import sys
import types

import numpy as np
import torch
from digest import Digest, hashed
from torch.nn.modules import module as hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

OWNERS = """
    builtins os posix posixpath shutil io pathlib tempfile glob zipfile socket ssl http.client urllib.request
    subprocess threading _thread time sched random logging warnings json pickle copyreg sqlite3 queue
    asyncio asyncio.events multiprocessing multiprocessing.context multiprocessing.shared_memory signal gc
    weakref functools itertools collections ctypes mmap fcntl select selectors locale decimal contextlib inspect
    importlib importlib._bootstrap types string codecs encodings getpass csv abc typing
    numpy numpy.random numpy.linalg
    torch torch._C torch._tensor torch.cuda torch.cuda.random torch.cuda.memory torch.nn torch.nn.functional
    torch.nn.init torch.nn.modules.module torch.optim torch.optim.optimizer torch.autograd torch.serialization
    torch.random torch.utils torch.utils.data torch.jit torch.amp torch.package torch.hub torch.multiprocessing
    torch.nn.modules.linear torch.nn.modules.batchnorm torch.utils.checkpoint torch.storage torch.functional
    IPython IPython.display IPython.core.getipython requests httpx
""".split()  # noqa: E501
CLASSES = (torch.Tensor, torch.nn.Module, torch.nn.Parameter, torch.nn.Linear, torch.UntypedStorage)
CLASSES += (torch.Generator, torch.optim.Optimizer, torch.optim.SGD, torch.optim.Adam)
CLASSES += (torch.autograd.Function, torch.utils.data.DataLoader, torch.nn.BatchNorm1d)

Names = dict[str, int]

# Stored by ask_device() in the shell for a moment.
DEVICE = """
gpu_answers = {
    "stats": {k: v for k, v in __import__("torch").cuda.memory_stats().items()},
    "allocated": __import__("torch").cuda.memory_allocated(),
    "reserved": __import__("torch").cuda.memory_reserved(),
    "most": (__import__("torch").cuda.max_memory_allocated(),
        __import__("torch").cuda.max_memory_reserved()),
    "free": __import__("torch").cuda.mem_get_info(),
    "random": __import__("torch").cuda.get_rng_state().tolist(),
    "seed": __import__("torch").cuda.initial_seed(),
    "card": __import__("torch").cuda.get_device_name(),
}
"""


def look_at_libraries(home: str) -> dict[str, str | Names]:
    """Names of libraries and of the user's modules, random numbers, defaults."""
    found = _owners()
    for name, module in list(sys.modules.items()):
        digest = Digest(home)
        if isinstance(module, types.ModuleType) and name != "__main__" and digest.is_users(name):
            digest.add(f"user module {name}", module)
            found |= digest.found
    return {**found, **_random(), **_torch(), **_others()}


def _owners() -> dict[str, Names]:
    owners = [(name, sys.modules[name]) for name in OWNERS if name in sys.modules]
    owners += [(kind.__qualname__, kind) for kind in CLASSES]
    return {f"library {name}": _names_in(owner) for name, owner in owners}


def _names_in(owner) -> Names:
    """What each name in a module or class is; modules in packages come with any import."""
    names = dict(vars(owner))
    for name in ("__warningregistry__", "_abc_impl", "__slotnames__"):  # the last: pickle's
        names.pop(name, None)
    return {name: id(what) for name, what in names.items() if type(what) is not types.ModuleType}


def _random() -> dict[str, str]:
    return {
        "random python": hashed(repr(random.getstate()).encode()),
        "random numpy": hashed(repr(np.random.get_state()).encode()),
        "random torch": hashed(torch.get_rng_state().numpy().tobytes()),
        "random torch seed": str(torch.initial_seed()),
    }


def _torch() -> dict[str, str]:
    names = [name for name in vars(hooks) if name.startswith("_global_")]
    facts = {
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "anomaly": torch.is_anomaly_enabled(),
        "autocast": [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
        "autocast dtype": [torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda")],
        "precision": torch.get_float32_matmul_precision(),
        "tf32": (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        "benchmark": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "hooks": [(name, repr(getattr(hooks, name))) for name in names],
        "printing": vars(torch._tensor_str.PRINT_OPTS),
        "modes": [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()],
        "sharing": torch.multiprocessing.get_sharing_strategy(),
        "safe globals": len(torch.serialization.get_safe_globals()),
        "saved tensor hooks": torch._C._autograd._top_saved_tensors_default_hooks(False),
        "pytrees": len(torch.utils._pytree.SUPPORTED_NODES),
        "flush denormal": bool(torch.tensor([1e-320], dtype=torch.float64).mul(1.0).item()),
    }
    return {f"torch {name}": str(value) for name, value in facts.items()}


def _others() -> dict[str, str]:
    found = {"numpy errors": str(np.geterr()), "numpy printing": str(np.get_printoptions())}
    if "matplotlib" in sys.modules:
        settings = dict.items(sys.modules["matplotlib"].rcParams)
        found["matplotlib settings"] = hashed(repr(sorted(settings, key=str)).encode())
    if "matplotlib.pyplot" in sys.modules:
        figures = sys.modules["matplotlib._pylab_helpers"].Gcf.figs
        found["matplotlib figures"] = str(
            [
                (n, id(m), len(m.canvas.figure.axes), [len(a.lines) for a in m.canvas.figure.axes])
                for n, m in figures.items()
            ]
        )
    return found


def look_at_shell(shell) -> dict[str, str]:
    """What IPython keeps, without what a cell that was typed adds to it."""
    magics = shell.magics_manager
    said = {
        "count": shell.execution_count,
        "typed": shell.history_manager.input_hist_raw[:],
        "events": {name: list(map(id, calls)) for name, calls in shell.events.callbacks.items()},
        "line magics": sorted(magics.magics["line"]),
        "cell magics": sorted(magics.magics["cell"]),
        "aliases": sorted(shell.alias_manager.aliases),
        "extensions": sorted(shell.extension_manager.loaded),
        "transformers": [
            *map(id, shell.input_transformers_cleanup),
            *map(id, shell.input_transformers_post),
            *map(id, shell.ast_transformers),
        ],
        "next input": (getattr(shell, "rl_next_input", None), shell.payload_manager.read_payload()),
        "hidden": sorted(name for name in shell.user_ns_hidden if not name.startswith("_i")),
        "formatters": {
            str(key): sorted(map(str, [*each.type_printers, *each.deferred_printers]))
            for key, each in shell.display_formatter.formatters.items()
        },
        "settings": (shell.ast_node_interactivity, shell.autocall, shell.autoawait, shell.colors),
        "exceptions": (shell.custom_exceptions, id(shell.CustomTB), shell.InteractiveTB.mode),
        "configuration": repr(shell.config),
        "folders": (list(shell.user_ns.get("_dh", ())), list(shell.dir_stack)),
        "bookmarks": shell.db.get("bookmarks"),
        "stored": sorted(map(str, shell.user_ns.get("_oh", {}))),
        "builtins": sorted(name for name in vars(sys.modules["builtins"]) if name != "_"),
    }
    for attribute in ("display_pub", "displayhook", "user_module", "compile"):
        said[f"its {attribute}"] = id(getattr(shell, attribute))
    return {f"shell {name}": str(value) for name, value in said.items()}


def ask_device(shell) -> dict[str, str]:
    """What torch.cuda says in a cell of the notebook."""
    shell.run_cell(DEVICE, store_history=False).raise_error()
    answers = shell.user_ns.pop("gpu_answers")
    answers["random"] = hashed(repr(answers["random"]).encode())
    stats = answers.pop("stats")
    return {f"device {key}": str(value) for key, value in {**answers, **stats}.items()}
