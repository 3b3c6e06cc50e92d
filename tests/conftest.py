"""Fixtures: a fresh shell, a source that pretends, and a watch for what outlives a test; and which
tests are slow."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from gpumem_magic.values.findings import Level
from gpumem_magic.values.recording import Device, Events, LiveBlocks, Reading, Recording

from .speed import pytest_addoption, pytest_configure  # noqa: F401 - hooks of pytest

MIB = 1 << 20

# Tests run beside each other: threads of torch would only wait for one another, busily.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# An example may take as long as the machine needs.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

try:
    import torch

    from gpumem_magic.virtual import devices
except ImportError:
    pass
else:
    if not torch.cuda.is_available():
        devices.RELEASE = (2, 11)  # of which the bytes are that tests state

# Folders, files and tests that `make test` leaves to `make check`, by how their names begin.
SLOW = (
    "browser/",
    "isolation/effects/test_network.py::test_requests",
    "isolation/test_fresh.py",
    "isolation/walls/test_confinement.py::test_new_openmp_threads",
    "panel/test_board.py::test_the_package_gives_the_same_callable",
    "sources/holders/test_holders_robust.py::test_nothing_is_kept_alive",
    "sources/holders/test_walk_bounds.py::test_many_lost_tensors_are_found_together",
    "stacks/test_holders.py",
    "stacks/test_interrupts.py",
    "stacks/test_kernel.py",
    "stacks/test_odd_cells.py",
    "stacks/test_panel.py",
    "test___main__.py::test_ctrl_c_ends_it",
    "test_magics_recovery.py",
    "test_measure.py::test_a_script_runs",
    "test_notebooks.py::test_runs",
    "test_predict.py::test_large_values",
    "test_predict_cells.py::test_a_cell_runs_live",
    "test_predict_modules.py::test_a_trainer",
    "test_predict_modules.py::test_a_fit",
    "test_readme.py::test_every_cell_runs",
    "virtual/torch_cuda/test_inductor.py",
)

# Of each file of these it runs the first test only.
SAMPLED = (
    *(
        "advice/test_",
        "advice/causes/",
        "advice/rules/",
        "isolation/",
        "stacks/",
        *("panel/test_board.py", "panel/test_desk.py"),
        "sources/holders/test_holders.py",
    ),
    *("virtual/kernels/test_encoder_layer.py", "virtual/kernels/test_geometry_in_place.py"),
    *("virtual/libraries/test_like_layers.py", "virtual/libraries/test_nvml.py"),
    *("virtual/test_gpu_m", "virtual/test_headroom.py"),
    *("virtual/workspaces/test_table_as_measured.py", "dryrun/shapes/test_bounds.py"),
    *("virtual/test_source_long_cells.py", "virtual/torch_cuda/test_amp_lists.py"),
    *("virtual/torch_cuda/test_compiled.py", "virtual/torch_cuda/test_facade_"),
    *("virtual/torch_cuda/test_one_process.py",),
    *("test_magics_places.py", "test_magics_advice.py", "test_magics_gpucheck"),
    *("test_magics_out_of_memory.py", "test_magics_faults.py", "test_fitting.py"),
)

# What torch itself changes as it goes; its compiler, which the first optimizer loads, the last one.
TORCH_STATE = {
    "manual_seed",
    *("_initialized", "_queued_calls", "_tls", "_cached_device_count", "default_generators"),
    *("_warned_tensor_types", "_seen_cuda_tensor", "_lazy_seed_tracker", "_original_pid"),
}


def pytest_collection_modifyitems(items):
    here, seen = Path(__file__).parent, set()
    for item in items:
        name = item.path.relative_to(here).as_posix()
        begins = f"{name}::{item.name}".startswith
        if begins(SLOW) or (begins(SAMPLED) and name in seen):
            item.add_marker(pytest.mark.slow)
        seen.add(name)


def pytest_sessionstart():
    """Hear Ctrl-C, which tests send: a shell lets what it starts in the background ignore it.

    Leave the threads of pytest-xdist out of what Python tells of threads: whoever looks for what
    they hold would walk through all tests.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_XDIST_WORKER" in os.environ:
        every = sys._current_frames
        theirs = every().keys() - {threading.get_ident()}
        sys._current_frames = lambda: {i: f for i, f in every().items() if i not in theirs}


