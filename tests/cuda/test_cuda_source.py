"""The real allocator against what we make of it: every number must be torch's own, to the byte."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from gpumem_magic.sources.cuda.source import CudaSource
from gpumem_magic.trace import build_trace
from gpumem_magic.values.recording import Action, Category, Cell, Phase

torch = pytest.importorskip("torch")
nn = torch.nn

MIB = 1 << 20
CELL = Cell("", __file__)


@pytest.fixture
def source():
    source = CudaSource()
    yield source
    source.close()


def measured(source, run, names=None, raises=()):
    """The recording of `run()` on the current device, and the error it raised."""
    source.start(lambda: {} if names is None else names)
    error = None
    try:
        run()
    except raises as caught:
        error = caught
    recordings = source.stop(CELL, {}, error)
    assert len(recordings) == 1
    return recordings[0]


def levels(recording):
    """Allocated and reserved bytes after every event."""
    events = recording.events
    signs = {Action.ALLOC: 1, Action.FREE: -1}
    reserves = {
        Action.SEGMENT_ALLOC: 1,
        Action.SEGMENT_MAP: 1,
        Action.SEGMENT_FREE: -1,
        Action.SEGMENT_UNMAP: -1,
    }
    allocated = np.array([signs.get(a, 0) for a in events.action.tolist()]) * events.size
    reserved = np.array([reserves.get(a, 0) for a in events.action.tolist()]) * events.size
    return (
        np.cumsum(allocated) + recording.initial.size.sum(),
        np.cumsum(reserved) + recording.before.reserved,
    )


def assert_torch_agrees(recording):
    """The recording ends where torch's counters stand, and no event was lost."""
    assert recording.complete, recording.notes
    assert recording.notes == ()
    assert recording.initial.size.sum() == recording.before.allocated
    assert recording.after.allocated == torch.cuda.memory_allocated()
    assert recording.after.reserved == torch.cuda.memory_reserved()
    allocated, reserved = levels(recording)
    if len(recording.events):
        assert allocated[-1] == torch.cuda.memory_allocated()
        assert reserved[-1] == torch.cuda.memory_reserved()


def stack_of(recording, row):
    index = recording.events.stack[row]
    return recording.stacks[index] if index >= 0 else ()


class Training:
    """A model with its optimizer; the memory of `step` is what a cell of a notebook would use."""

    def __init__(self, model, batch, make_optimizer):
        self.model = model.cuda()
        self.batch = batch
        self.optimizer = make_optimizer(self.model.parameters())

    def step(self):
        loss = self.model(self.batch).float().sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def steps(self):
        for _ in range(3):
            self.step()


class Transformer(nn.Module):
    def __init__(self, width=96, heads=4, depth=2, words=500):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)))


def mlp():
    model = nn.Sequential(nn.Linear(700, 1500), nn.ReLU(), nn.Linear(1500, 30))
    return model, torch.randn(64, 700, device="cuda")


def transformer():
    return Transformer(), torch.zeros(4, 50, dtype=torch.long, device="cuda")


def cnn():
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 900, 10)
    )
    return model, torch.randn(8, 3, 32, 32, device="cuda")


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("make", [mlp, transformer, cnn])
@pytest.mark.parametrize("optimizer", [sgd, torch.optim.Adam])
def test_training_reconciles_with_torchs_counters(source, make, optimizer):
    training = Training(*make(), optimizer)
    torch.cuda.reset_peak_memory_stats()
    recording = measured(source, training.steps)
    assert_torch_agrees(recording)
    allocated, reserved = levels(recording)
    assert max(allocated.max(), recording.before.allocated) == torch.cuda.max_memory_allocated()
    assert reserved.max() == torch.cuda.max_memory_reserved()
    assert recording.device.name == torch.cuda.get_device_name()
    assert recording.device.total == torch.cuda.mem_get_info()[1]


