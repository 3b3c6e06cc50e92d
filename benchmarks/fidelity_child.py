"""Runs cells in the ways that fidelity.py compares, each in a process of its own.

python fidelity_child.py [--limit SECONDS]
Reads jobs and prints outcomes, one line of JSON each. A job: way, source, card, settings (of the
environment) and events (a file for what the allocator was asked, or null).
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import multiprocessing
import os
import sys
import time
import types
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, redirect_stdout, suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

FILENAME = "<cell>"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Bytes. None: this way has no such number, or the cell failed; `error` then says how.
    printed: by the cell, where that is asked for."""

    allocated: int | None = None
    reserved: int | None = None
    end: int | None = None
    seconds: float = 0.0
    error: str | None = None
    note: str = ""
    printed: str = ""


def names_of_main() -> dict[str, Any]:
    """Where a notebook's cells have their names, of a process that ends with its cell."""
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    return vars(module)


def run_cell(source: str) -> dict[str, Any]:
    """Run the text as a notebook would; its names, which keep alive what they name."""
    names = names_of_main()
    exec(compile(source, FILENAME, "exec"), names)
    return names


def counters(names: dict[str, Any]) -> Outcome:
    """What torch.cuda has counted, while the cell's `names` are alive."""
    memory = torch.cuda
    torch.cuda.synchronize()
    return Outcome(
        memory.max_memory_allocated(), memory.max_memory_reserved(), memory.memory_allocated()
    )


def on_cuda(source: str, card: str, events: Path | None) -> Outcome:
    """On this process's CUDA device, real or a stub."""
    if events is not None:
        torch.cuda.memory._record_memory_history(
            context="alloc", stacks="python", max_entries=4_000_000
        )
    outcome = counters(run_cell(source))
    if events is not None:
        from fidelity_events import from_history

        events.write_text(json.dumps(from_history()))
    return outcome


def watched_on_cuda(source: str, card: str, events: Path | None) -> Outcome:
    """On this process's CUDA device; `printed` tells which values were used, and when."""
    from fidelity_events import UsesOfValues

    with UsesOfValues() as uses:
        outcome = on_cuda(source, card, events)
    return replace(outcome, printed=json.dumps(uses.found))


def compiled_on_cuda(source: str, card: str, events: Path | None) -> Outcome:
    """On the stub device, with inductor's plans and without its kernels."""
    from no_kernels import plan_without_kernels

    plan_without_kernels()
    with redirect_stdout(io.StringIO()) as printed:
        outcome = on_cuda(source, card, events)
    return replace(outcome, printed=printed.getvalue())


def on_virtual_gpu(source: str, card: str, events: Path | None) -> Outcome:
    """Computed on the CPU, on a virtual card."""
    from gpumem_magic.virtual.catalog import lookup
    from gpumem_magic.virtual.gpu import VirtualGPU

    with recorded(events), VirtualGPU(lookup(card)):
        return counters(run_cell(source))


def predicted(source: str, card: str, events: Path | None) -> Outcome:
    """Told by a dry run."""
    from gpumem_magic import predict

    report = predict(source, names_of_main(), gpu=card)
    if events is not None and report.basis is not None:
        from fidelity_events import from_recording

        events.write_text(json.dumps(from_recording(report.basis.recording)))
    return Outcome(
        report.peak.allocated,
        report.peak.reserved,
        report.after.allocated,
        error=report.error,
        note="; ".join(report.notes),
        printed=report.output,
    )


def predicted_with_answers(source: str, card: str, events: Path | None) -> Outcome:
    """Told by a dry run; `printed` has what it answered code that read values of the card."""
    from fidelity_answers import noting_answers

    with noting_answers():
        return predicted(source, card, events)


