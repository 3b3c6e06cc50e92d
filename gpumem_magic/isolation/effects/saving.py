"""Libraries that write files without Python's `open`, or would write much through it."""

# Paths are the cell's, as text.
# ruff: noqa: PTH100, PTH108, PTH111, PTH112, PTH113, PTH120, PTH123

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import pickle
import re
import sys
import zipfile
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import unquote, urlsplit

import torch

from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.isolation.effects.checkpoints import Kept, KeptObjects
from gpumem_magic.isolation.effects.databases import Databases
from gpumem_magic.isolation.effects.files import ScratchFiles
from gpumem_magic.isolation.effects.network import no_connection
from gpumem_magic.isolation.telling import Effects, described

_BY_PATH = """
torch._C PyTorchFileWriter.__init__ 1 w, PyTorchFileReader.__init__ 1 r
torch._C ScriptModule.save 1 w, import_ir_module 1 r
torch._C._autograd _ProfilerResult.save 1 w
torch from_file 0 ?, UntypedStorage.from_file 0 ?
safetensors.numpy serialize_file 1 w, safe_open 0 r
tokenizers Tokenizer.save 1 w, Tokenizer.from_file 0 r, Tokenizer.train 1 r
tokenizers.models Model.save 1 a, BPE.from_file 0 r, BPE.from_file 1 r
tokenizers.models BPE.read_file 0 r, BPE.read_file 1 r
tokenizers.models WordLevel.from_file 0 r, WordLevel.read_file 0 r
tokenizers.models WordPiece.from_file 0 r, WordPiece.read_file 0 r
tokenizers.models BPE 0 r, BPE 1 r, WordLevel 0 r, WordPiece 0 r
h5py._hl.files File.__init__ 1 ?
tables open_file 0 ?
pyarrow OSFile 0 ?, memory_map 0 ?, create_memory_map 0 w, input_stream 0 r, output_stream 0 w
pyarrow CompressedInputStream 0 r, CompressedOutputStream 0 w
pyarrow._fs FileSystem.open_input_stream 1 r, FileSystem.open_input_file 1 r
pyarrow._fs FileSystem.open_output_stream 1 w, FileSystem.open_append_stream 1 a
pyarrow._fs FileSystem.get_file_info 1 r, FileSystem.from_uri 0 -
pyarrow.parquet write_table 1 w, read_table 0 r
pyarrow.parquet ParquetWriter.__init__ 1 w, ParquetFile.__init__ 1 r
pyarrow.csv write_csv 1 w, read_csv 0 r, open_csv 0 r
pyarrow.json read_json 0 r, open_json 0 r
pyarrow.orc write_table 1 w, read_table 0 r, ORCFile.__init__ 1 r, ORCWriter.__init__ 1 w
pyarrow.ipc new_file 0 w, open_file 0 r, new_stream 0 w, open_stream 0 r
pyarrow.dataset write_dataset 1 a, dataset 0 r
pyarrow._feather write_feather 1 w, FeatherReader 0 r
polars DataFrame.write_parquet 1 w, read_parquet 0 r, scan_parquet 0 r, LazyFrame.sink_parquet 1 w
polars DataFrame.write_csv 1 w, read_csv 0 r, scan_csv 0 r, LazyFrame.sink_csv 1 w
polars DataFrame.write_ipc 1 w, read_ipc 0 r, scan_ipc 0 r, LazyFrame.sink_ipc 1 w
polars DataFrame.write_ndjson 1 w, read_ndjson 0 r, scan_ndjson 0 r, LazyFrame.sink_ndjson 1 w
polars DataFrame.write_json 1 w, read_json 0 r, DataFrame.write_avro 1 w, read_avro 0 r
polars DataFrame.write_ipc_stream 1 w, read_ipc_stream 0 r, read_csv_batched 0 r, read_lines 0 r
polars read_parquet_schema 0 r, read_parquet_metadata 0 r, read_ipc_schema 0 r, scan_lines 0 r
polars DataFrame.serialize 1 w, DataFrame.deserialize 0 r
polars LazyFrame.serialize 1 w, LazyFrame.deserialize 0 r
sentencepiece._sentencepiece SentencePieceProcessor.LoadFromFile 1 r
sentencepiece._sentencepiece SentencePieceProcessor_LoadFromFile 1 r
torchvision.io.image write_file 0 w, read_file 0 r
torchaudio save 0 w, load 0 r
soundfile write 0 w, SoundFile.__init__ 1 ?
cv2 imwrite 0 w, imread 0 r, VideoWriter 0 w, VideoCapture 0 r, FileStorage 0 ?
cv2 imwritemulti 0 w, imreadmulti 0 r, imcount 0 r, haveImageReader 0 r
av open 0 ?
faiss write_index 1 w, read_index 0 r
xgboost.core Booster.save_model 1 w, Booster.load_model 1 r
lightgbm.basic Booster.save_model 1 w, Booster.__init__ 3 r
lightgbm.basic Dataset.save_binary 1 w, Dataset.__init__ 1 r
onnx.checker check_model 0 r
onnxruntime.capi.onnxruntime_inference_collection InferenceSession.__init__ 1 r
netCDF4._netCDF4 Dataset.__init__ 1 ?
plyvel DB 0 a
lmdb open 0 a, Environment 0 a
duckdb connect 0 a, read_csv 0 r, read_json 0 r, read_parquet 0 r
duckdb DuckDBPyConnection.read_csv 1 r, DuckDBPyConnection.read_json 1 r
duckdb DuckDBPyConnection.read_parquet 1 r
duckdb DuckDBPyRelation.to_csv 1 w, DuckDBPyRelation.write_csv 1 w
duckdb DuckDBPyRelation.to_parquet 1 w, DuckDBPyRelation.write_parquet 1 w
dbm.gnu open 0 a
dbm.ndbm open 0 a
"""
"""Module; function, where it takes a path, and whether it reads it, writes it anew, or adds to it
("?": as an argument after it says; "-": it only looks what sort it is). They are written in other
languages, or call such."""

