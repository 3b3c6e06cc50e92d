"""Whatever a cell does to files: it sees what it would see, and the disk does not change."""


# The checks take the disk as os.walk gives it.
# ruff: noqa: PTH118, PTH123

from __future__ import annotations

import os
import stat

import numpy as np
import pytest

from gpumem_magic.isolation.effects import overlay
from gpumem_magic.isolation.effects.files import ScratchFiles
from gpumem_magic.isolation.effects.path_functions import naming
from gpumem_magic.isolation.telling import Effects
from gpumem_magic.isolation.walls.audit import watch
from gpumem_magic.isolation.walls.confinement import confine

from .file_flows import FLOWS, PRELUDE


def make_world(folder):
    """Some files of the user, in `folder`/work."""
    work = folder / "work"
    (work / "folder").mkdir(parents=True)
    (work / "deep" / "er").mkdir(parents=True)
    (work / "real.txt").write_text("real\n")
    (work / "folder" / "in.txt").write_text("inside")
    (work / "deep" / "er" / "x.txt").write_text("x")
    (work / "to_real").symlink_to("real.txt")
    np.save(work / "real.npy", np.arange(5))
    return work


def seen(folder="."):
    """Every file below `folder`, with its mode and what is in it."""
    found = {}
    for top, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(top, name)
            status = os.lstat(path)
            content = None
            if stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    content = file.read()
            found[path] = status.st_mode, content
    return found


def run_flow(code, work):
    """The result of a flow in the folder `work`, and what it leaves, as it sees it."""
    os.chdir(work)
    names = {}
    exec(compile(PRELUDE, "<prelude>", "exec"), names)
    exec(compile(code, "<cell>", "exec"), names)
    return names.get("result"), None if names.get("unlike") else seen()


@pytest.fixture
def work(tmp_path):
    return make_world(tmp_path)


@pytest.fixture
def dry(tmp_path, work, in_child):
    """Runs code as a dry run does; the real files must stay as they are."""

    def dry(code):
        def run(_):
            effects, scratch = Effects("<cell>"), tmp_path / "scratch"
            ScratchFiles(effects, scratch).install()
            confine(scratch)
            watch(effects, scratch)
            return (*run_flow(code, work), effects.notes())

        before = seen(tmp_path)
        found = in_child(run)
        after = seen(tmp_path)
        assert {p: v for p, v in after.items() if "scratch" not in p} == before
        return found

    return dry


@pytest.mark.parametrize("name", FLOWS)
def test_a_flow_sees_what_it_would_see(name, dry, in_child, tmp_path):
    real = make_world(tmp_path / "real")
    expected = in_child(lambda _: run_flow(FLOWS[name], real))
    result, left, _ = dry(FLOWS[name])
    assert result == expected[0]
    assert left == expected[1]


@pytest.mark.parametrize(
    ("write", "told"),
    [
        ("Path('x').write_text('x')", "open('x', 'w')"),
        ("Path('x').touch()", "os.open('x', "),
        ("Path('x').mkdir()", "os.mkdir('x')"),
        ("Path('deep/er/x').mkdir(parents=True)", "os.mkdir('deep/er/x')"),
        ("os.remove('real.txt')", "os.remove('real.txt')"),
        ("Path('real.txt').unlink()", "os.unlink('real.txt')"),
        ("Path('real.txt').rename('x')", "os.rename('real.txt', 'x')"),
        ("Path('real.txt').chmod(0o777)", "os.chmod('real.txt')"),
        ("os.symlink('real.txt', 'x')", "os.symlink('real.txt', 'x')"),
        ("os.close(os.open('x', os.O_CREAT | os.O_WRONLY))", "os.open('x', "),
        ("gzip.open('x.gz', 'wt').write('x')", "open('x.gz', 'wb')"),
        ("zipfile.ZipFile('x.zip', 'w').writestr('x', 'x')", "open('x.zip', 'w+b')"),
        ("np.save('x.npy', np.arange(3))", "open('x.npy', 'wb')"),
        ("np.arange(3).tofile('x.bin')", "open('x.bin', 'wb')"),
        ("os.makedirs('a/b/c')", "os.makedirs('a/b/c')"),
        ("os.truncate('real.txt', 1)", "os.truncate('real.txt')"),
        ("os.utime('real.txt', (1, 1))", "os.utime('real.txt')"),
        ("os.link('real.txt', 'x')", "os.link('real.txt', 'x')"),
        ("shutil.copy('real.txt', 'x')", "shutil.copy('real.txt', 'x')"),
        ("shutil.copytree('folder', 'x')", "shutil.copytree('folder', 'x')"),
        ("shutil.move('real.txt', 'x')", "shutil.move('real.txt', 'x')"),
        ("shutil.rmtree('folder')", "shutil.rmtree('folder')"),
        ("shutil.make_archive('x', 'zip', 'folder')", "shutil.make_archive('x', 'zip', 'folder')"),
    ],
)
def test_each_way_to_write_is_told_once(write, told, dry):
    (note,) = dry(write)[2]
    assert note.startswith(f"Written for the dry run only, and gone: {told}")
    assert note.count("(line 1)") == 1


@pytest.mark.parametrize(
    "cell",
    [
        "open('real.txt').read(), os.listdir(), os.makedirs('folder', exist_ok=True)",
        "open(os.devnull, 'w').write('x')",
        "tempfile.TemporaryFile().write(b'x'), tempfile.mkdtemp(), tempfile.mkstemp()",
        "Path('absent').unlink(missing_ok=True), shutil.rmtree('absent', ignore_errors=True)",
    ],
)
def test_what_writes_nothing_is_not_told(cell, dry):
    assert dry(cell)[2] == ()


def test_large_files_are_not_copied(dry, work, tmp_path, monkeypatch):
    monkeypatch.setattr(overlay, "_ROOM", 1 << 20)
    (work / "large.bin").write_bytes(b"start" + bytes(8 << 20))
    result = dry("""
shutil.copy("large.bin", "copy.bin")
with open("large.bin", "ab") as file:
    file.write(b"end")
os.rename("large.bin", "moved.bin")
with open("moved.bin", "rb") as file:
    start = file.read(5)
    file.seek(-3, 2)
    result = start, file.read(), os.path.getsize("copy.bin") >> 20
""")[0]
    assert result == (b"start", b"end", 8)
    written = (tmp_path / "scratch").rglob("*")
    assert sum(path.lstat().st_blocks * 512 for path in written) < 1 << 20


def test_a_cell_that_only_reads_is_not_slowed(dry):
    code = """
import sys

def calls():
    seen = []
    sys.setprofile(lambda frame, event, value: seen.append(event))
    os.stat("real.txt")
    sys.setprofile(None)
    return seen.count("call")

before = calls()
open("folder/new.txt", "w").close()
result = before, calls()
"""
    before, after = dry(code)[0]
    assert before <= 4
    assert before < after < 300  # it follows the parts of the path


def test_an_error_names_the_one_path_that_it_is_about():
    with pytest.raises(OSError, match="No such file") as raised, naming("/absent"):
        raise FileNotFoundError(2, "No such file")
    assert str(raised.value) == "[Errno 2] No such file: '/absent'"