def predicted_upwards(source: str, card: str, events: Path | None) -> Outcome:
    """Told by a dry run whose driver places each new segment above the last: the mirror image of
    what it does."""
    from gpumem_magic.allocator.driver import PAGE, TOP, SimulatedDriver

    own = SimulatedDriver.reserve, SimulatedDriver.unreserve

    def mirrored(address: int, size: int) -> int:
        return TOP - address - -(-size // PAGE) * PAGE

    def reserve(driver: Any, size: int) -> int:
        return mirrored(own[0](driver, size), size)

    def unreserve(driver: Any, address: int, size: int) -> None:
        own[1](driver, mirrored(address, size), size)

    SimulatedDriver.reserve, SimulatedDriver.unreserve = reserve, unreserve  # type: ignore
    return predicted(source, card, events)


def recorded(events: Path | None) -> Any:
    if events is None:
        return nullcontext()
    from fidelity_events import recording_virtual_gpus

    return recording_virtual_gpus(events)


def in_mem_tracker(source: str, card: str, events: Path | None) -> Outcome:
    """By torch's own MemTracker, on fake tensors."""
    from torch.distributed._tools.mem_tracker import MemTracker

    class Patient(MemTracker):
        """Begins anew with a module that is called again, where MemTracker would raise."""

        def _pre_fw_hook(self, module: Any, inputs: Any) -> None:
            try:
                super()._pre_fw_hook(module, inputs)
            except NotImplementedError:
                self.reset_mod_stats()
                super()._pre_fw_hook(module, inputs)

    return on_fake_tensors(source, lambda stack: _Tracked(stack.enter_context(Patient())))


def in_fake_sums(source: str, card: str, events: Path | None) -> Outcome:
    """By adding up the storages of fake tensors."""
    return on_fake_tensors(source, lambda stack: stack.enter_context(StorageSums()))


def on_fake_tensors(source: str, watch: Callable[[ExitStack], Any]) -> Outcome:
    """The cell under FakeTensorMode, helped where it would raise: it cannot swap a module's
    parameters for moved ones (here `.to` and its like put new parameters in their places), and has
    no values for the host (here StandIns has)."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    own = torch.nn.Module._apply
    with ExitStack() as stack:
        stack.callback(setattr, torch.nn.Module, "_apply", own)
        torch.nn.Module._apply = _replace_tensors  # type: ignore[method-assign]
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        watched = watch(stack)
        stack.enter_context(StandIns())
        names = run_cell(source)
        peak, end = watched.peak, watched.now
        del names
    return Outcome(allocated=peak, end=end)


def _replace_tensors(module: Any, change: Callable[[Any], Any], recurse: bool = True) -> Any:
    """Module._apply with new parameters; tied ones stay tied."""
    made: dict[int, Any] = {}
    for each in module.modules() if recurse else [module]:
        for name, parameter in each._parameters.items():
            if parameter is not None:
                new = made.get(id(parameter))
                if new is None:
                    with torch.no_grad():
                        changed = change(parameter)
                    same = changed is parameter
                    new = parameter if same else _parameter_like(parameter, changed)
                    made[id(parameter)] = new
                each._parameters[name] = new
        for name, buffer in each._buffers.items():
            if buffer is not None:
                each._buffers[name] = change(buffer)
    return module


def _parameter_like(parameter: Any, tensor: Any) -> Any:
    return torch.nn.Parameter(tensor.detach(), parameter.requires_grad)


class StandIns(TorchDispatchMode):
    """Answers `.item()` and its like for floats: on the card (a loss, whether a gradient is
    infinite) 0, on the host (what an optimizer counts) 0.5. Sizes and places are not guessed."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        asked = func is torch.ops.aten._local_scalar_dense.default
        if asked and args[0].dtype.is_floating_point:
            return 0.0 if args[0].device.type == "cuda" else 0.5
        return func(*args, **(kwargs or {}))


class _Tracked:
    """MemTracker's totals for the first CUDA device."""

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker

    @property
    def peak(self) -> int:
        return self._total("peak")

    @property
    def now(self) -> int:
        return self._total("current")

    def _total(self, moment: str) -> int:
        snapshot = self._tracker.get_tracker_snapshot(moment)
        return next(
            (int(sizes["Total"]) for device, sizes in snapshot.items() if device.type == "cuda"), 0
        )


class StorageSums(TorchDispatchMode):
    """Bytes of the living storages on the card that operators have given out."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cuda":
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        if storage in self._seen:
            return
        size = storage.nbytes()
        self._seen[storage] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, size)

    def _forget(self, size: int) -> None:
        self.now -= size


WAYS: dict[str, Callable[[str, str, Path | None], Outcome]] = {
    "cuda": on_cuda,
    "watched": watched_on_cuda,
    "compiled": compiled_on_cuda,
    "live": on_virtual_gpu,
    "dry": predicted,
    "dry answers": predicted_with_answers,
    "dry up": predicted_upwards,
    "mem_tracker": in_mem_tracker,
    "fake_sums": in_fake_sums,
}


def attempt(way: str, source: str, card: str, events: Path | None) -> Outcome:
    """The outcome; an error is one, too."""
    started = time.perf_counter()
    try:
        outcome = WAYS[way](source, card, events)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        outcome = Outcome(error=f"{type(error).__name__}: {text}")
    return replace(outcome, seconds=round(time.perf_counter() - started, 3))


def in_child(job: dict[str, Any], answer: Any) -> None:
    """Run a job in this process, which was forked for it, and send its outcome."""
    os.environ.update(job["settings"])
    events = Path(job["events"]) if job["events"] else None
    answer.send(asdict(attempt(job["way"], job["source"], job["card"], events)))


def serve(limit: float) -> None:
    """A process for each job; torch and transformers are imported once for all of them."""
    fork = multiprocessing.get_context("fork")
    for text in sys.stdin:
        receiver, sender = fork.Pipe(duplex=False)
        child = fork.Process(target=in_child, args=(json.loads(text), sender))
        child.start()
        sender.close()
        try:
            told = receiver.recv() if receiver.poll(limit) else None
            error = f"not done within {limit:.0f} s"
        except EOFError:
            child.join()
            told, error = None, f"ended with {child.exitcode}"
        child.kill()
        child.join()
        print(json.dumps(told or asdict(Outcome(error=error))), file=ANSWERS, flush=True)


def import_most() -> None:
    """What takes long to import and does not ask for the device, which no process that is forked
    could then use: bitsandbytes does, and transformers' models import it."""
    for name in ("torch._dynamo", "torch._functorch.aot_autograd"):
        importlib.import_module(name)
    if find_spec("bitsandbytes") is None:
        with suppress(ImportError):
            import transformers.modeling_utils  # noqa: F401


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each job")
    warnings.simplefilter("ignore")
    import_most()
    with redirect_stdout(sys.stderr):
        serve(parser.parse_args().limit)


if __name__ == "__main__":
    ANSWERS = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # native code and subprocesses print beside Python
    main()