def pytest_collection_finish():
    """Load torch's compiler, which else the first optimizer loads, and each dry run's process anew.

    What was loaded and collected stays: no collection of garbage has to look through it.
    """
    if "torch" in sys.modules:
        importlib.import_module("torch._dynamo")
    gc.collect()
    gc.freeze()


def read_torch_attributes():
    """What user code finds in torch, by place and name; {} before torch is imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    places = [torch, torch.Tensor, torch._C, torch.cuda, torch.cuda.memory, torch.cuda.random]
    places += [torch.amp, torch.Generator, torch.nn.Module, torch.UntypedStorage]
    places += [getattr(torch, name) for name in ("accelerator",) if hasattr(torch, name)]
    module = type(sys)
    return {
        (place.__name__, name): value
        for place in places
        for name, value in vars(place).items()
        if name not in TORCH_STATE and not name.startswith("__") and not isinstance(value, module)
    }


def read_torch_modes():
    """The modes that act on this thread's torch calls, outermost first."""
    if "torch" not in sys.modules:
        return []
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]


def shell_hooks(shell):
    """All that an extension can put into a shell, but for what IPython 9 itself adds late."""
    magics = shell.magics_manager
    completers = shell.strdispatchers["complete_command"].strs
    found = {
        "cleanup": shell.input_transformers_cleanup,
        "post": shell.input_transformers_post,
        **shell.events.callbacks,
        "line": [*magics.magics["line"]],
        "cell": [*magics.magics["cell"]],
        "registry": magics.registry.values(),
        "configurables": shell.configurables,
        "tracebacks": [k for k in vars(shell.InteractiveTB) if k == "structured_traceback"],
        "completers": [*completers, *(h for chain in completers.values() for _, h in chain)],
    }
    return {where: [*filter(_is_lasting, hooks)] for where, hooks in found.items()}


def _is_lasting(hook):
    return not type(hook).__module__.startswith("IPython.core.magics.")


def changed(before, after):
    return sorted(
        str(name)
        for name in before.keys() | after.keys()
        if before.get(name) is not after.get(name)
    )


@pytest.fixture(autouse=True)
def _nothing_outlives_the_test():
    """No torch mode, patched attribute, allocator history or thread of ours is left."""
    before = read_torch_attributes()
    yield
    assert read_torch_modes() == []
    if before:
        assert changed(before, read_torch_attributes()) == []
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        here = torch.cuda.is_available()  # a CUDA build without a driver cannot be asked
        recording = getattr(torch._C, "_cuda_isHistoryEnabled", None) if here else None
        assert not (recording and recording()), "the allocator's history is still recorded"
    assert [t.name for t in threading.enumerate() if t.name.startswith("gpumem")] == []


@pytest.fixture(scope="module")
def nothing_old():
    """For tests that look at every object there is: those of earlier tests are no part of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def torch_attributes():
    """Tells what user code finds in torch, by place and name."""
    return read_torch_attributes


@pytest.fixture
def torch_modes():
    """Tells the modes that act on this thread's torch calls."""
    return read_torch_modes


@pytest.fixture
def shell():
    """A fresh shell; at the end the extension is unloaded, and must leave nothing."""
    with fresh_shell() as shell:
        yield shell


@pytest.fixture
def new_shell():
    """For tests that need several shells, one after the other: `with new_shell() as shell`."""
    return fresh_shell


