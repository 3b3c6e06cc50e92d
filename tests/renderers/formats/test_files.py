"""Files are whole or as they were."""

from __future__ import annotations

import json
import os
import stat

import pytest

from gpumem_magic.values.report import Report

STARTS = {
    ".json": b"{",
    ".csv": b"name,",
    ".html": b"<!DOCTYPE html>",
    ".txt": b"train",
    ".png": b"\x89PNG",
    ".svg": b"<?xml",
}


@pytest.mark.parametrize("suffix", STARTS)
def test_the_suffix_says_the_form(suffix, story, tmp_path):
    story.save(tmp_path / f"r{suffix}")
    assert (tmp_path / f"r{suffix}").read_bytes().startswith(STARTS[suffix])
    assert [path.name for path in tmp_path.iterdir()] == [f"r{suffix}"]


def test_a_path_may_be_text_and_its_suffix_large(story, tmp_path):
    story.save(str(tmp_path / "R.JSON"))
    assert Report.from_dict(json.loads((tmp_path / "R.JSON").read_text())) == story


def test_any_text_can_be_written(report, tmp_path):
    for suffix in (".json", ".csv", ".html", ".txt", ".svg"):
        report.save(tmp_path / f"r{suffix}")


def test_another_suffix_is_refused_before_anything_is_written(story, tmp_path):
    with pytest.raises(ValueError, match=r"r\.xls: a report is saved as \.json, \.csv"):
        story.save(tmp_path / "r.xls")
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_the_old_file(story, tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    path.write_text("old")

    def full(self, target):
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="disk full"):
        story.save(path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_a_link_stays_a_link(story, tmp_path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    story.save(tmp_path / "link.txt")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text().startswith("train")


def test_a_path_that_cannot_be_written_is_named_as_it_was_given(story, tmp_path):
    path = tmp_path / "missing" / "r.json"
    with pytest.raises(FileNotFoundError) as raised:
        story.save(path)
    assert raised.value.filename == str(path)


def test_only_regular_files_are_replaced(story, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.txt").symlink_to("pipe")
    (tmp_path / "device.txt").symlink_to(os.devnull)
    (tmp_path / "folder.txt").mkdir()
    for name in ("link.txt", "device.txt", "folder.txt"):
        with pytest.raises(OSError, match=f"not a regular file.*{name}"):
            story.save(tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("device.txt", "folder.txt", "link.txt", "pipe"),
    ]


def test_links_in_a_circle_are_refused(story, tmp_path):
    (tmp_path / "a.txt").symlink_to("b.txt")
    (tmp_path / "b.txt").symlink_to("a.txt")
    with pytest.raises(OSError, match=r"a\.txt"):
        story.save(tmp_path / "a.txt")
    assert (tmp_path / "a.txt").is_symlink()
