"""Two memory snapshots of PyTorch side by side: by place in the code, by module, and why."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from gpumem_magic.history import History, compare
from gpumem_magic.trace.peak import UNKNOWN
from gpumem_magic.units import MIB
from gpumem_magic.values.comparison import Difference
from gpumem_magic.values.findings import Level
from gpumem_magic.values.recording import Cell


def code(*sizes, older=0):
    """What was allocated by line: each of `sizes` MiB in the forward of another library's layer."""
    block = {"size": 0, "state": "active_allocated"}
    script = {"filename": "/home/user/train.py", "line": 7, "name": "<module>"}
    trace, blocks, base = [], [], 1 << 40
    for line, size in enumerate([*sizes, 2], 1):
        path = f"/usr/lib/python3.11/site-packages/{'layers/attention' if line < 3 else 'torch/x'}"
        frames = [{"filename": f"{path}.py", "line": line, "name": "forward"}, script]
        at = base + sum(one["size"] for one in blocks)
        event = {"addr": at, "size": size * MIB, "time_us": line, "frames": frames}
        trace += [{"action": action, **event} for action in ("segment_alloc", "alloc")]
        blocks.append(block | {"size": size * MIB})
    return {"segments": segments_of(base, blocks), "device_traces": [trace]}


def segments_of(at, blocks):
    segments = []
    for block in blocks:
        segments.append({"address": at, "total_size": block["size"], "blocks": [block]})
        at += block["size"]
    return segments


@pytest.fixture
def two_snapshots(tmp_path):
    history = History()
    for name, snapshot in (("a", code(10, 20)), ("b", code(14, 50))):
        (tmp_path / f"{name}.pickle").write_bytes(pickle.dumps(snapshot))
        history.load(tmp_path / f"{name}.pickle")
    return history


def test_snapshots_are_compared_by_place_and_module(two_snapshots):
    comparison = two_snapshots.compare(1, 2)
    assert [(d.name, d.first, d.second) for d in comparison.frames] == [
        ("attention.py:2 forward", 20 * MIB, 50 * MIB),
        ("attention.py:1 forward", 10 * MIB, 14 * MIB),
    ]
    assert [(d.name, d.change) for d in comparison.modules] == [("layers.attention", 34 * MIB)]
    text = comparison.text()
    assert "the largest part of it: +30.00 MiB in attention.py:2 forward" in text
    first, second = (line for line in text.splitlines() if "█" in line or "▄" in line)
    assert (first.split()[0][-1], second.split()[0][-1]) == ("▄", "█")
    assert 'src="data:image/png' in comparison._repr_mimebundle_()["text/html"]


def test_places_have_the_text_of_their_lines(two_snapshots, tmp_path):
    """Of cells, and of files; the files of a snapshot lay on another machine."""
    path = tmp_path / "attention.py"
    path.write_text("q = x @ w\nreturn q.softmax(-1)\n")
    first, second = two_snapshots

    def there(report, **changes):
        old = report.basis.recording
        stacks = tuple(
            tuple(replace(f, filename=str(path)) if "attention" in f.filename else f for f in stack)
            for stack in old.stacks
        )
        basis = replace(report.basis, recording=replace(old, **changes))
        lives = replace(basis.lifetimes, stacks=stacks)
        return replace(report, basis=replace(basis, lifetimes=lives))

    here = replace(first.basis.recording.device, total=1 << 34)
    found = compare(there(first, device=here), there(second, device=here))
    assert found.sources["attention.py:2 forward"] == "return q.softmax(-1)"
    assert (
        " ".join(found.text().split()).count("return q.softmax(-1)") == 2
    )  # as the cause, and below the place
    assert compare(there(first), there(second)).sources == {}
    cells = {str(path): Cell("q = cell(x)\nq = q.sum()", str(path))}
    cell = compare(there(first, cells=cells), there(second, cells=cells))
    assert cell.sources["attention.py:1 forward"] == "q = cell(x)"


