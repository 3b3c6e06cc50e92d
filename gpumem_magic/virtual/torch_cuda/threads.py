"""Threads and processes that user code starts: torch's modes belong to one thread, the card to all
threads of one process."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import queues
from typing import Any, NoReturn

import torch
from torch import overrides

from gpumem_magic.sources import ACTIVE
from gpumem_magic.sources.objects.contents import Contents
from gpumem_magic.sources.stacks.tracebacks import cut_ours
from gpumem_magic.virtual.patches import Patches
from gpumem_magic.virtual.torch_cuda.facade import Facade
from gpumem_magic.virtual.tracker import BACKWARD, Tracker

_MOST_WITHIN = 10_000


class Here(threading.local):
    """The modes of the thread that asks: the façade, or None where it has none, and its tracker (in
    a thread without one, that of the cell's thread)."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.facade: Facade | None = None


class Threads:
    """Gives each thread that is started from tracked code modes of its own, for as long as the
    virtual GPU is on."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self._trackers: list[Tracker] = []

    def install(self, patches: Patches) -> None:
        """Replace threading.Thread.start, and what hands values to other processes."""
        start, put = threading.Thread.start, queues.Queue.put
        storages = self._here.tracker.storages

        def start_on_device(thread: threading.Thread) -> None:
            facade = self._here.facade
            if facade is not None and facade.is_entered:
                thread.run = self._tracked(thread.run)  # type: ignore[method-assign]
                told: Any = thread
                told._invoke_excepthook = partial(_tell_without_ours, told._invoke_excepthook)
            start(thread)

        def refuse(*args: Any, **kwargs: Any) -> NoReturn:
            raise NotImplementedError(
                "tensors of the virtual GPU cannot be shared with another process; "
                "put tensor.cpu() into the queue"
            )

        def put_from_host(queue: Any, value: Any, *args: Any, **kwargs: Any) -> None:
            """A queue pickles in a thread of its own: errors there leave the receiver waiting."""
            if any(isinstance(x, torch.Tensor) and x in storages for x in _all_within(value)):
                refuse()
            put(queue, value, *args, **kwargs)

        patches.set(threading.Thread, "start", start_on_device)
        patches.set(queues.Queue, "put", put_from_host)
        patches.set(torch.UntypedStorage, "_share_cuda_", refuse)  # other ways to pickle

    def end(self) -> None:
        """Threads that still run use the host alone from here on."""
        for tracker in self._trackers:
            tracker.is_suspended = True
        self._trackers.clear()

    def _tracked(self, run: Callable[[], None]) -> Callable[[], None]:
        tracker = self._here.tracker.sibling()
        self._trackers.append(tracker)
        active = ACTIVE.get()

        def tracked() -> None:
            ACTIVE.set(active)  # a thread begins without variables of a context
            facade = Facade(tracker)
            facade.is_entered = True
            self._here.tracker, self._here.facade = tracker, facade
            with facade, tracker:
                run()

        return tracked

    def run_backward(self, backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`backward` with the thread's façade on: hooks and recomputed forward passes need it, but
        torch reaches it from inside the handler of a mode, where that mode is off."""
        facade, tracker = self._here.facade, self._here.tracker
        is_traced = bool(tracker.storages.traced)  # torch's compiler has no modes of ours
        if facade is None or not facade.is_entered or is_traced:
            return backward(*args, **kwargs)
        if not tracker.is_suspended:
            args = (args[0], _gradients_where(*args[:2]), *args[2:])
        outer, tracker.function = tracker.function, BACKWARD
        try:
            if facade in overrides._get_current_function_mode_stack():
                return backward(*args, **kwargs)
            with facade:
                return backward(*args, **kwargs)
        finally:
            tracker.function = outer

    def with_zeros_on_device(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """The backward of a user's autograd function, given device tensors alone."""

        def run(node: Any, *gradients: Any) -> Any:
            self._here.tracker.adopt(gradients)
            return apply(node, *gradients)

        return run


def _all_within(value: object) -> Iterator[object]:
    """It, and what it and its contents hold, the first ten thousand; runs none of their code."""
    contents, waiting, seen = Contents(), deque([value]), {id(value)}
    while waiting and len(seen) < _MOST_WITHIN:
        yield (thing := waiting.popleft())
        held = [one for _, one in contents.of(thing, "") if id(one) not in seen]
        seen.update(map(id, held))
        waiting += held


def _tell_without_ours(tell: Callable[[threading.Thread], None], thread: threading.Thread) -> None:
    """`tell` of the exception that has ended a thread, whose traceback has no frame of ours."""
    cut_ours(sys.exc_info()[1])
    tell(thread)


def _gradients_where(outputs: Sequence[Any], gradients: Sequence[Any]) -> tuple[Any, ...]:
    """The gradients that backward starts with, on the devices of their outputs: numbers are moved,
    others raise as in validate_outputs of autograd/engine.cpp."""
    placed = list(gradients)
    for i, (output, gradient) in enumerate(zip(outputs, gradients, strict=False)):
        if not (isinstance(output, torch.Tensor) and isinstance(gradient, torch.Tensor)):
            continue
        if torch._C._functorch.is_legacy_batchedtensor(gradient):
            continue  # of is_grads_batched: what it holds cannot be seen
        if gradient.device != output.device:
            if gradient.dim():
                raise RuntimeError(
                    f"invalid gradient at index {i} - expected device {output.device} but got "
                    f"{gradient.device}"
                )
            placed[i] = gradient.to(output.device)
    return tuple(placed)
