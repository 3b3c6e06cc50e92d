"""What a function returns in a forked child, as a dry run is one."""

from __future__ import annotations

import faulthandler
import os
import pickle
import select
import signal

import pytest


@pytest.fixture
def gpu():
    """A T4 that is on for the test's own code."""
    import torch

    from gpumem_magic.sources.virtual.catalog import lookup
    from gpumem_magic.sources.virtual.gpu import VirtualGPU

    torch.manual_seed(0)
    with VirtualGPU(lookup("T4")) as card:
        yield card


@pytest.fixture
def allocated(gpu):
    """Bytes that tensors hold on the card now."""
    return lambda: gpu.allocator.allocated


@pytest.fixture
def in_child():
    """Calls `function(pipe)` in a forked child: its result, or the number of the signal that ended
    it; what it raises is raised here. pipe: the descriptor that the child has to keep."""
    return _in_child


def _in_child(function):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(function, write)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        if not select.select([pipe], [], [], 60)[0]:
            os.kill(child, signal.SIGKILL)
        told = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        return -status
    result, error = pickle.loads(told)
    if error is not None:
        raise error
    return result


def _answer(function, write):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(50)
    faulthandler.disable()  # some are to die of a signal
    try:
        answer = function(write), None
    except BaseException as error:
        answer = None, AssertionError(f"{type(error).__name__}: {error}")
    try:
        os.write(write, pickle.dumps(answer))
    finally:
        os._exit(0)
