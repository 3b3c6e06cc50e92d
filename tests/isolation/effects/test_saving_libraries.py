"""Libraries write to the scratch folder, and find again what they saved."""

# Cells as people write them.
# ruff: noqa: E501

from __future__ import annotations

import functools
import sqlite3
import sys
import types

import pytest

from .saving_cell import run_saving_cell


@pytest.fixture
def work(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def dry(tmp_path, work, in_child):
    """Runs code as a dry run does, in a folder that must stay as it is: `result`, what was told."""
    return functools.partial(run_saving_cell, folder=tmp_path, in_child=in_child)


def test_a_database_is_written_in_the_scratch_folder(dry, work):
    with sqlite3.connect(work / "real.db") as real:
        real.execute("create table runs (name)")
        real.execute("insert into runs values ('old')")
    real.close()
    result, notes = dry("""
with sqlite3.connect("real.db") as copy:
    copy.execute("insert into runs values ('new')")
result = copy.execute("select name from runs").fetchall()
copy.close()
result += sqlite3.connect(Path("real.db")).execute("select count(*) from runs").fetchone()
new = sqlite3.connect("file:new.db?mode=rwc", uri=True)
new.execute("create table a (b)")
new.commit()
read_only = sqlite3.connect(f"file://{Path('new.db').absolute()}?mode=ro", uri=True)
result += read_only.execute("select count(*) from a").fetchone()
result += [refused(read_only.execute, "insert into a values (1)"), sorted(os.listdir())]
sqlite3.connect(":memory:").execute("create table a (b)")
sqlite3.connect("file::memory:?cache=shared", uri=True).execute("create table a (b)")
result += [refused(sqlite3.connect, "no/such.db")]
""")
    assert result == [
        ("old",),
        ("new",),
        2,
        0,
        "OperationalError",
        ["new.db", "real.db"],
        "OperationalError",
    ]
    told = [each.partition("(line")[0] for each in notes[0].split("sqlite3.connect(")[1:]]
    assert told == ["'real.db') ", "'new.db') "], "of others nothing is written"


def test_a_large_database_is_only_read(dry, work, monkeypatch):
    from gpumem_magic.isolation.effects import overlay

    with sqlite3.connect(work / "real.db") as real:
        real.execute("create table runs (name)")
        real.executemany("insert into runs values (?)", [("x" * 1000,)] * 100)
    real.close()
    monkeypatch.setattr(overlay, "_ROOM", 1 << 15)
    result, notes = dry("""
real = sqlite3.connect("real.db")
result = [*real.execute("select count(*) from runs").fetchone()]
result += [refused(real.execute, "insert into runs values ('new')")]
""")
    assert result == [100, "OperationalError"]
    assert notes == ()


def test_shelves(dry):
    result, _ = dry("""
import shelve
with shelve.open("shelf") as shelf:
    shelf["a"] = [1]
with shelve.open("shelf") as shelf:
    result = shelf["a"]
""")
    assert result == [1]


def test_tables(dry):
    pytest.importorskip("pandas")
    result, notes = dry("""
import pandas
frame = pandas.DataFrame({"a": [1, 2]})
frame.to_csv("a.csv", index=False)
frame["a"].to_pickle(path="a.pkl")
frame.to_json("a.json")
result = [pandas.read_csv("a.csv").equals(frame), len(pandas.read_pickle("a.pkl")), frame.to_csv(index=False)]
result += [pandas.read_json("a.json").equals(frame), sorted(os.listdir())]
""")
    assert result == [True, 2, "a\n1\n2\n", True, ["a.csv", "a.json", "a.pkl"]]
    assert "to_csv(..., 'a.csv', index=False) (line 4), to_pickle(..., path='a.pkl')" in notes[0]


def test_parquet(dry):
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    result, _ = dry("""
import pandas, pyarrow
import pyarrow.parquet as parquet
frame = pandas.DataFrame({"a": [1, 2]})
frame.to_parquet("a.parquet")
frame.to_feather("a.feather")
parquet.write_table(pyarrow.table({"a": [1]}), "b.parquet")
result = [pandas.read_parquet("a.parquet").equals(frame), parquet.read_table("b.parquet").num_rows]
result += [pandas.read_feather("a.feather").equals(frame)]
""")
    assert result == [True, 1, True]


def test_figures(dry):
    pytest.importorskip("matplotlib.font_manager")  # which asks other programs for fonts, once
    result, notes = dry("""
from matplotlib.figure import Figure
from PIL import Image
figure, buffer = Figure(), io.BytesIO()
figure.savefig("a.png")
figure.savefig("a.pdf")
figure.savefig(buffer)
Image.open("a.png").convert("RGB").save("b.jpg")
result = [buffer.getvalue()[:4], open("a.pdf", "rb").read(4), Image.open("b.jpg").format]
""")
    assert result == [b"\x89PNG", b"%PDF", "JPEG"]
    assert "savefig(..., 'a.png') (line 5)" in notes[0]


def test_h5_files(dry):
    pytest.importorskip("h5py")
    result, notes = dry("""
import h5py
with h5py.File("a.h5", "w") as file:
    file["x"] = [1, 2]
with h5py.File("a.h5", mode="a") as file:
    file["y"] = [3]
with h5py.File("a.h5") as file:
    result = [file["x"][:].tolist(), sorted(file), refused(h5py.File, "b.h5")]
""")
    assert result == [[1, 2], ["x", "y"], "FileNotFoundError"]
    assert "h5py.File(..., 'a.h5', 'w')" in notes[0]


def test_safetensors_stay_in_memory(dry):
    pytest.importorskip("safetensors")
    result, notes = dry("""
from safetensors import safe_open
from safetensors.torch import load_file, save_file
save_file({"w": untouched(4), "b": torch.ones(2)}, "a.safetensors", metadata={"format": "pt"})
with safe_open("a.safetensors", framework="pt", device="meta") as file:
    result = [sorted(file.keys()), file.get_tensor("w").shape[0] >> 28, file.metadata()]
result += [load_file("a.safetensors", device="meta")["b"].shape[0]]
result += [os.path.getsize("a.safetensors") >> 30, torch.load("a.safetensors", "meta")["b"].shape[0]]
""")
    assert result == [["b", "w"], 4, {"format": "pt"}, 2, 4, 2]
    assert notes[0].count("safetensors.save_file(..., 'a.safetensors'") == 1
    assert "open(" not in notes[0]


def test_libraries_that_are_loaded_open_safetensors_that_stay_in_memory(dry, monkeypatch):
    loaded = types.ModuleType("loaded")
    loaded.safe_open = pytest.importorskip("safetensors").safe_open
    monkeypatch.setitem(sys.modules, "loaded", loaded)
    result, _ = dry("""
import loaded
from safetensors.torch import save_file
save_file({"b": torch.ones(2)}, "a.safetensors")
with loaded.safe_open("a.safetensors", framework="pt") as file:
    result = file.keys()
""")
    assert result == ["b"]


def test_real_safetensors_are_read(dry, work):
    torch = pytest.importorskip("torch")
    from_torch = pytest.importorskip("safetensors.torch")
    from_torch.save_file({"a": torch.ones(3)}, work / "real.safetensors")
    result, _ = dry("""
from safetensors.torch import load_file
result = load_file("real.safetensors")["a"].tolist()
""")
    assert result == [1, 1, 1]


def test_tokenizers(dry):
    pytest.importorskip("tokenizers")
    result, notes = dry("""
from tokenizers import Tokenizer, models
Tokenizer(models.BPE()).save("tokenizer.json")
os.mkdir("vocabulary")
Tokenizer(models.BPE(vocab={"a": 0}, merges=[])).model.save("vocabulary")
result = [type(Tokenizer.from_file("tokenizer.json")).__name__, sorted(os.listdir("vocabulary"))]
result += [list(models.BPE.read_file("vocabulary/vocab.json", "vocabulary/merges.txt")[0])]
Tokenizer(models.WordPiece()).train(["vocabulary/vocab.json"])
""")
    assert result == ["Tokenizer", ["merges.txt", "vocab.json"], ["a"]]
    assert "Tokenizer.save(..., 'tokenizer.json')" in notes[0]


def test_tokenizers_are_made_from_files_of_the_dry_run(dry):
    pytest.importorskip("tokenizers")
    result, _ = dry("""
from tokenizers.models import BPE, WordLevel, WordPiece
with open("vocab.txt", "w") as file:
    file.write("[UNK]\\nab")
with open("vocab.json", "w") as file:
    file.write('{"a": 0, "b": 1, "ab": 2}')
with open("merges.txt", "w") as file:
    file.write("a b")
made = [WordPiece("vocab.txt"), WordPiece(vocab="vocab.txt"), WordPiece({"[UNK]": 0, "ab": 1})]
made += [BPE("vocab.json", "merges.txt"), BPE(merges="merges.txt", vocab="vocab.json")]
made += [WordLevel("vocab.json", unk_token="a")]
result = [each.token_to_id("ab") for each in made]
""")
    assert result == [1, 1, 1, 2, 2, 2]


def test_joblib(dry):
    pytest.importorskip("joblib")
    result, _ = dry("""
import joblib
joblib.dump({"a": [1]}, "a.joblib")
result = joblib.load("a.joblib")
""")
    assert result == {"a": [1]}


def test_functions_that_cache_on_the_disk(dry):
    pytest.importorskip("joblib")
    result, _ = dry("""
import joblib
doubled = joblib.Memory("cache", verbose=0).cache(lambda x: 2 * x)
result = [doubled(2), doubled(2), os.path.isdir("cache")]
""")
    assert result == [4, 4, True]


def test_tables_of_arrow(dry):
    pytest.importorskip("pyarrow")
    result, notes = dry("""
import pyarrow
from pyarrow import csv, dataset, ipc, parquet
table = pyarrow.table({"a": [1, 2]})
csv.write_csv(table, "a.csv")
with ipc.new_file("a.arrow", table.schema) as file:
    file.write_table(table)
with parquet.ParquetWriter("a.parquet", table.schema) as file:
    file.write_table(table)
dataset.write_dataset(table, "parts", format="parquet")
result = [csv.read_csv("a.csv").num_rows, ipc.open_file("a.arrow").read_all().num_rows]
result += [parquet.ParquetFile("a.parquet").metadata.num_rows, dataset.dataset("parts").count_rows()]
""")
    assert result == [2, 2, 2, 2]
    assert "pyarrow.write_csv(..., 'a.csv')" in notes[0]


def test_compressed_files_of_arrow(dry):
    pytest.importorskip("pyarrow")
    result, _ = dry("""
import pyarrow
from pyarrow import feather, fs, json
table = pyarrow.table({"a": [1, 2]})
feather.write_feather(table, "a.feather", compression="zstd")
with pyarrow.output_stream("a.gz", compression="gzip") as file:
    file.write(b'{"a": 1}')
with pyarrow.OSFile("a.arrow", "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as rows:
    rows.write(table)
with fs.LocalFileSystem().open_output_stream("a.txt") as file:
    file.write(b"text")
result = [feather.read_table("a.feather").num_rows, feather.read_feather("a.feather").a.sum()]
result += [pyarrow.input_stream("a.gz", compression="gzip").read(), json.read_json("a.gz").num_rows]
with pyarrow.memory_map("a.arrow") as file:
    result.append(pyarrow.ipc.open_stream(file).read_all().num_rows)
result.append(fs.LocalFileSystem().open_input_file("a.txt").read())
""")
    assert result == [2, 3, b'{"a": 1}', 1, 2, b"text"]


def test_tables_of_polars(dry):
    pytest.importorskip("polars")
    result, notes = dry("""
import polars
table = polars.DataFrame({"a": [1, 2]})
table.write_csv("a.csv")
table.write_ipc("a.arrow")
table.write_ndjson("a.ndjson")
table.write_json("a.json")
table.lazy().sink_parquet("a.parquet")
found = [polars.read_csv("a.csv"), polars.read_ipc("a.arrow"), polars.read_ndjson("a.ndjson")]
found += [polars.read_json("a.json"), polars.scan_parquet("a.parquet").collect()]
result = [each.equals(table) for each in found]
""")
    assert result == [True] * 5
    assert "polars.DataFrame.write_csv(..., 'a.csv')" in notes[0]
    assert notes[0].count("csv") == 2  # it is told once


def test_folders_that_polars_looks_into(dry):
    pytest.importorskip("polars")
    result, _ = dry("""
import polars
table = polars.DataFrame({"a": [1, 2], "k": ["x", "y"]})
os.mkdir("parts")
for name in "pq":
    table.write_parquet(f"parts/{name}.parquet")
table.write_parquet("by", partition_by="k")
table.serialize("a.bin")
result = [len(polars.read_parquet(place)) for place in ("parts/*.parquet", "parts", "by")]
result.append(len(polars.DataFrame.deserialize("a.bin")))
""")
    assert result == [4, 4, 2, 2]


def test_files_elsewhere_and_at_home(dry, monkeypatch, tmp_path):
    pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    monkeypatch.setenv("HOME", str(tmp_path))
    result, notes = dry("""
import polars, pyarrow.parquet
table = polars.DataFrame({"a": [1, 2]})
table.write_parquet("s3://bucket/a.parquet")
table.write_parquet("~/a.parquet")
table.write_csv(f"file://{os.getcwd()}/a.csv")
result = [os.path.exists(os.path.expanduser("~/a.parquet")), len(polars.read_csv("a.csv"))]
result.append(pyarrow.parquet.read_table("~/a.parquet").num_rows)
for read in (polars.read_parquet, pyarrow.parquet.read_table):
    try:
        read("s3://bucket/a.parquet")
    except ConnectionError as error:
        result.append(str(error))
""")
    refused = "a dry run makes no connections (here: to s3://bucket/a.parquet)"
    assert result == [True, 2, 2, refused, refused]
    assert "write_parquet(..., 's3://bucket/a.parquet')" in notes[0]
    assert not (tmp_path / "a.parquet").exists()


def test_models_of_sentencepiece(dry):
    pytest.importorskip("sentencepiece")
    result, notes = dry("""
import sentencepiece
with open("a.txt", "w") as file:
    file.writelines(f"one line {i} of text {i * 7}\\n" for i in range(300))
sentencepiece.SentencePieceTrainer.train(input="a.txt", model_prefix="m", vocab_size=40)
sentencepiece.SentencePieceTrainer.Train("--input=a.txt --model_prefix=n --vocab_size=40")
loaded = sentencepiece.SentencePieceProcessor()
loaded.load("n.model")
result = [sentencepiece.SentencePieceProcessor(model_file="m.model").vocab_size()]
result += [loaded.vocab_size(), os.path.exists("m.vocab")]
""")
    assert result == [40, 40, True]
    assert "SentencePieceTrainer.train(model_prefix='m')" in notes[0]


def test_videos(dry):
    pytest.importorskip("cv2")
    result, _ = dry("""
import cv2, numpy
picture = numpy.zeros((8, 8, 3), numpy.uint8)
video = cv2.VideoWriter("a.avi", cv2.VideoWriter_fourcc(*"MJPG"), 5, (8, 8))
video.write(picture)
video.release()
settings = cv2.FileStorage("a.yml", cv2.FILE_STORAGE_WRITE)
settings.write("x", 3)
settings.release()
settings = cv2.FileStorage("a.yml", cv2.FILE_STORAGE_READ)
result = [cv2.VideoCapture("a.avi").read()[0], settings.getNode("x").real()]
""")
    assert result == [True, 3]


def test_databases_of_lmdb(dry):
    pytest.importorskip("lmdb")
    result, notes = dry("""
import lmdb
for way in (lambda: lmdb.open("a.lmdb", map_size=1 << 20), lambda: lmdb.Environment(path="b", subdir=False)):
    with way() as made, made.begin(write=True) as change:
        change.put(b"k", b"v")
result = []
for way in (lambda: lmdb.open("a.lmdb", readonly=True), lambda: lmdb.open("b", subdir=False)):
    with way() as made, made.begin() as look:
        result.append(look.get(b"k"))
""")
    assert result == [b"v", b"v"]
    assert "lmdb.open('a.lmdb'" in notes[0]


def test_databases_of_duckdb(dry):
    pytest.importorskip("duckdb")
    result, notes = dry("""
import duckdb
duckdb.sql("copy (select 1 as a) to 'a.parquet'")
result = [duckdb.sql("select a, 'a' from 'a.parquet'").fetchall()]
duckdb.sql("select 2 as a").write_csv("a.csv")
result.append(duckdb.execute("select a from 'a.csv'").fetchall())
with duckdb.connect(database="a.db") as made:
    made.execute("create table t as select 3 as a")
with duckdb.connect("a.db", read_only=True) as made:
    result.append(made.execute("select a from t").fetchall())
result.append(duckdb.connect(":memory:").execute("select 4").fetchall())
""")
    assert result == [[(1, "a")], [(2,)], [(3,)], [(4,)]]
    assert "copy to 'a.parquet'" in notes[0]
    assert "duckdb.connect(database='a.db')" in notes[0]


OTHERS = {
    "soundfile": 'soundfile.write("a.wav", [0.0] * 9, 8000); result = soundfile.info("a.wav").frames == 9',
    "lightgbm": """
import numpy
data = lightgbm.Dataset(numpy.arange(40.0).reshape(20, 2), numpy.arange(20.0))
lightgbm.train({"verbose": -1, "num_threads": 1}, data, 2).save_model("a.txt")
result = lightgbm.Booster(model_file="a.txt").num_trees() > 0
""",
    "netCDF4": """
with netCDF4.Dataset("a.nc", "w") as file:
    file.createDimension("x", 3)
with netCDF4.Dataset("a.nc") as file:
    result = [*file.dimensions] == ["x"]
""",
    "av": """
with av.open("a.mp4", "w") as video:
    stream = video.add_stream("mpeg4", rate=24)
    stream.width = stream.height = 16
    frame = av.VideoFrame(16, 16, "yuv420p")
    video.mux([packet for each in (frame, None) for packet in stream.encode(each)])
with av.open("a.mp4") as video:
    result = len([*video.decode(video=0)]) == 1
""",
    "plyvel": """
table = plyvel.DB("a", create_if_missing=True)
table.put(b"k", b"v")
result = table.get(b"k") == b"v"
""",
    "onnx": """
onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [])), "a.onnx")
onnx.checker.check_model("a.onnx")
result = True
""",
    "duckdb": """
with duckdb.connect("a.db") as made:
    made.execute("create table t as select 3 as a")
    made.execute("copy t to 'a.parquet'")
    made.execute("export database 'exported'")
result = duckdb.read_parquet("a.parquet").fetchall() == [(3,)] and os.path.isdir("exported")
""",
}


@pytest.mark.parametrize("library", OTHERS)
def test_libraries_that_write_in_other_languages(dry, library):
    pytest.importorskip(library)
    assert dry(f"import {library}\n{OTHERS[library]}")[0]