def test_the_level_is_torchs_at_every_line(source):
    # GIVEN a cell that notes torch's counter after each allocation
    noted = []

    def run():
        kept = []
        for size in (100, 700, 300_000, 3 * MIB, 11 * MIB, 30 * MIB + 7):
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            noted.append(torch.cuda.memory_allocated())
        for _ in range(3):
            del kept[1]
            noted.append(torch.cuda.memory_allocated())
        kept.append(torch.empty(MIB + 3, dtype=torch.uint8, device="cuda"))
        noted.append(torch.cuda.memory_allocated())

    recording = measured(source, run)
    changes = np.isin(recording.events.action, (Action.ALLOC, Action.FREE))
    assert levels(recording)[0][changes].tolist()[: len(noted)] == noted


def test_a_user_who_reset_the_peak_finds_it_as_without_us(source):
    def run():
        torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")

    def with_reset():
        torch.empty(90 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        run()

    held = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    assert held.is_cuda
    torch.cuda.reset_peak_memory_stats()
    run()
    alone = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert_torch_agrees(measured(source, run))
    assert (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) == alone
    recording = measured(source, with_reset)
    assert levels(recording)[0].max() == recording.before.allocated + 90 * MIB
    assert torch.cuda.max_memory_allocated() == alone[0]


def test_every_event_of_backward_names_the_line_that_called_it(source):
    training = Training(*mlp(), torch.optim.Adam)
    recording = measured(source, training.step)
    backward = np.flatnonzero(recording.events.phase == Phase.BACKWARD)
    assert len(backward) > 5
    for row in backward.tolist():
        functions = [frame.function for frame in stack_of(recording, row)]
        assert "backward" in functions
        assert "step" in functions
    assert (recording.events.stack >= 0).all()


def test_phases_follow_the_program(source):
    training = Training(*mlp(), torch.optim.Adam)
    events = measured(source, training.step).events
    allocated = events.phase[events.action == Action.ALLOC].tolist()
    # forward, backward, step, and whatever zero_grad does
    assert [Phase(p) for p in dict.fromkeys(allocated)][:3] == list(Phase)
    assert allocated == sorted(allocated)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_python_that_runs_inside_backward_shows_its_caller_beneath(source):
    x = torch.randn(MIB, device="cuda", requires_grad=True)

    def run():
        Doubled.apply(x).sum().backward()

    recording = measured(source, run)
    stacks = [stack_of(recording, row) for row in range(len(recording.events))]
    inside = [
        stack
        for stack in stacks
        if stack[0].filename == __file__ and [f.function for f in stack].count("backward") > 1
    ]
    assert inside
    for stack in inside:
        functions = [frame.function for frame in stack]
        assert functions.index("run") > functions.index("backward")


def test_checkpointed_forward_is_part_of_backward(source):
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, 500)).cuda()
    x = torch.randn(64, 500, device="cuda", requires_grad=True)
    for reentrant in (False, True):

        def run(reentrant=reentrant):
            checkpoint(model, x, use_reentrant=reentrant).sum().backward()

        recording = measured(source, run)
        assert_torch_agrees(recording)
        backward = np.flatnonzero(recording.events.phase == Phase.BACKWARD)
        again = [
            row for row in backward if "forward" in {f.function for f in stack_of(recording, row)}
        ]
        assert again
        assert all("run" in {f.function for f in stack_of(recording, row)} for row in again)


def test_a_users_running_history_is_read_along_and_left_running(source):
    torch.cuda.memory._record_memory_history(max_entries=5000)
    before = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    count = len(torch.cuda.memory._snapshot()["device_traces"][0])

    def run():
        torch.empty(7 * MIB, dtype=torch.uint8, device="cuda")

    recording = measured(source, run)
    assert_torch_agrees(recording)
    assert recording.events.requested[recording.events.action == Action.ALLOC].tolist() == [7 * MIB]
    assert torch._C._cuda_isHistoryEnabled()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    assert len(trace) > count
    theirs = [entry["size"] for entry in trace if entry["action"] == "alloc"]
    assert theirs == [3 * MIB, 7 * MIB]
    assert before.numel() == 3 * MIB


