"""Streams and events of the virtual GPU: work finishes at once, the allocator still keeps a pool
per stream."""

from __future__ import annotations

import abc
import itertools
import time
from typing import Any

import torch

from gpumem_magic.virtual.devices import checked, is_cuda
from gpumem_magic.virtual.storages import Storages

_CUDA_DEVICE_TYPE = 1
"""c10::DeviceType::CUDA"""


class StreamBase:
    """torch.cuda.Stream: an order of work, and a pool of memory of its own."""

    storages: Storages
    _ids = itertools.count(2, 2)
    """Even: those of a real card are odd (c10/cuda/CUDAStream.cpp), and a dry run may go on with
    one."""

    def __init__(self, device: Any = None, priority: int = 0, **known: Any) -> None:
        if device is not None and checked(device).type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {device}")
        self.stream_id: int = known.get("stream_id") or (
            0 if "stream_id" in known else next(self._ids)
        )
        self.device_index = 0
        self.device_type = _CUDA_DEVICE_TYPE
        self.device = torch.device("cuda", 0)
        self.cuda_stream = self.stream_id
        self.priority = priority
        self._before: list[int] = []

    def wait_stream(self, stream: Any) -> None:
        """All work is done already."""

    def wait_event(self, event: Any) -> None:
        """All work is done already."""

    def record_event(self, event: Any = None) -> Any:
        """A moment on this stream: now."""
        event = torch.cuda.Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work is done."""
        return True

    def is_capturing(self) -> bool:
        """Whether a CUDA graph records this stream."""
        return self.storages.capturing is not None

    def synchronize(self) -> None:
        """Let blocks go that waited for this stream."""
        self.storages.allocator.synchronize()

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority of CUDA streams."""
        return 0, -5

    def __enter__(self) -> StreamBase:
        self._before.append(self.storages.stream)
        self.storages.stream = self.stream_id
        return self

    def __exit__(self, *error: object) -> None:
        self.storages.stream = self._before.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamBase) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self.stream_id:#x}>"


class Event:
    """torch.cuda.Event: a moment; elapsed times are those of the host, where the work ran."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        if interprocess:
            raise NotImplementedError("torch.cuda.Event(interprocess=True) on the virtual GPU")
        self._timing = enable_timing
        self._moment: float | None = None
        self.device = torch.device("cuda", 0)

    def record(self, stream: Any = None) -> None:
        """Remember the moment."""
        self._moment = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """All work is done already."""

    def query(self) -> bool:
        """Whether all work is done."""
        return True

    def synchronize(self) -> None:
        """All work is done already."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to `end_event`."""
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._moment is None or end_event._moment is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._moment - self._moment) * 1e3


for _base, _ours in (("_StreamBase", StreamBase), ("_EventBase", Event)):
    if isinstance(_of_torch := getattr(vars(torch).get("_streambase"), _base, None), abc.ABCMeta):
        _of_torch.register(_ours)  # in torch 2.4 dynamo asks for it


def of_any_device(original: Any, of_cuda: type, *others: type) -> type:
    """torch.Stream or torch.Event, which also make and recognise those of CUDA."""

    class AnyDevice(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, (original, of_cuda, *others))

        def __call__(cls, device: Any = None, **options: Any) -> Any:
            if is_cuda(device) or (device is None and not options.keys() & {"stream_id"}):
                return of_cuda(**options)
            return original(device, **options)

    return AnyDevice(original.__name__, (), {"__doc__": original.__doc__})
