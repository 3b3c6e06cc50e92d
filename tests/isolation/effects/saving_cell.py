"""A cell that saves, as a dry run does it, in a forked child."""

from __future__ import annotations

import os
import sys

import torch

from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.isolation.effects.files import ScratchFiles
from gpumem_magic.isolation.effects.saving import SavingEffects
from gpumem_magic.isolation.telling import Effects
from gpumem_magic.isolation.walls.audit import watch
from gpumem_magic.isolation.walls.confinement import confine

PRELUDE = """
import collections, io, mmap, os, pickle, shutil, sqlite3, sys, types
from pathlib import Path
import torch

def refused(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        return type(error).__name__

def bits(state):
    return {name: tensor.tolist() for name, tensor in state.items()}

def untouched(gigabytes):
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
    return torch.frombuffer(mmap.mmap(-1, gigabytes << 30, flags=flags), dtype=torch.float32)

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
"""


def run_saving_cell(code, folder, in_child):
    """What `result` is after `code` in `folder`/work, which must stay as it is; what was told."""
    work, scratch = folder / "work", folder / "scratch"

    def run(_):
        torch.set_num_threads(1)  # the others are not in a forked process
        effects = Effects("<cell>")
        files = ScratchFiles(effects, scratch)
        files.install()
        SavingEffects(effects, Arrivals(), files).install()
        confine(scratch)
        watch(effects, scratch)
        os.chdir(work)
        names = vars(sys.modules["__main__"])  # what is pickled is looked for there
        for name, text in (("<prelude>", PRELUDE), ("<cell>", code)):
            exec(compile(text, name, "exec"), names)
        return names["result"], effects.notes()

    before = seen(work)
    result, notes = in_child(run)
    assert seen(work) == before
    assert sum(path.lstat().st_blocks * 512 for path in scratch.rglob("*")) < 1 << 25
    return result, notes


def seen(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}
