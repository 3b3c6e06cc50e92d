from __future__ import annotations

import threading

import pytest

from gpumem_magic.sources.cuda.regions import (
    BACKWARD,
    STEP,
    STEPPED,
    Regions,
    completed,
    encloses,
)
from gpumem_magic.values.recording import Frame, Phase

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")  # the first optimizer imports it, and it replaces functions


class Clock:
    """A position that the test moves."""

    def __init__(self):
        self.now = 0
        self.moments = []

    def position(self):
        return self.now

    def on_moment(self, kind, optimizer):
        self.moments.append((kind, optimizer))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def regions(clock):
    watch = Regions(clock.position, clock.on_moment)
    watch.install()
    yield watch
    watch.remove()


def ticking(clock, tensor):
    """The tensor, whose gradient takes one tick to compute."""

    def hook(grad):
        clock.now += 1

    tensor.register_hook(hook)
    return tensor


def ranges(regions):
    return [(span.phase, span.start, span.end) for span in regions.spans]


def test_backward_and_grad_are_spans_with_the_stack_of_their_call(clock, regions):
    x = torch.ones(2, requires_grad=True)
    clock.now = 3
    ticking(clock, x * 2).sum().backward()
    torch.autograd.grad(ticking(clock, x * 2).sum(), x)
    assert ranges(regions) == [(Phase.BACKWARD, 3, 4), (Phase.BACKWARD, 4, 5)]
    for span, function in zip(regions.spans, ("backward", "grad"), strict=True):
        assert span.stack[0].function == function
        assert any(frame.filename == __file__ for frame in span.stack)
    assert clock.moments == [(BACKWARD, None), (BACKWARD, None)]


def test_an_optimizers_step_is_a_span(clock, regions):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.register_step_post_hook(lambda *_: setattr(clock, "now", clock.now + 2))
    weight.grad = torch.ones(2)
    optimizer.step()
    assert ranges(regions) == [(Phase.OPTIMIZER, 0, 2)]
    assert clock.moments == [(STEP, optimizer), (STEPPED, optimizer)]


def test_a_closure_that_goes_backward_lies_inside_its_step(clock, regions):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def closure():
        clock.now += 1
        loss = ticking(clock, weight * 2).sum()
        loss.backward()
        clock.now += 1
        return loss

    optimizer.step(closure)
    assert ranges(regions) == [(Phase.OPTIMIZER, 0, 3), (Phase.BACKWARD, 1, 2)]


def test_among_equal_spans_the_outer_one_comes_first(clock, regions):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.step(lambda: (weight * 2).sum().backward())
    assert [phase for phase, _, _ in ranges(regions)] == [Phase.OPTIMIZER, Phase.BACKWARD]


def test_a_backward_that_raises_ends_its_span(clock, regions):
    x = torch.ones(2, requires_grad=True) * 1

    def hook(grad):
        clock.now += 1
        raise ValueError("on purpose")

    x.register_hook(hook)
    with pytest.raises(ValueError, match="on purpose"):
        x.sum().backward()
    clock.now = 9
    assert ranges(regions) == [(Phase.BACKWARD, 0, 1)]


class Failing(torch.optim.SGD):
    fails = True

    def step(self, closure=None):
        if self.fails:
            raise RuntimeError("on purpose")
        return super().step(closure)


def test_a_step_that_raised_ends_when_something_begins_outside_of_it(clock, regions):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = Failing([weight], lr=0.1)
    with pytest.raises(RuntimeError, match="on purpose"):
        optimizer.step()
    clock.now = 4
    ticking(clock, weight * 2).sum().backward()
    assert ranges(regions) == [(Phase.OPTIMIZER, 0, 4), (Phase.BACKWARD, 4, 5)]


