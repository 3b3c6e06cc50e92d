"""Cells that would change the world: it stays as it is, and what was not done is named."""

# Users write what is not written elsewhere here.
# ruff: noqa: PTH123

from __future__ import annotations

import builtins
import getpass
import io
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import urllib.request
import webbrowser

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from gpumem_magic.sources.virtual.dryrun.side_effects import without_side_effects


def replaceable():
    """Everything that could be replaced, by its place."""
    places = [builtins, io, os, shutil, socket, socket.socket, subprocess, subprocess.Popen]
    places += [time, signal, getpass, webbrowser, urllib.request, urllib.request.OpenerDirector]
    places += [tempfile, pathlib.Path, torch, torch.serialization, torch.hub, torch.jit]
    places += [DataLoader, sys.modules["http.client"].HTTPConnection, sys.modules["sqlite3"]]
    places += [sys.modules["multiprocessing.process"].BaseProcess]
    return {(str(p), name): value for p in places for name, value in vars(p).items()}


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_stays_replaced(error):
    import multiprocessing.process  # noqa: F401
    import sqlite3  # noqa: F401

    with without_side_effects(print):
        pass  # what is loaded lazily now is
    before = replaceable()
    changed = 0
    try:
        with without_side_effects(print):
            changed = sum(before.get(place) is not value for place, value in replaceable().items())
            if error is not None:
                raise error
    except (ValueError, KeyboardInterrupt, SystemExit):
        assert error is not None
    assert changed > 60
    after = replaceable()
    assert [p for p in before.keys() | after.keys() if before.get(p) is not after.get(p)] == []


def test_a_thing_is_told_once_for_each_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = []
    with without_side_effects(told.append):
        for epoch in range(3):
            open(f"log{epoch}.txt", "w").close()
        open("last.txt", "a").close()
    assert told == ["open('log0.txt', 'w')", "open('last.txt', 'a')"]
    assert list(tmp_path.iterdir()) == []


def test_threads_that_ran_before_go_on_as_ever(tmp_path):
    go, done, told = threading.Event(), threading.Event(), []

    def work():
        go.wait(10)
        (tmp_path / "real.txt").write_text("real")
        subprocess.run(
            [sys.executable, "-c", f"open({str(tmp_path / 'child')!r}, 'w')"], check=True
        )
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    with without_side_effects(told.append):
        go.set()
        done.wait(60)
        new = threading.Thread(target=lambda: (tmp_path / "dry.txt").write_text("dry"))
        new.start()
        new.join()
    thread.join()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["child", "real.txt"]
    assert len(told) == 1


class Rows(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, i):
        assert get_worker_info() is None
        return i, os.getpid()


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_a_data_loader_stay_in_the_process(persistent):
    told = []
    loader = DataLoader(
        Rows(), batch_size=4, num_workers=2, persistent_workers=persistent, timeout=5
    )
    with without_side_effects(told.append):
        for _ in range(2):
            batches = list(loader)
            assert [batch[0].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
            assert {int(pid) for batch in batches for pid in batch[1]} == {os.getpid()}
        assert len(loader) == 3
    assert told == []
    assert (loader.num_workers, loader.persistent_workers, loader._iterator) == (
        2,
        persistent,
        None,
    )


def test_names_bound_earlier_are_replaced_too(tmp_path):
    file, told = tmp_path / "real.txt", []
    file.write_text("real")
    module = types.ModuleType("users_module")
    module.__file__ = str(tmp_path / "users_module.py")
    module.delete, namespace = os.remove, {"delete": os.remove, "x": 1}
    sys.modules["users_module"] = module
    with without_side_effects(told.append) as rebind:
        module.delete(file)
        rebind(namespace)
        with pytest.raises(FileNotFoundError):
            namespace["delete"](file)
    del sys.modules["users_module"]
    assert file.read_text() == "real"
    assert module.delete is os.remove
    assert told == [f"os.remove({str(file)!r})"]
    # AND what was kept from within is the real thing again
    namespace["delete"](file)
    assert not file.exists()
