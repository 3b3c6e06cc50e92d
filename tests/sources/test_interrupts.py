"""Ctrl-C at any moment: it ends the user's code, and never our own arithmetic half-way."""

from __future__ import annotations

import _signal
import ast
import asyncio
import contextlib
import gc
import random
import signal
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch

from gpumem_magic.sources import interrupts
from gpumem_magic.sources.interrupts import Interrupts
from gpumem_magic.sources.signal_actions import read_action
from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.gpu import VirtualGPU

MOMENTS = 100
ENOUGH = 3000  # turns after which an interrupt that was sent has been lost


@pytest.fixture
def default_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def churn():
    """Births and deaths of storages, random numbers, a graph and its backward pass."""
    x = torch.rand(64, 64, device="cuda", requires_grad=True)
    pieces = [x * n for n in range(3)]
    del pieces
    torch.nn.functional.dropout(x, 0.5).sum().backward()


def interrupted(wait):
    """Whether an interrupt that is sent after so many seconds ends a loop of `churn`."""
    main, sent = threading.main_thread().ident, threading.Event()

    def send():
        time.sleep(wait)
        signal.pthread_kill(main, signal.SIGINT)
        sent.set()

    sender = threading.Thread(target=send)
    turns = 0
    try:
        sender.start()
        while turns < ENOUGH:
            churn()
            turns += sent.is_set()
    except KeyboardInterrupt:
        return True
    finally:
        sender.join()
    return False


@pytest.mark.usefixtures("default_handler")
def test_no_interrupt_is_lost_and_none_leaves_anything(torch_modes, capfd):
    chance = random.Random(7)
    with VirtualGPU(lookup("T4")) as gpu:
        churn()
        gc.collect()
        modes, host = torch_modes(), torch.get_rng_state()
        allocated, blocks = gpu.allocator.allocated, len(gpu.storages.addresses)
        caught = 0
        for _ in range(MOMENTS):
            caught += interrupted(chance.uniform(0, 3e-3))
            assert torch_modes() == modes
            assert not gpu.tracker.is_suspended
            assert gpu.tracker.function is None
        gc.collect()
        # THEN what is alive is what was, every block is in the books, and the host drew nothing
        assert caught == MOMENTS
        assert len(gpu.storages.addresses) == blocks
        assert gpu.allocator.allocated == allocated
        held = [b for s in gpu.allocator.snapshot() for b in s.blocks if b.state != "inactive"]
        assert sum(b.size for b in held) == allocated
        assert torch.equal(torch.get_rng_state(), host)
    assert "ignored" not in capfd.readouterr().err


@pytest.fixture
def alarm():
    """`alarm(seconds)`: a TimeoutError is raised then, as many bound the time of a cell."""

    def late(number, frame):
        raise TimeoutError("late")

    def start(seconds):
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return late

    before = signal.getsignal(signal.SIGALRM)
    yield start
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("default_handler")
@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, TimeoutError)]
)
def test_a_signal_in_a_death_callback_ends_the_loop_around_it(number, raised, alarm, monkeypatch):
    alarm(0)
    with VirtualGPU(lookup("T4")) as gpu:
        free = gpu.allocator.free
        x = torch.ones(8, device="cuda")

        def free_and_raise(address):
            signal.raise_signal(number)
            free(address)

        monkeypatch.setattr(gpu.allocator, "free", free_and_raise)
        with pytest.raises(raised):  # noqa: PT012 - it comes in any turn of the loop
            del x
            for _ in range(1_000_000_000):
                pass
        assert gpu.allocator.allocated == 0


@pytest.mark.usefixtures("default_handler")
def test_an_interrupt_while_ipykernel_looks_after_a_collection_is_not_swallowed(capfd):
    def interrupted():
        signal.raise_signal(signal.SIGINT)

    def _clean_thread_parent_frames(phase, info):
        interrupted()

    handler, before = Interrupts(), gc.callbacks[:]
    gc.callbacks.append(_clean_thread_parent_frames)
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it comes in any turn of the loop
            handler.install()
            gc.collect()
            gc.callbacks.remove(_clean_thread_parent_frames)
            for _ in range(1_000_000_000):
                pass
    finally:
        gc.callbacks[:] = before
        handler.remove()
    assert "ignored" not in capfd.readouterr().err


@pytest.mark.usefixtures("default_handler")
def test_the_handler_of_before_is_back_and_the_users_own_stays():
    ours, native = Interrupts(), (signal.getsignal, signal.signal)
    ours.install()
    ours.install()
    assert _signal.getsignal(signal.SIGINT) != signal.default_int_handler
    ours.remove()
    assert _signal.getsignal(signal.SIGINT) == signal.default_int_handler
    assert (signal.getsignal, signal.signal) == native
    ours.install()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ours.remove()
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    ours.install()
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    ours.remove()


