"""Ctrl-C at random moments of cells in a real kernel: none is lost, and none leaves anything.

GPUMEM_MAGIC_INTERRUPTS sets how many: 40, or a thousand by hand.
"""

from __future__ import annotations

import ast
import os
import queue
import random
import time
from collections import Counter
from dataclasses import dataclass

from .test_kernel import Kernel

MOMENTS = int(os.environ.get("GPUMEM_MAGIC_INTERRUPTS", "40"))
SEED = int(os.environ.get("GPUMEM_MAGIC_SEED", "7"))

SETUP = """
import _signal, signal, threading, time, torch
from torch.overrides import _get_current_function_mode_stack as functions
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as operators

torch.set_num_threads(1)
before_us = entered = began = ended = None

def enter():
    global before_us, entered
    if entered is None:
        ours = get_ipython().magics_manager.registry["GpuMemMagics"].monitor
        before_us = [ours.running, ours.measuring, ours._inside, ours._progress is None]
        before_us += [operators(), functions()]
        before_us += [_signal.getsignal(_signal.SIGINT) is signal.default_int_handler]
        before_us += [signal.signal is _signal_of, get_ipython().ast_transformers]
        before_us += [[t.name for t in threading.enumerate() if "gpumem" in t.name]]
        entered = time.monotonic()

_signal_of = signal.signal
get_ipython().events.register("pre_execute", enter)

def churn():
    x = torch.ones(64, 64, device="cuda", requires_grad=True)
    pieces = [x * n for n in range(3)]
    del pieces
    torch.nn.functional.dropout(x, 0.5).sum().backward()
"""
LOAD = "%load_ext gpumem_magic\n%gpumem --device {}"
NOTHING = [False, False, False, True, [], [], True, True, [], []]
CELL = """began = time.monotonic()
while time.monotonic() < began + 0.02:
    churn()
ended = time.monotonic()
"""
FORGET = "entered = began = ended = None"
ASK = "print([entered, began, ended])"
NEXT = "%%gpumem -q -o report\nx = torch.ones(1 << 20, device='cuda')\ndel x"
LOOK = "print([before_us, [line.allocated for line in report.lines if line.number]])"
TOLD = "was interrupted, your code is not affected"
WAYS = {"marked": "%%gpumem\n", "quiet": "%%gpumem -q\n", "plain": ""}
OTHERS = ("<function enter", "<bound method InteractiveShell._clear_warning_registry")


@dataclass
class Outcome:
    """What came of a cell: when it was interrupted, when it ran, and what it said."""

    way: str
    sent: float
    returned: float
    entered: float | None
    began: float | None
    ended: float | None
    error: str
    said: str
    state: list
    measured: list

    @property
    def kind(self) -> str:
        """In a few words."""
        where = "within" if self.is_within else "outside"
        return f"{self.way}, {where}: {self.error or (TOLD in self.said and 'told') or 'nothing'}"

    @property
    def is_within(self) -> bool:
        """Whether the interrupt came after our first step, and before the cell's last one."""
        return self.entered is not None and (
            self.entered < self.sent and (self.ended is None or self.returned < self.ended)
        )


def printed(kernel, code):
    """The list that the code prints. A kernel that was interrupted between two cells may have lost
    a request, with or without us: it is asked again."""
    try:
        answer = kernel.run(code, patience=30)
    except AssertionError:
        answer = kernel.run(code)
    assert answer.reply["status"] == "ok", answer
    lines = "".join(answer.texts("stream")).splitlines()  # others are IPython's: of its history
    line = next(line for line in lines if line.startswith("["))
    return ast.literal_eval(line.partition("ERROR!")[0])  # it may follow on the same line


def messages(kernel, sent):
    """What the kernel says to a request, until it is idle. One that was interrupted while it wrote
    a message sends half of it, with or without us, or none."""
    while True:
        try:
            message = kernel.client.get_iopub_msg(timeout=20)
        except ValueError:
            continue
        except queue.Empty:
            return
        if message["parent_header"].get("msg_id") != sent:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle":
            return
        yield kind, content


def run_interrupted(kernel, way, wait):
    """Run the cell, and send an interrupt after so many seconds."""
    kernel.run(FORGET)
    sent = kernel.client.execute(WAYS[way] + CELL, stop_on_error=False)
    time.sleep(wait)
    moments = [time.monotonic()]
    kernel.manager.interrupt_kernel()
    moments.append(time.monotonic())
    outputs = [*messages(kernel, sent)]
    error = "".join(content["ename"] for kind, content in outputs if kind == "error")
    said = "".join(
        content["text"] if kind == "stream" else "\n".join(content["traceback"])
        for kind, content in outputs
        if kind in ("stream", "error")
    )
    times = printed(kernel, f"{ASK}\n{FORGET}")
    assert kernel.run(NEXT).reply["status"] == "ok"
    state, measured = printed(kernel, LOOK)
    return Outcome(way, *moments, *times, error, said, state, measured)


def seconds_of(kernel, way):
    """How long the cell takes, with all that is done around it."""
    kernel.run(WAYS[way] + CELL)
    begun = time.monotonic()
    kernel.run(WAYS[way] + CELL)
    return time.monotonic() - begun


def check_interrupts(folder, device, moments):
    """Interrupt as many cells, each at a random moment; print what came of them."""
    kernel, chance, seen = (
        Kernel(folder),
        random.Random(int(os.environ.get("GPUMEM_MAGIC_SEED", "7"))),
        Counter(),
    )
    try:
        for code in (SETUP, LOAD.format(device)):
            assert kernel.run(code).reply["status"] == "ok"
        seconds = {way: seconds_of(kernel, way) for way in WAYS}
        for _ in range(moments):
            way = chance.choice([*WAYS])
            wait = chance.uniform(0, chance.choice([0.05, 1.1 * seconds[way]]))
            outcome = run_interrupted(kernel, way, wait)
            seen[outcome.kind] += 1
            check(outcome)
    finally:
        kernel.close()
    print(*sorted(seen.items()), sep="\n")


def check(outcome):
    seen, said = str(outcome), outcome.said
    if any(f"Error in callback {other}" in said for other in OTHERS):
        return  # it came to this file's own, or IPython's, before ours
    shown = said.partition("Error in callback")[2].partition("KeyboardInterrupt")[2]
    if shown and "gpumem_magic" not in shown:  # it came to IPython when our callback had returned
        said = said.partition("Error in callback")[0]
    if not outcome.is_within:  # nobody of ours stands before Python's handler; see Deaths.catch_up
        said = said.partition("Exception ignored in: <bound method Deaths._died")[0]
    told = [line for line in said.splitlines() if "gpumem_magic" in line]
    assert outcome.error in ("", "KeyboardInterrupt"), seen
    # THEN the cell has ended with it, or where it came at the cell's end the one line tells
    assert outcome.error or TOLD in said or not outcome.is_within, seen
    assert len(told) <= 1, seen
    assert all(TOLD in line for line in told), seen
    assert "Error in callback" not in said, seen
    assert "ignored" not in said, seen
    # AND nothing is left of it, and the next cell is measured right
    assert outcome.state == NOTHING, seen
    assert outcome.measured[0] == 4 << 20, seen


def test_no_interrupt_is_lost_and_none_leaves_anything(tmp_path):
    check_interrupts(tmp_path, "T4", MOMENTS)