def test_a_step_that_raised_last_ends_with_the_recording(clock, regions):
    optimizer = Failing([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(RuntimeError, match="on purpose"):
        optimizer.step()
    clock.now = 7
    regions.remove()
    assert ranges(regions) == [(Phase.OPTIMIZER, 0, 7)]


def test_a_backward_inside_another_threads_backward_shows_its_caller(clock, regions):
    # GIVEN a backward pass whose hook runs another one in a thread of its own, as autograd does
    inner = torch.ones(2, requires_grad=True) * 1
    outer = torch.ones(2, requires_grad=True) * 1
    outer.register_hook(lambda grad: run_bare(lambda: inner.sum().backward()))
    outer.sum().backward()
    first, second = regions.spans
    assert second.stack[-len(first.stack) :] == first.stack


def run_bare(function):
    """Run in a thread without Python frames below `function`'s own."""
    import _thread

    done = threading.Lock()
    done.acquire()

    def run():
        try:
            function()
        finally:
            done.release()

    _thread.start_new_thread(run, ())
    done.acquire()


def test_everything_is_put_back(clock):
    import torch.optim.optimizer as optimizers

    def state():
        hooks = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
        return vars(torch.autograd).copy(), [dict(h) for h in hooks]

    before = state()
    regions = Regions(clock.position, clock.on_moment)
    regions.install()
    assert state() != before
    regions.remove()
    regions.remove()
    assert state() == before


def test_a_wrapper_on_top_of_ours_stays_and_ours_becomes_inert(clock, monkeypatch):
    regions = Regions(clock.position, clock.on_moment)
    regions.install()
    name = "_engine_run_backward"
    ours = getattr(torch.autograd, name)

    def theirs(*args, **kwargs):
        return ours(*args, **kwargs)

    setattr(torch.autograd, name, theirs)
    regions.remove()
    try:
        assert getattr(torch.autograd, name) is theirs
        x = torch.ones(2, requires_grad=True)
        x.sum().backward()
        assert x.grad.tolist() == [1, 1]
        assert clock.moments == []
    finally:
        setattr(torch.autograd, name, ours.__wrapped__)


def test_without_the_engines_door_backward_and_grad_are_watched(clock, monkeypatch):
    # GIVEN torch 2.1, where each calls the engine itself
    run = torch.autograd._engine_run_backward
    monkeypatch.setattr("torch.autograd.graph._engine_run_backward", run)
    originals = torch.autograd.backward, torch.autograd.grad
    scope = {**vars(torch.autograd)}
    monkeypatch.setattr(torch.autograd, "backward", rebound(originals[0], scope))
    monkeypatch.setattr(torch.autograd, "grad", rebound(originals[1], scope))
    monkeypatch.delattr(torch.autograd, "_engine_run_backward")
    regions = Regions(clock.position, clock.on_moment)
    regions.install()
    x = torch.ones(2, requires_grad=True)
    ticking(clock, x * 2).sum().backward()
    regions.remove()
    assert ranges(regions) == [(Phase.BACKWARD, 0, 1)]


def rebound(function, scope):
    """The function with its own globals, so that it finds the engine where we cannot."""
    import types

    return types.FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
    )


A, B, C = (Frame("f.py", line, "f") for line in (1, 2, 3))
CELL = Frame("<cell>", 5, "<module>")


@pytest.mark.parametrize(
    ("stack", "caller", "whole"),
    [
        ((), (A, CELL), (A, CELL)),
        ((B,), (A, CELL), (B, A, CELL)),
        ((B,), (), (B,)),
        # the thread that called: its stack ends in the same cell
        ((B, Frame("<cell>", 6, "<module>")), (A, CELL), (B, Frame("<cell>", 6, "<module>"))),
        # a thread that Python started
        ((B, Frame("/lib/threading.py", 9, "_bootstrap")), (A, CELL), None),
    ],
)
def test_stacks_of_autograds_threads_are_completed(stack, caller, whole):
    assert completed(stack, caller) == (stack if whole is None else whole)


def test_a_stack_lies_inside_a_call_when_it_goes_through_it():
    assert encloses((A, CELL), (C, B, CELL))
    assert encloses((A, CELL), (B, CELL))
    assert not encloses((A, B, CELL), (A, CELL))
    assert not encloses((A, CELL), (B, Frame("<cell>", 6, "<module>")))
