"""Runs code as a cell in a forked child, where what is replaced needs no way back."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import tempfile
import textwrap
import threading
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

from gpumem_magic.isolation import child as processes_of_ours
from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.isolation.effects.hub import install_hub_effects
from gpumem_magic.isolation.effects.network import install_network_effects
from gpumem_magic.isolation.effects.output import capture
from gpumem_magic.isolation.effects.processes import install_process_effects
from gpumem_magic.isolation.effects.scripts import Scripts
from gpumem_magic.isolation.effects.shell import install_shell_effects
from gpumem_magic.isolation.effects.tracking import install_tracking_effects
from gpumem_magic.isolation.telling import Effects
from gpumem_magic.isolation.waits import install_waiting_effects
from gpumem_magic.isolation.walls.audit import watch

SECONDS = 20


def processes(effects, arrivals, scratch):
    install_process_effects(effects, arrivals)


def waiting(effects, arrivals, scratch):
    install_waiting_effects(effects, arrivals)


def network(effects, arrivals, scratch):
    install_network_effects(effects, arrivals)


def tracking(effects, arrivals, scratch):
    install_tracking_effects(effects, arrivals)
    install_hub_effects(effects, arrivals)


class Unbound:
    """Code as it is."""

    def bind(self, tree, place="line "):
        return tree

    def names(self):
        return {}


def shell(effects, arrivals, scratch):
    install_shell_effects(effects, Scripts(effects, Unbound()))


def audit(effects, arrivals, scratch):
    watch(effects, scratch)


def run_cell(cell, *parts, prepare=None, names=None):
    """What came of `cell` in a child in which `parts` are installed.

    prepare: what is done to the cell, given to `exec` otherwise. names: its namespace, where `x` is
    looked for. x; told: what was not done, or written for the dry run only; output; seconds; error:
    its type's name and text, or None.
    """
    names = {} if names is None else names
    with tempfile.TemporaryDirectory() as folder:
        read, write = os.pipe()
        begun = time.perf_counter()
        child = os.fork()
        if child == 0:
            _live(cell, parts, prepare, names, Path(folder), write)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            ended = select.select([pipe], [], [], SECONDS)[0]
            if not ended:
                os.kill(child, signal.SIGKILL)
            told = pipe.read()
        os.waitpid(child, 0)
    assert ended, f"not at its end after {SECONDS} s"
    assert told, "the child died"
    after = pickle.loads(told)
    assert isinstance(after, dict), after
    return SimpleNamespace(**after, seconds=time.perf_counter() - begun)


def _live(cell, parts, prepare, names, scratch, pipe):
    try:
        answer = pickle.dumps(_run(textwrap.dedent(cell), parts, prepare, names, scratch))
    except BaseException:
        answer = pickle.dumps(traceback.format_exc())
    try:
        os.write(pipe, answer)
    finally:
        processes_of_ours._exit(0)  # the one of the system, whatever `os._exit` is by now


def _run(cell, parts, prepare, names, scratch):
    output = os.open(scratch / "output", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    printed = capture(output)
    effects, arrivals = Effects("<cell>"), Arrivals()
    for part in parts:
        part(effects, arrivals, scratch)
    effects.rebind(names)
    error = None
    code = compile(cell if prepare is None else prepare(cell), "<cell>", "exec")
    try:
        exec(code, names)
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
        last = traceback.extract_tb(raised.__traceback__)
        names["lines"] = [frame.lineno for frame in last if frame.filename == "<cell>"]
    return {
        "x": names.get("x"),
        "lines": names.get("lines"),
        "error": error,
        "told": [*effects._blocked, *effects._redirected, *effects._done_here],
        "output": printed(),
        "threads": threading.active_count(),
        "stdout": type(sys.stdout).__name__,
    }
