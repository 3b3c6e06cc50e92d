"""Long files cost their length only."""

# Users write what is not written elsewhere here.
# ruff: noqa: PTH123, SIM115

from __future__ import annotations

import pytest

from gpumem_magic.sources.virtual.dryrun.written_files import WrittenFiles


def test_what_does_not_fit_is_only_counted():
    files = WrittenFiles(open)
    chunk = bytes(1 << 20)
    with files.open("/big", "wb") as file:
        for _ in range(100):
            file.write(chunk)
        assert file.tell() == 100 << 20
        file.seek(-1, 2)
        assert file.tell() == (100 << 20) - 1
    with files.open("/small", "w") as file:
        file.write("small")
    assert files.contents["/big"].size == 100 << 20
    assert files.room == (64 << 20) - 5
    with pytest.raises(NotImplementedError, match="'/big' cannot be read back"):
        files.open("/big", "rb").read(1)
    assert files.open("/small", "r").read() == "small"


def test_holes_are_zeros():
    files = WrittenFiles(open)
    with files.open("/a", "wb") as file:
        file.seek(3)
        file.write(b"x")
    assert files.contents["/a"].data == b"\0\0\0x"
    with files.open("/a", "r+b") as file:
        file.truncate(6)
    assert files.contents["/a"].data == b"\0\0\0x\0\0"


def test_the_descriptor_is_given_back():
    files = WrittenFiles(open)
    descriptor = files.open("/a", "w").fileno()
    files.null.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        open(descriptor)
