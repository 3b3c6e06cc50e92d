"""Models stay in memory, and what else torch writes goes to the scratch folder."""

# Cells as people write them.
# ruff: noqa: E501

from __future__ import annotations

import functools
import os

import pytest
import torch

from .saving_cell import run_saving_cell


@pytest.fixture
def work(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def dry(tmp_path, work, in_child):
    """Runs code as a dry run does, in a folder that must stay as it is: `result`, what was told."""
    return functools.partial(run_saving_cell, folder=tmp_path, in_child=in_child)


def test_a_checkpoint_can_be_loaded_and_goes_on(dry):
    result, notes = dry("""
model = torch.nn.Linear(2, 3)
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
os.makedirs("runs")
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, "runs/m.pt")
before = bits(model.state_dict())
torch.nn.init.zeros_(model.weight)
loaded = torch.load("runs/m.pt", map_location="cpu")
model.load_state_dict(loaded["model"])
optimizer.load_state_dict(loaded["optimizer"])
result = [loaded["epoch"], bits(model.state_dict()) == before, type(loaded["model"]).__name__]
result += [os.listdir("runs"), 1000 < os.path.getsize("runs/m.pt") < 10_000]
""")
    assert result == [3, True, "OrderedDict", ["m.pt"], True]
    assert notes == (
        "Written for the dry run only, and gone: os.makedirs('runs') (line 6), "
        "torch.save(..., 'runs/m.pt') (line 7).",
    )


def test_it_goes_where_the_file_goes(dry):
    result, _ = dry("""
torch.save({"a": torch.arange(3)}, "a.tmp")
os.replace("a.tmp", "a.pt")
os.makedirs("runs/1")
shutil.copy("a.pt", "runs/1/best.pt")
os.rename("runs", "moved")
shutil.copytree("moved", "copied")
torch.save({"a": torch.arange(5)}, "a.pt")
result = [torch.load(p)["a"].tolist() for p in ("a.pt", "moved/1/best.pt", Path("copied/1/best.pt"))]
os.remove("a.pt")
result += [refused(torch.load, "a.pt"), refused(torch.load, "a.tmp"), refused(torch.save, 1, "no/a.pt")]
with open("b.pt", "wb") as file:
    torch.save([1], file)
    torch.save([2], file)
with open("b.pt", "rb") as file:
    result += [torch.load(file), torch.load(file)]
for step in range(5):
    torch.save({"step": step}, f"copied/{step}.pt")
    for old in sorted(Path("copied").glob("*.pt"))[:-3]:
        old.unlink()
result += [torch.load(p)["step"] for p in sorted(Path("copied").glob("*.pt"))]
""")
    assert result[:3] == [[0, 1, 2, 3, 4], [0, 1, 2], [0, 1, 2]]
    assert result[3:] == [
        "FileNotFoundError",
        "FileNotFoundError",
        "RuntimeError",
        [1],
        [2],
        2,
        3,
        4,
    ]


def test_a_large_one_is_neither_written_nor_touched(dry):
    result, _ = dry("""
before = resident()
tensor = untouched(28)
torch.save({"w": tensor}, "large.pt")
shutil.copy("large.pt", "copy.pt")
shutil.move("copy.pt", "moved.pt")
loaded = torch.load("moved.pt", map_location="meta")
buffer = io.BytesIO()
torch.save(tensor, buffer)
buffer.seek(0)
result = [os.path.getsize("large.pt") >> 30, loaded["w"].shape[0] >> 28, len(buffer.getvalue())]
result += [torch.load(buffer, "meta").shape[0] >> 28, resident() - before < 1 << 26]
""")
    assert result == [28, 28, 64, 28, True]


def test_sharing_and_kinds_are_kept(dry):
    result, _ = dry("""
import numpy
base = torch.arange(6.0)
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
model[1].weight = model[0].weight
saved = {"part": base[2:4], "whole": base, "complex": torch.ones(2, dtype=torch.complex64),
    "bits": base.view(torch.int32), "none": torch.empty(0), "scalar": torch.tensor(3), "model": model,
    "sparse": torch.eye(2).to_sparse(), "half": torch.ones(3, dtype=torch.bfloat16), "array": numpy.ones(2),
    "grad": torch.ones(2, requires_grad=True), "turned": torch.arange(6).view(2, 3).t(), "again": base,
    "storage": base.untyped_storage(), "typed": base.storage(), "strided": torch.arange(9)[::2]}
torch.save(saved, "a.pt")
base.zero_()
found = torch.load("a.pt", weights_only=False)
found["whole"][2] = 9
same = found["model"][0].weight is found["model"][1].weight
result = [found["part"].tolist(), same, found["again"] is found["whole"], found["complex"].tolist()]
result += [found["sparse"].to_dense().tolist(), found["half"].dtype, found["grad"].requires_grad]
result += [found["turned"].stride(), found["scalar"].item(), found["array"].tolist(), found["none"].shape]
result += [found["bits"].dtype, len(found["storage"]), len(found["typed"]), found["strided"].tolist()]
result += [type(found["model"][0].weight).__name__, found["model"](torch.ones(1, 2)).requires_grad]
""")
    assert result[:4] == [[9.0, 3.0], True, True, [1, 1]]
    assert result[4:7] == [[[1, 0], [0, 1]], torch.bfloat16, True]
    assert result[7:11] == [(1, 3), 3, [1, 1], torch.Size([0])]
    assert result[11:15] == [torch.int32, 24, 6, [0, 2, 4, 6, 8]]
    assert result[15:] == ["Parameter", True]


def test_weights_only_is_the_rule(dry):
    result, _ = dry("""
torch.save(torch.nn.Linear(1, 1), "model.pt")
torch.save(torch.nn.Linear(1, 1).state_dict(), "state.pt")
result = [refused(torch.load, "model.pt"), type(torch.load("model.pt", weights_only=False)).__name__]
result += [sorted(torch.load("state.pt", weights_only=True)), refused(torch.save, lambda: 0, "l.pt")]
""")
    assert result[:3] == ["UnpicklingError", "Linear", ["bias", "weight"]]
    assert result[3] in ("PicklingError", "AttributeError")


def test_a_small_buffer_has_the_length_it_would_have(dry):
    result, notes = dry("""
buffer = io.BytesIO()
torch.save(torch.arange(1000), buffer)
copy = io.BytesIO(buffer.getvalue())
result = [9000 < len(buffer.getvalue()) < 9800, torch.load(copy).sum().item()]
""")
    assert result == [True, 499_500]
    assert notes == ()


def test_a_real_checkpoint_is_mapped_not_read(dry, work):
    torch.save({"a": torch.arange(1000)}, work / "real.pt")
    torch.save({"a": torch.arange(9)}, work / "old.pt", _use_new_zipfile_serialization=False)
    result, _ = dry("""
result, original = [], torch.UntypedStorage.from_file
torch.UntypedStorage.from_file = lambda *a, **k: result.append(a[0]) or original(*a, **k)
result += [torch.load("real.pt")["a"].sum().item(), torch.load("old.pt")["a"].sum().item()]
result += [torch.load("real.pt", mmap=False)["a"].sum().item(), refused(torch.load, "absent.pt")]
shutil.copy("real.pt", "copy.pt")
result += [torch.load("copy.pt")["a"].sum().item()]
torch.save({}, "real.pt")
result += [torch.load("real.pt")]
""")
    assert result[:6] == ["real.pt", 499_500, 36, 499_500, "FileNotFoundError", "copy.pt"]
    assert result[6:] == [499_500, {}]


def test_a_checkpoint_goes_back_to_where_it_was(gpu, allocated, dry, monkeypatch):
    # a dry run begins with a card of its own, which this child of a fork has not
    mine = os.getpid()
    monkeypatch.setattr("gpumem_magic.virtual.storages._process_id", lambda: mine)
    result, _ = dry("""
import gc
tensor = torch.ones(1 << 18, device="cuda")
before = torch.cuda.memory_allocated()
torch.save({"t": tensor, "half": tensor[: 1 << 17]}, "t.pt")
result = [torch.cuda.memory_allocated() - before]
loaded = torch.load("t.pt")
result += [str(loaded["half"].device), torch.cuda.memory_allocated() - before]
del loaded
gc.collect()
for where in ("cpu", torch.device("cpu"), lambda storage, place: storage, {"cuda:0": "cpu"}):
    result.append(torch.load("t.pt", map_location=where)["t"].device.type)
result.append(torch.cuda.memory_allocated() - before)
""")
    assert result == [0, "cuda:0", 1 << 20, "cpu", "cpu", "cpu", "cpu", 0]


def test_what_torch_writes_by_itself(dry):
    result, notes = dry("""
module = torch.jit.trace(torch.nn.Linear(1, 1), torch.ones(1, 1))
torch.jit.save(module, "a.pt")
module.save("b.pt")
with torch.profiler.profile() as profile:
    torch.ones(1)
profile.export_chrome_trace("trace.json")
with torch.package.PackageExporter("p.pt") as exporter:
    exporter.save_pickle("here", "a.pkl", [1])
exported = torch.export.export(torch.nn.Linear(1, 1), (torch.ones(1, 1),))
torch.export.save(exported, "e.pt2")
mapped = torch.from_file("m.bin", shared=True, size=4)
mapped.fill_(2)
result = [torch.jit.load(p)(torch.ones(1, 1)).shape for p in ("a.pt", "b.pt")]
result += [torch.package.PackageImporter("p.pt").load_pickle("here", "a.pkl")]
result += [torch.export.load("e.pt2").module()(torch.ones(1, 1)).shape, torch.from_file("m.bin", size=4)]
result[-1] = result[-1].tolist()
result += [sorted(os.listdir())]
try:
    torch.hub.load_state_dict_from_url("https://a.example/m.pt")
except ConnectionError as error:
    result.append(str(error))
""")
    assert result[:5] == [(1, 1), (1, 1), [1], (1, 1), [2.0] * 4]
    assert result[5] == ["a.pt", "b.pt", "e.pt2", "m.bin", "p.pt", "trace.json"]
    assert result[6].startswith("a dry run makes no connections")
    assert "torch.hub.download_url_to_file('https://a.example/m.pt') (line 20)" in notes[0]
    assert (
        "torch.jit.save(..., 'a.pt') (line 3), torch.ScriptModule.save(..., 'b.pt') (l" in notes[1]
    )
    assert "export_chrome_trace(..., 'trace.json') (line 7)" in notes[1]