@pytest.mark.usefixtures("default_handler")
def test_what_is_asked_and_set_is_the_handler_that_users_see():
    heard = []

    def hear(number, frame):
        heard.append(number)

    inner, outer = Interrupts(), Interrupts()
    outer.install()
    inner.install()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.signal(signal.SIGINT, hear) is signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is hear
    signal.raise_signal(signal.SIGINT)
    inner.remove()
    outer.remove()
    assert heard == [signal.SIGINT]
    assert _signal.getsignal(signal.SIGINT) is hear


@pytest.mark.parametrize("is_set_before", [True, False])
def test_no_alarm_is_lost_and_none_leaves_our_books_half_way(alarm, is_set_before, capfd):
    chance = random.Random(7)
    if is_set_before:
        alarm(0)
    with VirtualGPU(lookup("T4")) as gpu:
        churn()
        gc.collect()
        allocated, blocks = gpu.allocator.allocated, len(gpu.storages.addresses)
        for _ in range(MOMENTS // 4):
            with pytest.raises(TimeoutError):  # noqa: PT012 - it comes in any turn of the loop
                late = alarm(chance.uniform(1e-4, 3e-3))
                for _ in range(ENOUGH):
                    churn()
            gc.collect()
            assert (gpu.allocator.allocated, len(gpu.storages.addresses)) == (allocated, blocks)
        assert signal.getsignal(signal.SIGALRM) is late
    assert _signal.getsignal(signal.SIGALRM) is late
    assert "ignored" not in capfd.readouterr().err


@pytest.mark.usefixtures("default_handler")
def test_a_signal_that_an_event_loop_hears_is_heard_once():
    heard = []

    async def hear():
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, heard.append, 1)
        code = "signal.raise_signal(signal.SIGUSR1)"
        exec(compile(code, contextlib.__file__, "exec"), {"signal": signal})
        await asyncio.sleep(0.05)
        loop.remove_signal_handler(signal.SIGUSR1)

    with VirtualGPU(lookup("T4")):
        asyncio.run(hear())
    assert heard == [1]


@pytest.mark.usefixtures("default_handler")
def test_asyncio_run_cancels_its_task_at_an_interrupt():
    cancelled = []

    async def wait():
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with VirtualGPU(lookup("T4")):
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(wait())
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert cancelled == ([True] if sys.version_info >= (3, 11) else [])


def test_what_is_named_as_indivisible_is_there():
    assert all(Path(place).exists() for place in interrupts._INDIVISIBLE)
    for file, names in interrupts._STEPS.items():
        tree = ast.parse(Path(file).read_text("utf-8"))
        assert names <= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}


CODES = {
    "here": "signal.raise_signal(signal.SIGINT); held = bool(ours.held)",
    "in generated code": "exec('signal.raise_signal(signal.SIGINT)'); held = bool(ours.held)",
}


@pytest.mark.usefixtures("default_handler")
def test_an_interrupt_where_a_figure_dies_is_not_swallowed(capfd):
    handler, found = Interrupts(), {"signal": signal}
    transforms = pytest.importorskip("matplotlib.transforms").__file__
    code = "def forget(reference): signal.raise_signal(signal.SIGINT)"
    exec(compile(code, transforms, "exec"), found)
    figure = {1, 2, 3}
    reference = weakref.ref(figure, found["forget"])
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it comes in any turn of the loop
            handler.install()
            del figure
            for _ in range(1_000_000_000):
                pass
    finally:
        handler.remove()
    assert reference() is None
    assert "ignored" not in capfd.readouterr().err


@pytest.mark.usefixtures("default_handler")
@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_an_interrupt_that_is_held_to_the_end_is_handled_there(code):
    held = Interrupts()
    held.install()
    found = {"signal": signal, "ours": held}
    exec(compile(code, contextlib.__file__, "exec"), found)
    assert found["held"]
    with pytest.raises(KeyboardInterrupt):
        held.remove()
    assert _signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(sys.platform != "linux", reason="it knows where the flags are there")
@pytest.mark.usefixtures("default_handler")
def test_what_the_system_does_about_it_stays():
    signal.siginterrupt(signal.SIGINT, False)
    flags = slice(136, 140)  # of glibc's struct sigaction
    handler, before = Interrupts(), read_action(signal.SIGINT)[flags]
    handler.install()
    assert read_action(signal.SIGINT)[flags] == before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    handler.remove()
    assert read_action(signal.SIGINT)[flags] == before