def test_a_users_history_with_frames_of_cpp_shows_the_same_lines(source):
    torch.cuda.memory._record_memory_history(stacks="all")
    training = Training(*mlp(), torch.optim.Adam)
    recording = measured(source, training.step)
    assert_torch_agrees(recording)
    assert (recording.events.stack >= 0).all()
    frames = {frame for stack in recording.stacks for frame in stack}
    assert not [frame for frame in frames if "::" in frame.function or not frame.filename]
    backward = recording.events.stack[recording.events.phase == Phase.BACKWARD]
    for index in backward.tolist():
        assert "step" in {frame.function for frame in recording.stacks[index]}


def test_a_history_that_the_cell_begins_goes_on_after_it(source):
    def run():
        torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.memory._record_memory_history(max_entries=1000)
        torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")

    original = torch.cuda.memory._record_memory_history
    recording = measured(source, run)
    assert torch.cuda.memory._record_memory_history is original
    assert_torch_agrees(recording)
    sizes = recording.events.requested[recording.events.action == Action.ALLOC].tolist()
    assert sizes == [2 * MIB, 4 * MIB]
    assert torch._C._cuda_isHistoryEnabled()


def test_a_history_that_the_cell_ends_is_off_after_it(source):
    dumped = []

    def run():
        torch.cuda.memory._record_memory_history(max_entries=1000)
        torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
        dumped.extend(torch.cuda.memory._snapshot()["device_traces"][0])
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")

    recording = measured(source, run)
    assert_torch_agrees(recording)
    sizes = recording.events.requested[recording.events.action == Action.ALLOC].tolist()
    assert sizes == [2 * MIB, 4 * MIB]
    assert [entry["size"] for entry in dumped if entry["action"] == "alloc"] == [2 * MIB]
    assert not torch._C._cuda_isHistoryEnabled()


def test_no_history_runs_after_a_cell(source):
    measured(source, lambda: torch.empty(MIB, device="cuda"))
    assert not torch._C._cuda_isHistoryEnabled()
    assert torch.cuda.memory._snapshot()["device_traces"][0] == []


def test_closing_gives_up_a_recording():
    original = torch.cuda.memory._record_memory_history
    engine = torch.autograd._engine_run_backward
    source = CudaSource()
    source.start(dict)
    source.close()
    assert not torch._C._cuda_isHistoryEnabled()
    assert torch.cuda.memory._record_memory_history is original
    assert torch.autograd._engine_run_backward is engine


@pytest.mark.parametrize("users", [False, True])
def test_the_first_events_are_summed_up_where_the_ring_buffer_is_full(users):
    source = CudaSource(max_entries=20)
    if users:
        torch.cuda.memory._record_memory_history(max_entries=20)
    torch.cuda.reset_peak_memory_stats()
    kept = []

    def run():
        kept.append(torch.empty(3 * MIB, dtype=torch.uint8, device="cuda"))
        torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")  # the peak
        for _ in range(50):
            torch.empty(MIB, dtype=torch.uint8, device="cuda")

    recording = measured(source, run)
    allocated, reserved = levels(recording)
    assert (allocated[-1], reserved[-1]) == (
        torch.cuda.memory_allocated(),
        torch.cuda.memory_reserved(),
    )
    assert recording.complete
    assert len(recording.events) <= 30
    assert recording.dropped is not None
    assert 80 <= recording.dropped <= 104
    (note,) = recording.notes
    assert note.startswith(f"The first {recording.dropped} events of this cell are summed up")
    assert allocated.max() == torch.cuda.max_memory_allocated()
    above = allocated.max() - recording.before.allocated
    assert 43 * MIB <= above < 45 * MIB  # a block may be up to 1 MiB larger than what was asked for
    source.close()


def test_a_full_ring_buffer_leaves_the_counters_where_these_do_not_tell_the_peak():
    source = CudaSource(max_entries=20)
    torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
    recording = measured(source, lambda: churn(50))
    assert not recording.complete
    assert len(recording.events) == 0
    assert recording.dropped is not None
    assert 80 <= recording.dropped <= 100
    assert "lost" in recording.notes[0]
    assert recording.after.allocated == torch.cuda.memory_allocated()
    source.close()


def churn(times):
    for _ in range(times):
        torch.empty(MIB, dtype=torch.uint8, device="cuda")


