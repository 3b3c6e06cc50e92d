"""Libraries save nothing, but find again what they saved."""

from __future__ import annotations

import io
import sqlite3
import sys
from pathlib import Path

import pytest
import torch

from gpumem_magic.sources.virtual.dryrun.side_effects import without_side_effects


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A dry run in a folder that must stay empty."""
    monkeypatch.chdir(tmp_path)
    told = []
    with without_side_effects(told.append):
        yield told
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def module_of(tmp_path, monkeypatch):
    """Makes a small library of the name of a large one, which must not be loaded yet."""

    def make(name, code):
        package = name.partition(".")[0]
        if package in sys.modules:
            pytest.skip(f"the real {package} is loaded")
        made.append(package)
        *folders, file = name.split(".")
        folder = tmp_path.joinpath("libraries", *folders)
        folder.mkdir(parents=True)
        for i in range(len(folders)):  # a folder without it would come after the real library
            tmp_path.joinpath("libraries", *folders[: i + 1], "__init__.py").touch()
        (folder / f"{file}.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path / "libraries")

    made = []
    yield make
    for name in [n for n in sys.modules if n.partition(".")[0] in made]:
        del sys.modules[name]


def test_a_checkpoint_is_not_written_and_can_be_loaded(told):
    model = torch.nn.Linear(2, 3)
    torch.save({"model": model.state_dict(), "epoch": 3}, "m.pt")
    saved = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.zero_()
    loaded = torch.load("m.pt")
    assert loaded["epoch"] == 3
    assert torch.equal(loaded["model"]["weight"], saved)
    model.load_state_dict(loaded["model"])
    assert torch.equal(model.weight, saved)
    assert told == ["torch.save(..., 'm.pt')"]


def test_a_checkpoint_goes_back_to_where_it_was(gpu, allocated, tmp_path):
    tensor = torch.ones(1 << 18, device="cuda")
    before, told = allocated(), []
    with without_side_effects(told.append):
        torch.save(tensor, tmp_path / "t.pt")
        assert allocated() == before
        loaded = torch.load(tmp_path / "t.pt")
        assert (loaded.device, allocated() - before) == (torch.device("cuda", 0), 1 << 20)
        del loaded
        for where in (
            "cpu",
            torch.device("cpu"),
            lambda storage, place: storage,
            {"cuda:0": "cpu"},
        ):
            assert torch.load(tmp_path / "t.pt", map_location=where).device.type == "cpu"
        assert allocated() == before
    assert list(tmp_path.iterdir()) == []


def test_what_fits_into_a_buffer_is_really_saved_there(told):
    buffer = io.BytesIO()
    torch.save(torch.arange(5), buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer), torch.arange(5))
    assert told == []
    torch.save(torch.empty(1 << 30), buffer)
    assert len(buffer.getvalue()) < 10_000
    assert told == ["torch.save(..., ...)"]


def test_what_is_too_large_for_a_buffer_can_be_loaded_from_it(told):
    buffer = io.BytesIO()
    torch.save({"w": torch.zeros(5 << 20)}, buffer)
    buffer.seek(0)
    assert torch.load(buffer)["w"].shape == (5 << 20,)
    assert buffer.getvalue() == b""
    assert told == ["torch.save(..., ...)"]


def test_into_an_open_file_as_well(told):
    with Path("m.pt").open("wb") as file:
        torch.save(torch.arange(5 << 20), file)
    assert torch.load("m.pt").shape == (5 << 20,)


def test_a_real_checkpoint_is_mapped_not_read(tmp_path, monkeypatch):
    torch.save({"a": torch.arange(1000)}, tmp_path / "real.pt")
    mapped = []
    original = torch.UntypedStorage.from_file
    monkeypatch.setattr(
        torch.UntypedStorage, "from_file", lambda *a, **k: mapped.append(a) or original(*a, **k)
    )
    with without_side_effects(print):
        assert torch.equal(torch.load(tmp_path / "real.pt")["a"], torch.arange(1000))
        assert torch.load(tmp_path / "real.pt", mmap=False)["a"].sum() == 499_500
        with pytest.raises(FileNotFoundError):
            torch.load(tmp_path / "absent.pt")
    assert len(mapped) == 1


def test_traced_modules_and_profiles_are_not_written(told):
    module = torch.jit.trace(torch.nn.Linear(1, 1), torch.ones(1, 1))
    torch.jit.save(module, "m.pt")
    module.save("m.pt")
    with torch.profiler.profile() as profile:
        torch.ones(1)
    profile.export_chrome_trace("trace.json")
    assert [text.partition("(")[0] for text in told][:2] == ["torch.jit.save", "ScriptModule.save"]
    assert "profile.export_chrome_trace('trace.json')" in told[2].replace("..., ", "")


def test_downloads_do_not_begin(told):
    with pytest.raises(ConnectionError, match="a dry run makes no connections"):
        torch.hub.load_state_dict_from_url("https://example.com/m.pt", model_dir=".")
    assert any("https://example.com/m.pt" in text for text in told)


def test_tables_are_not_written_and_can_be_read_back(told):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2]})
    frame.to_csv("a.csv", index=False)
    assert pandas.read_csv("a.csv").equals(frame)
    frame.to_parquet("a.parquet")
    frame["a"].to_pickle(path="a.pkl")
    assert frame.to_csv(index=False) == "a\n1\n2\n"
    assert told == ["to_csv('a.csv')", "to_parquet('a.parquet')", "to_pickle('a.pkl')"]


def test_figures_are_not_written(told):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figure, buffer = Figure(), io.BytesIO()
    figure.savefig("a.png")
    figure.savefig(buffer)
    assert buffer.getvalue().startswith(b"\x89PNG")
    assert told == ["savefig('a.png')"]


def test_safetensors_are_neither_written_nor_read_from_memory(told):
    torch_format = pytest.importorskip("safetensors.torch")
    torch_format.save_file({"a": torch.ones(3)}, "a.safetensors")
    assert told == ["safetensors.save_file(..., 'a.safetensors')"]


def test_a_name_bound_before_does_not_help(tmp_path):
    torch_format = pytest.importorskip("safetensors.torch")
    save_file, told = torch_format.save_file, []
    with without_side_effects(told.append):
        save_file({"a": torch.ones(3)}, str(tmp_path / "a.safetensors"))
    assert list(tmp_path.iterdir()) == []
    assert len(told) == 1


def test_a_model_is_not_saved(module_of):
    code = "class PreTrainedModel:\n    def save_pretrained(self, folder): raise OSError('disk')\n"
    module_of("transformers.modeling_utils", code)
    told = []
    with without_side_effects(told.append):
        from transformers.modeling_utils import PreTrainedModel

        PreTrainedModel().save_pretrained("model")
    assert told == ["save_pretrained(..., 'model')"]
    with pytest.raises(OSError, match="disk"):
        PreTrainedModel().save_pretrained("model")


def test_a_data_base_is_read_and_written_in_memory(tmp_path):
    path, told = tmp_path / "real.db", []
    with sqlite3.connect(path) as real:
        real.execute("create table runs (name)")
        real.execute("insert into runs values ('old')")
    real.close()
    before = path.read_bytes()
    with without_side_effects(told.append):
        with sqlite3.connect(path) as copy:
            copy.execute("insert into runs values ('new')")
            assert copy.execute("select count(*) from runs").fetchone() == (2,)
        sqlite3.connect(tmp_path / "new.db").execute("create table a (b)")
        sqlite3.connect(":memory:").execute("create table a (b)")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["real.db"]
    assert len(told) == 2


def test_h5_files_stay_in_memory(module_of):
    code = (
        "class File:\n    def __init__(self, name, mode='r', driver=None, **options):\n"
        "        self.made = mode, driver, options\n"
    )
    module_of("h5py._hl.files", code)
    told = []
    with without_side_effects(told.append):
        from h5py._hl.files import File

        assert File("a.h5", "w").made == ("w", "core", {"backing_store": False})
        assert File("a.h5").made == ("r", None, {})
    assert File("a.h5", "w").made == ("w", None, {})
    assert told == ["h5py.File('a.h5', 'w')"]