@contextmanager
def fresh_shell():
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    main = sys.modules["__main__"]
    InteractiveShell.clear_instance()
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "NoColor" if _is_old(InteractiveShell) else "nocolor"
    shell = InteractiveShell.instance(config=config)
    hooks = shell_hooks(shell)
    try:
        yield shell
    finally:
        shell.run_line_magic("unload_ext", "gpumem_magic")
        left = shell_hooks(shell)
        shell.atexit_operations()
        atexit.unregister(shell.atexit_operations)
        shell.restore_sys_module_state()
        sys.modules["__main__"] = main
        InteractiveShell.clear_instance()
    assert left == hooks


def _is_old(shell):
    import IPython

    return IPython.version_info < (9,)


class FakeSource:
    """A device where every cell allocates 3 MiB and keeps 2, and that notes its calls."""

    device = Device("Fake GPU", 0, 16 << 30, (7, 5), virtual=True)

    def __init__(self):
        self.calls = []
        self.cells = []
        self.errors = []
        self.fail_on = ""

    def note(self, call):
        self.calls.append(call)
        if call == self.fail_on:
            raise RuntimeError(f"{call} does not work")

    def enter(self):
        self.note("enter")

    def leave(self):
        self.note("leave")

    def level(self):
        return Level(2 * MIB, 20 * MIB, 120 * MIB)

    def start(self, namespaces):
        self.namespaces = namespaces
        self.note("start")

    def stop(self, cell, cells, error):
        self.note("stop")
        self.cells.append(cell)
        self.others = cells
        self.errors.append(error)
        before = Reading(0, 0, 100 * MIB, 100 * MIB)
        after = Reading(2 * MIB, 20 * MIB, 120 * MIB, 120 * MIB)
        columns = [
            np.array([3, 0, 0, 1], np.int8),
            np.array([512, 512, 4 * MIB, 4 * MIB], np.int64),
            np.array([20 * MIB, 2 * MIB, MIB, MIB], np.int64),
            np.array([20 * MIB, 2 * MIB, MIB, MIB], np.int64),
            np.full(4, -1, np.int32),
            np.zeros(4, np.int8),
            np.array([0.1, 0.1, 0.2, 0.3]),
        ]
        none = np.array([], np.int64)
        recording = Recording(
            device=self.device,
            cell=cell,
            started=1.0,
            seconds=0.5,
            before=before,
            after=after,
            events=Events(*columns),
            stacks=(),
            initial=LiveBlocks(none, none, none),
            cells=dict(cells),
            error=error and type(error).__name__,
        )
        return (recording,)

    def remember(self, recording, trace):
        pass

    def close(self):
        self.note("close")


@pytest.fixture
def source(monkeypatch):
    """The device that `choose_source` gives the extension in this test."""
    fake = FakeSource()
    monkeypatch.setattr("gpumem_magic.magics.monitor.choose_source", lambda name: fake)
    return fake


@pytest.fixture
def gpu():
    """A T4 that is on for the test's own code, with the default settings of the allocator."""
    import torch

    from gpumem_magic.allocator.settings import Settings
    from gpumem_magic.virtual.catalog import lookup
    from gpumem_magic.virtual.gpu import VirtualGPU

    torch.manual_seed(0)
    with VirtualGPU(lookup("T4"), Settings.parse("")) as card:
        yield card


@pytest.fixture
def allocated(gpu):
    """Bytes that tensors hold on the card now; the workspaces of libraries do not count."""

    def allocated():
        gc.collect()
        workspaces = sum(map(gpu.allocator.size_of, gpu.scratch.held.values()))
        return gpu.allocator.allocated - workspaces

    return allocated


@pytest.fixture
def blocks(gpu):
    """Sizes that were asked for since the last call, "+" for taken and "-" for given back."""
    seen = []

    def hear(action, address, size, requested):
        if action in (0, 1):
            seen.append(requested if action == 0 else -requested)

    def blocks():
        found = list(seen)
        seen.clear()
        return found

    gpu.allocator.on_event = hear
    yield blocks
    gpu.allocator.on_event = None