def test_a_users_history_of_the_state_alone_leaves_the_counters(source):
    torch.cuda.memory._record_memory_history("state")
    recording = measured(source, lambda: [torch.empty(MIB, device="cuda") for _ in range(3)])
    assert not recording.complete
    assert torch._C._cuda_isHistoryEnabled()


def test_statistics_that_the_cell_resets_do_not_lose_events(source):
    def run():
        torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.reset_accumulated_memory_stats()
        torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")

    for _ in range(3):
        torch.empty(MIB, device="cuda")
    recording = measured(source, run)
    assert recording.complete
    assert "reset" in recording.notes[0]
    sizes = recording.events.requested[recording.events.action == Action.ALLOC].tolist()
    assert sizes == [2 * MIB, 3 * MIB]


def test_a_cell_that_raises_is_recorded_and_all_is_put_back(source):
    kept = []

    def run():
        kept.append(torch.empty(6 * MIB, dtype=torch.uint8, device="cuda"))
        raise ValueError("on purpose")

    engine = torch.autograd._engine_run_backward
    recording = measured(source, run, raises=ValueError)
    assert_torch_agrees(recording)
    assert recording.error == "ValueError: on purpose"
    assert recording.failure is None
    assert torch.autograd._engine_run_backward is engine
    assert not torch._C._cuda_isHistoryEnabled()