_AS_ONE = """
torch.jit save
torch.package PackageExporter.close
torch.profiler profile.export_chrome_trace
torch.autograd.profiler profile.export_chrome_trace
transformers.modeling_utils PreTrainedModel.save_pretrained
transformers.tokenization_utils_base PreTrainedTokenizerBase.save_pretrained
pandas.core.generic NDFrame.to_csv NDFrame.to_json NDFrame.to_pickle NDFrame.to_hdf NDFrame.to_excel
pandas.core.frame DataFrame.to_parquet DataFrame.to_feather
matplotlib.figure Figure.savefig
joblib dump
numpy save savez savez_compressed savetxt
"""
"""What is told under the name that users know it by."""

_PIECES = re.compile(r"(?<=--)(input|model_prefix)=(\S+)")
"""Options of SentencePiece that name files."""

_ELSEWHERE = re.compile(r"(?!file:)\w+://")
_EXPANDING = ("polars.", "pyarrow.", "netCDF4.")
"""Libraries for which a path may begin with the home folder's mark, as for a shell."""

_SHARED = "/dev/shm"


class SavingEffects:
    """Replaces it in what is loaded, and in what will be."""

    def __init__(self, effects: Effects, arrivals: Arrivals, files: ScratchFiles) -> None:
        self._effects = effects
        self._arrivals = arrivals
        self._files = files
        self._objects = KeptObjects()

    def install(self) -> None:
        """Replace it all."""
        effects, expect = self._effects, self._arrivals.expect
        Databases(effects, self._files).install(self._arrivals)
        for module in (torch, torch.serialization):
            effects.replace(module, "save", self._saving)
            effects.wrap(module, "load", self._loading)
        effects.put(torch.hub, "download_url_to_file", self._downloading)
        self._install_tables()
        expect("_posixshmem", self._install_shared_memory)
        expect("torch.onnx", lambda module: effects.skip(module, "export", "torch.onnx.export"))
        expect("safetensors.torch", self._install_safetensors)
        expect("safetensors", self._install_safe_open)
        expect(
            "sentencepiece",
            lambda module: effects.wrap(module.SentencePieceTrainer, "_Train", self._train_pieces),
        )

    def _install_tables(self) -> None:
        for line in _BY_PATH.strip().split("\n"):
            module, _, entries = line.partition(" ")
            for function, position, mode in (entry.split() for entry in entries.split(",")):
                known_as = f"{module.partition('.')[0]}.{function.removesuffix('.__init__')}"
                how = known_as, int(position), mode
                make = functools.partial(functools.partial, self._translating, *how)
                self._arrivals.expect(module, functools.partial(self._replace, function, make))
        for line in _AS_ONE.strip().split("\n"):
            module, *functions = line.split()
            for function in functions:
                _, method, name = function.rpartition(".")
                make = functools.partial(self._files.as_one, name if method else f"{module}.{name}")
                self._arrivals.expect(module, functools.partial(self._replace, function, make))

    def _replace(self, function: str, make: Callable[[Any], Any], module: Any) -> None:
        """In `module`, "function" or "Class.method"."""
        *owner, name = function.split(".")
        self._effects.replace(getattr(module, owner[0], None) if owner else module, name, make)

    def _translating(
        self, known_as: str, position: int, mode: str, original: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        """`original`, given another path."""
        values: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        key = position if position < len(args) else _parameter(original, position, kwargs)
        given = values.get(key)
        kind = mode if mode != "?" else _kind(values, position + 1)
        if isinstance(given, str):
            if _ELSEWHERE.match(given):
                return self._elsewhere(given, kind, described(known_as, args, kwargs))
            if given.startswith(":") or kind == "-":  # a database in memory
                return original(*args, **kwargs)
            given = values[key] = _local(given, known_as)
        if values.get("readonly") or values.get("read_only"):
            kind = "r"
        if kind == "r":
            place = self._files.path_of_whole(given)
        else:
            place = self._files.written(given, whole=kind == "a")
        if place is given:
            return original(*[values.pop(i) for i in range(len(args))], **values)
        values[key] = place
        if kind != "r":
            self._files.tell(described(known_as, args, kwargs))
        with self._effects.silence() if kind != "r" else contextlib.nullcontext():
            return original(*[values.pop(i) for i in range(len(args))], **values)

    def _elsewhere(self, address: str, kind: str, call: str) -> None:
        """What is not on this machine is not written, and cannot be read."""
        self._effects.blocked(call)
        if kind in "r-":
            raise no_connection(address)

    def _saving(self, original: Any) -> Any:
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            kept = Kept(obj)
            if not _is_path(f):
                self._objects.write(kept, kept.nbytes, f)
                return
            folder = os.path.dirname(os.path.abspath(f))
            if not os.path.isdir(folder):
                raise RuntimeError(f"Parent directory {os.path.dirname(f)} does not exist.")
            with open(f, "wb") as file:
                self._objects.write(kept, kept.nbytes, file)

        return self._files.as_one("torch.save", save)

    def _loading(
        self, original: Any, /, f: Any, map_location: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        kept = self._kept(f)
        if isinstance(kept, Kept):
            return _loaded(kept, map_location, *args, **kwargs)
        maps = "mmap" in inspect.signature(original).parameters
        if _is_path(f) and maps and kwargs.get("mmap") is None:
            kwargs["mmap"] = zipfile.is_zipfile(f)
        return original(f, map_location, *args, **kwargs)

    def _kept(self, file: Any) -> Any:
        """What a file stands for; None for one that holds itself."""
        if not _is_path(file):
            return self._objects.read(file)
        if not os.path.isfile(file):
            return None
        with open(file, "rb") as opened:
            return self._objects.read(opened)

    def _downloading(self, url: str, *args: Any, **kwargs: Any) -> None:
        self._effects.blocked(described("torch.hub.download_url_to_file", (url,)))
        raise no_connection(url)

    def _train_pieces(self, original: Any, /, arg: Any = None, **options: Any) -> Any:
        """SentencePiece takes its options by name or in one text."""
        if isinstance(arg, str):
            return original(_PIECES.sub(lambda m: f"{m[1]}={self._piece_file(*m.groups())}", arg))
        placed = {name: self._piece_file(name, value) for name, value in options.items()}
        return original(arg, **placed)

    def _piece_file(self, option: str, value: Any) -> Any:
        """Where the texts are that it reads; the start of the names of the two files it writes."""
        if option == "input":
            names = value if isinstance(value, list) else str(value).split(",")
            return ",".join(map(str, map(self._files.path, names)))
        if option != "model_prefix":
            return value
        self._files.tell(described("SentencePieceTrainer.train", (), {option: value}))
        place, _ = (str(self._files.written(f"{value}.{end}", False)) for end in ("model", "vocab"))
        return place.removesuffix(".model")

    def _install_shared_memory(self, module: Any) -> None:
        """Linux has it in a folder."""

        def shm_open(path: str, flags: int, mode: int = 0o777) -> int:
            return os.open(f"{_SHARED}{path}", flags | os.O_CLOEXEC, mode)

        def shm_unlink(path: str) -> None:
            os.unlink(f"{_SHARED}{path}")

        if os.path.isdir(_SHARED):
            self._effects.put(module, "shm_open", self._files.as_one("SharedMemory", shm_open))
            self._effects.put(module, "shm_unlink", self._files.as_one("SharedMemory", shm_unlink))

    def _install_safetensors(self, module: Any) -> None:
        def serialize_file(tensors: Any, filename: Any, metadata: Any = None) -> None:
            kept = {name: Kept(tensor) for name, tensor in tensors.items()}
            with open(filename, "wb") as file:
                nbytes = sum(one.nbytes for one in kept.values())
                self._objects.write((kept, metadata), nbytes, file)

        # who has imported save_file or load_file by its name comes as far as here
        for name in ("_flatten", "_flatten_as_ptr"):
            self._effects.put(module, name, lambda tensors, *others: tensors)
        written = self._files.as_one("safetensors.save_file", serialize_file)
        self._effects.put(module, "serialize_file", written)

    def _install_safe_open(self, module: Any) -> None:
        def safe_open(
            original: Any, filename: Any, framework: str, device: Any = "cpu", **kwargs: Any
        ) -> Any:
            found = self._kept(filename)
            if isinstance(found, tuple):
                return _KeptTensors(found, device)
            return original(self._files.path(filename), framework, device, **kwargs)

        known = module.safe_open  # a class, which modules that are loaded have as a name of theirs
        for holder in list(sys.modules.values()):
            if getattr(holder, "__dict__", {}).get("safe_open") is known:
                self._effects.wrap(holder, "safe_open", safe_open)


class _KeptTensors(contextlib.ExitStack):
    """What safe_open gives of a file that stands for tensors."""

    def __init__(self, kept: tuple[dict[str, Kept], Any], device: Any) -> None:
        super().__init__()
        self._kept, self._metadata = kept
        self._device = f"cuda:{device}" if isinstance(device, int) else device

    def metadata(self) -> Any:
        """What was saved with them."""
        return self._metadata

    def keys(self) -> list[str]:
        """Their names."""
        return list(self._kept)

    offset_keys = keys

    def get_tensor(self, name: str) -> Any:
        """One of them, anew."""
        return self._kept[name].load(self._device)

    get_slice = get_tensor

    def get_tensors(self) -> dict[str, Any]:
        """All of them."""
        return {name: self.get_tensor(name) for name in self._kept}


def _local(path: str, known_as: str) -> str:
    """The path of a file on this machine, with what some libraries put into its place."""
    if path.startswith("file://"):
        return unquote(urlsplit(path).path)
    return os.path.expanduser(path) if known_as.startswith(_EXPANDING) else path


def _is_path(file: Any) -> bool:
    return isinstance(file, (str, os.PathLike))


def _parameter(function: Any, position: int, given: Collection[str]) -> str:
    """Its name; C++ does not tell, and Rust tells `self` of a class too."""
    with contextlib.suppress(ValueError, TypeError, IndexError):
        names = list(inspect.signature(function).parameters)
        is_told = inspect.isclass(inspect.unwrap(function)) and names[0] == "self"
        return names[position + is_told]
    return next((name for name in ("path", "database") if name in given), "")


def _kind(values: dict[Any, Any], position: int) -> str:
    """Of an opening, by its argument "mode" or "shared"."""
    mode = values.get(position, values.get("mode", values.get("shared", False)))
    return {False: "r", "r": "r", "rb": "r", "w": "w", "wb": "w"}.get(mode, "a")


def _loaded(
    kept: Kept,
    map_location: Any,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    **kwargs: Any,
) -> Any:
    if weights_only is None:
        default = getattr(torch.serialization, "_default_to_weights_only", None)
        weights_only = bool(default and default(pickle_module))
    try:
        return kept.load(map_location, weights_only)
    except pickle.UnpicklingError as error:
        raise pickle.UnpicklingError(f"Weights only load failed. {error}") from None