def test_modules_without_a_name_are_left_out(two_snapshots):
    comparison = two_snapshots.compare(1, 2)
    unnamed = tuple(replace(one, name="(cells)") for one in comparison.modules)
    assert "By module" in comparison.text()
    assert "By module" not in replace(comparison, modules=unnamed).text()


def test_without_events_places_are_left_out(two_snapshots):
    history = History()
    for report in two_snapshots:
        history.append(replace(report, basis=None))
    comparison = history.compare(1, 2)
    assert comparison.frames == comparison.modules == ()
    assert "By place" not in comparison.text()


def test_many_changes_are_folded(two_snapshots):
    found = two_snapshots.compare(1, 2)
    many = replace(found, frames=tuple(Difference(f"f.py:{i}", i, 0) for i in range(40, 0, -1)))
    assert "... and 28 smaller changes" in many.text()
    assert "f.py:1 " not in many.text()
    assert "f.py:1<" in many._repr_mimebundle_()["text/html"]


def test_lines_without_text_pair_up_by_their_number(two_snapshots):
    (line,) = two_snapshots.compare(1, 2).lines
    assert (line.source, line.first.number, line.second.number) == ("", 7, 7)
    moved = replace(two_snapshots[2], lines=(replace(two_snapshots[2].lines[0], number=8),))
    compared = compare(two_snapshots[1], moved)
    new, gone = compared.lines
    assert (new.first, gone.second) == (None, None)
    shown = [text.split()[:3] for text in compared.text().splitlines()]
    assert ["new", "line", "8"] in shown
    assert ["gone", "line", "7"] in shown


def test_lines_of_the_compared_cells_are_told_once(two_snapshots):
    """Below "Allocated by line"; so are their functions that the other one does not call."""
    cells = [Cell("", "<cell>", number) for number in (3, 4)]
    pairs = zip(two_snapshots, cells, strict=True)
    first, second = (replace(report, cell=cell) for report, cell in pairs)
    places = {"In[3]:1": (1, 0), "In[4]:2 f": (0, 1), "line 3": (1, 2), UNKNOWN: (2, 1)}
    called = {"In[3]:5 f": (1, 2), "In[2]:7 g": (0, 1), "net.py:8": (1, 0)}
    found = compare(first, second)
    frames, others = (
        tuple(Difference(name, *sizes) for name, sizes in sizes_of.items())
        for sizes_of in (places, called)
    )
    assert "By place" not in replace(found, frames=frames).text()
    text = replace(found, frames=frames + others).text().partition("By place")[2]
    assert [name in text for name in places] == [False, False, False, True]
    assert all(name in text for name in called)


def test_what_no_python_code_made_is_no_cause(two_snapshots):
    comparison = two_snapshots.compare(1, 2)
    older = replace(comparison.frames[0], name=UNKNOWN)
    assert UNKNOWN not in replace(comparison, frames=(older,)).text().partition("By place")[0]


def test_what_moved_the_other_way_is_no_cause(two_snapshots):
    comparison = two_snapshots.compare(1, 2)
    (grown, *_), peak = comparison.frames, comparison.levels[0]
    shrunk = replace(grown, first=grown.second, second=grown.first)
    found = replace(comparison, frames=(shrunk, grown)).text()
    assert "the largest part of it: +30.00 MiB" in found
    assert "at the peak -30.00 MiB" not in found
    assert peak.change > 0


def test_what_was_there_before_is_a_cause_where_the_cells_began_with_more_of_it(two_snapshots):
    comparison = two_snapshots.compare(1, 2)
    older = replace(comparison.frames[0], name=UNKNOWN)
    began = [
        replace(one, before=Level(size * MIB, size * MIB, None))
        for one, size in zip(two_snapshots, (1, 40), strict=True)
    ]
    found = replace(comparison, first=began[0], second=began[1], frames=(older,)).text()
    assert "the largest part of it: +30.00 MiB that was there before the cell" in found
    assert "before allocated 1.0 MiB 40.0 MiB +39.0 MiB" in " ".join(found.split())
