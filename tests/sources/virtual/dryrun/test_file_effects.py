"""Files are written to memory: the code finds them, the disk never sees them."""

# Users write what is not written elsewhere here.
# ruff: noqa: PTH100, PTH102, PTH103, PTH104, PTH107, PTH110, PTH123, PTH202, PTH208, SIM115

from __future__ import annotations

import bz2
import gzip
import os
import pickle
import shutil
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from gpumem_magic.sources.virtual.dryrun.side_effects import without_side_effects


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A dry run in an empty folder, which must stay empty but for what the test put there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real.txt").write_text("real\n")
    (tmp_path / "folder").mkdir()
    told = []
    before = snapshot(tmp_path)
    with without_side_effects(told.append):
        yield told
    assert snapshot(tmp_path) == before


def snapshot(folder):
    return {
        path.relative_to(folder): (path.stat().st_mode, path.is_file() and path.read_bytes())
        for path in folder.rglob("*")
    }


def test_what_is_written_can_be_read_back(told):
    with open("a.txt", "w") as file:
        assert (file.name, file.mode, file.tell()) == (os.path.abspath("a.txt"), "w", 0)
        file.write("one\ntwo\n")
        file.seek(0)
        file.write("ONE")
        file.flush()
        os.fsync(file.fileno())
    assert open("a.txt").read() == "ONE\ntwo\n"
    assert list(open("a.txt", "rb")) == [b"ONE\n", b"two\n"]
    with open("a.txt", "a+") as file:
        file.write("three")
        file.seek(0)
        assert file.read() == "ONE\ntwo\nthree"
    with pytest.raises(FileExistsError):
        open("a.txt", "x")
    assert told == ["open('a.txt', 'w')", "open('a.txt', 'a+')", "open('a.txt', 'x')"]


def test_real_files_are_read_and_seem_to_change(told):
    assert Path("real.txt").read_text() == "real\n"
    with open("real.txt", "a") as file:
        file.write("more\n")
    assert open("real.txt").read() == "real\nmore\n"
    with open("real.txt", "r+b") as file:
        file.write(b"REAL")
        file.truncate()
    assert Path("real.txt").read_bytes() == b"REAL"
    with pytest.raises(FileNotFoundError):
        open("absent.txt")
    with pytest.raises(FileNotFoundError):
        open("absent.txt", "r+")


@pytest.mark.parametrize(
    "write",
    [
        lambda: Path("x").write_text("x"),
        lambda: Path("x").open("wb").close(),
        lambda: Path("x").touch(),
        lambda: Path("x").mkdir(),
        lambda: Path("deep/er/x").mkdir(parents=True),
        lambda: Path("real.txt").unlink(),
        lambda: Path("real.txt").rename("x"),
        lambda: Path("real.txt").replace("x"),
        lambda: Path("real.txt").chmod(0o777),
        lambda: Path("x").symlink_to("real.txt"),
        lambda: Path("folder").rmdir(),
        lambda: open("x", "w").close(),
        lambda: os.close(os.open("x", os.O_CREAT | os.O_WRONLY)),
        lambda: gzip.open("x.gz", "wt").write("x"),
        lambda: bz2.open("x.bz2", "wb").write(b"x"),
        lambda: zipfile.ZipFile("x.zip", "w").writestr("x", "x"),
        lambda: np.save("x.npy", np.arange(3)),
        lambda: np.savez("x.npz", np.arange(3)),
        lambda: np.savetxt("x.txt", np.arange(3)),
        lambda: np.arange(3).tofile("x.bin"),
        lambda: pickle.dump([1], open("x.pkl", "wb")),
        lambda: os.makedirs("a/b/c"),
        lambda: os.mkdir("a"),
        lambda: os.remove("real.txt"),
        lambda: os.rename("real.txt", "x"),
        lambda: os.truncate("real.txt", 1),
        lambda: os.utime("real.txt", (1, 1)),
        lambda: os.link("real.txt", "x"),
        lambda: shutil.copy("real.txt", "x"),
        lambda: shutil.copytree("folder", "x"),
        lambda: shutil.move("real.txt", "x"),
        lambda: shutil.rmtree("folder"),
        lambda: shutil.make_archive("x", "zip", "folder"),
    ],
)
def test_every_way_to_change_a_file_is_told_and_not_done(told, write):
    write()
    assert len(told) == 1, told


def test_folders_and_files_are_where_the_code_put_them(told):
    os.makedirs("runs/1", exist_ok=True)
    os.makedirs("runs/1", exist_ok=True)
    with pytest.raises(FileExistsError):
        os.mkdir("runs")
    Path("runs/1/log.txt").write_text("log")
    shutil.copy("runs/1/log.txt", "runs")
    shutil.copytree("runs/1", "runs/2")
    assert Path("runs/log.txt").read_text() == open("runs/2/log.txt").read() == "log"
    assert sorted(os.listdir("runs")) == ["1", "2", "log.txt"]
    assert os.path.getsize("runs/1/log.txt") == 3
    assert Path("runs/1").is_dir()
    assert Path("runs/1/log.txt").is_file()
    os.rename("runs/log.txt", "moved.txt")
    assert not os.path.exists("runs/log.txt")
    assert open("moved.txt").read() == "log"
    shutil.rmtree("runs")
    assert not os.path.exists("runs/1/log.txt")
    os.remove("real.txt")
    assert sorted(os.listdir(".")) == ["folder", "moved.txt"]
    with pytest.raises(FileNotFoundError):
        open("real.txt")
    with pytest.raises(FileNotFoundError):
        os.remove("real.txt")


def test_arrays_come_back_as_they_were_saved(told):
    array = np.arange(100_000).reshape(10, -1)
    np.save("a.npy", array)
    np.savez_compressed("a.npz", array=array)
    assert np.array_equal(np.load("a.npy"), array)
    assert np.array_equal(np.load("a.npz")["array"], array)


def test_temporary_files_work_and_are_not_told(told):
    before = set(os.listdir(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory() as folder:
        assert Path(folder).is_dir()
    with tempfile.NamedTemporaryFile("w+") as file:
        file.write("x")
        file.flush()
        assert open(file.name).read() == "x"
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
        file.seek(0)
        assert file.read() == b"x"
    descriptor, name = tempfile.mkstemp()
    with open(descriptor, "w") as file:
        file.write("x")
    assert Path(name).read_text() == "x"
    assert told == []
    ours = set(os.listdir(tempfile.gettempdir())) - before
    assert [name for name in ours if name.startswith("tmp")] == [Path(name).name]


def test_devices_and_descriptors_are_the_real_ones(told):
    with open(os.devnull, "w") as file:
        file.write("x")
    here, there = os.pipe()
    with open(there, "w") as file:
        file.write("x")
    assert os.read(here, 1) == b"x"
    os.close(here)
    assert told == []