def test_out_of_memory_says_what_was_wanted_and_where(source):
    free = torch.cuda.mem_get_info()[0]
    kept = []

    def run():
        kept.append(torch.empty(3 * MIB, dtype=torch.uint8, device="cuda"))
        kept.append(torch.empty(free + 100, dtype=torch.uint8, device="cuda"))

    recording = measured(source, run, raises=torch.OutOfMemoryError)
    assert_torch_agrees(recording)
    failure = recording.failure
    assert failure is not None
    assert failure.requested == -(-(free + 100) // 512) * 512
    assert failure.segment == -(-failure.requested // (2 * MIB)) * (2 * MIB)
    assert failure.device_free == torch.cuda.mem_get_info()[0]
    assert failure.reserved_free == recording.after.reserved - recording.after.allocated
    assert failure.message.startswith("CUDA out of memory. Tried to allocate")
    assert failure.phase is Phase.FORWARD
    assert recording.stacks[failure.stack][0].function == "run"
    assert recording.events.action[failure.position] == Action.OOM
    assert recording.retries == 1


def test_out_of_memory_in_an_optimizers_step_belongs_to_it(source):
    model = nn.Linear(2048, 1024, bias=False).cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def run():
        model.weight.grad = torch.ones_like(model.weight)
        held.append(
            torch.empty(torch.cuda.mem_get_info()[0] - 4 * MIB, dtype=torch.uint8, device="cuda")
        )
        optimizer.step()

    held = []
    recording = measured(source, run, raises=torch.OutOfMemoryError)
    assert recording.failure is not None
    assert recording.failure.phase is Phase.OPTIMIZER


def test_an_error_that_was_caught_is_no_failure(source):
    def run():
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
        torch.empty(MIB, device="cuda")

    recording = measured(source, run)
    assert recording.failure is None
    assert recording.error is None
    assert (recording.events.action == Action.OOM).sum() == 1


def test_owners_are_named_while_the_cell_runs(source):
    training = Training(*mlp(), torch.optim.Adam)
    names = {"model": training.model, "batch": training.batch, "optimizer": training.optimizer}
    recording = measured(source, training.step, names)
    end = max(label.position for label in recording.labels)
    assert 0 < end <= len(recording.events)
    by_name = {label.name: label for label in recording.labels}
    assert by_name["model[0].weight"].category is Category.PARAMETER
    assert by_name["model[0].weight"].address == training.model[0].weight.data_ptr()
    categories = {label.category for label in recording.labels}
    assert {Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE} <= categories


def test_cublas_keeps_workspaces_that_nobody_owns(source):
    model, batch = mlp()
    training = Training(model, batch, sgd)
    training.step()
    recording = measured(source, training.step)
    workspaces = [label for label in recording.labels if label.category is Category.WORKSPACE]
    sizes = dict(
        zip(recording.initial.address.tolist(), recording.initial.requested.tolist(), strict=True)
    )
    large = [label for label in workspaces if label.name == "cuBLAS workspace"]
    assert {sizes[label.address] for label in large} <= {8_519_680, 33_554_432}
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 15):
        assert len(large) == 2  # this thread's, and autograd's


def test_nothing_of_the_users_is_kept(source):
    import weakref

    def run():
        x = torch.randn(1000, 1000, device="cuda", requires_grad=True)
        names["x"] = x
        (x * 2).sum().backward()
        seen.append(weakref.ref(x))
        del names["x"]

    names, seen = {}, []
    gc.disable()  # nothing may wait for a collection either
    try:
        recording = measured(source, run, names)
        assert seen[0]() is None
    finally:
        gc.enable()
    assert recording.after.allocated == recording.before.allocated


def test_a_long_history_of_the_user_costs_nothing_but_time(source):
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    for _ in range(10_000):
        torch.empty(MIB, device="cuda")
    recording = measured(source, lambda: torch.empty(MIB, device="cuda"))
    assert_torch_agrees(recording)
    assert (recording.events.action == Action.ALLOC).sum() == 1


def test_two_cells_after_each_other(source):
    kept = []
    for size in (2, 5):

        def run(size=size):
            kept.append(torch.empty(size * MIB, dtype=torch.uint8, device="cuda"))

        recording = measured(source, run)
        assert_torch_agrees(recording)
        assert recording.after.allocated == recording.before.allocated + size * MIB


def test_what_a_cell_left_is_known_in_the_next(source):
    kept = []
    recording = measured(source, lambda: kept.append(torch.empty(MIB, device="cuda")))
    trace = build_trace(recording)
    source.remember(recording, trace)
    again = measured(source, lambda: None)
    assert again.initial.category is not None
    found = dict(zip(again.initial.address.tolist(), again.initial.category.tolist(), strict=True))
    told = dict(
        zip(trace.survivors.address.tolist(), trace.survivors.category.tolist(), strict=True)
    )
    assert kept[0].data_ptr() in told
    assert found == told
    # WHEN blocks come and go unseen, their addresses mean nothing any more
    source.remember(again, build_trace(again))
    torch.empty(MIB, device="cuda")
    assert measured(source, lambda: None).initial.category is None


def test_what_a_cell_releases(source):
    kept = [torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")]

    def run():
        kept.clear()
        torch.cuda.empty_cache()

    recording = measured(source, run)
    assert_torch_agrees(recording)
    assert recording.after.allocated == recording.before.allocated - 30 * MIB
    assert recording.after.device_used == recording.before.device_used - 30 * MIB
    assert Action.SEGMENT_FREE in recording.events.action


def test_memory_that_another_stream_uses(source):
    def run():
        other = torch.cuda.Stream()
        x = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        x.record_stream(other)
        del x
        with torch.cuda.stream(other):
            torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
        torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")

    assert_torch_agrees(measured(source, run))


def test_readings_speak_of_the_whole_device(source):
    kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    recording = measured(source, lambda: None)
    free, total = torch.cuda.mem_get_info()
    assert recording.after.device_used == total - free
    used = recording.after.process_used
    assert used is None or used > recording.after.reserved
    assert used is not None or recording.after.unknown["process_used"]
    level = source.level()
    assert level.allocated == torch.cuda.memory_allocated() >= kept.numel()
    assert (level.reserved, level.device_used) == (torch.cuda.memory_reserved(), total - free)


def test_asking_before_starting_is_an_error(source):
    with pytest.raises(RuntimeError, match="start comes first"):
        source.stop(CELL, {}, None)


def test_the_call_tree_has_every_byte_by_module(source):
    nets = {}

    def run():
        nets["net"] = net = nn.ModuleList(nn.Linear(256, 256) for _ in range(3)).cuda()
        x = torch.ones(64, 256, device="cuda")
        for layer in net:
            x = layer(x)
        x.sum().backward()

    recording = measured(source, run, nets)
    trace = build_trace(recording)
    assert sum(node.at_peak for node in trace.call_tree if not node.depth) == trace.peak.allocated
    told = " ".join(node.name for node in trace.call_tree)
    assert "net[0..2] > return F.linear(" in told
    assert "net[0..2] > parameter" in told
