"""Libraries' own ways to write files: torch.save and its kin, pandas, matplotlib, databases."""

from __future__ import annotations

import copy
import inspect
import os
import sqlite3
import zipfile
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree

from gpumem_magic.sources.virtual.dryrun.arrivals import Arrivals
from gpumem_magic.sources.virtual.dryrun.effects import Effects, described
from gpumem_magic.sources.virtual.dryrun.file_effects import path_of
from gpumem_magic.sources.virtual.dryrun.network_effects import no_connection
from gpumem_magic.sources.virtual.dryrun.written_files import Content, WrittenFiles

_SMALL = 16 << 20
"""Bytes of tensors up to which torch.save really writes into a buffer of the user."""

_PANDAS = (
    "to_csv to_json to_pickle to_hdf to_excel to_html to_latex to_markdown to_parquet to_feather "
    "to_orc to_stata to_xml to_string to_sql to_gbq"
).split()


class SavingEffects:
    """Replaces what writes files without Python's `open`, or would write much through it."""

    def __init__(self, effects: Effects, arrivals: Arrivals, files: WrittenFiles) -> None:
        self._effects = effects
        self._arrivals = arrivals
        self._files = files
        self._buffers: dict[int, tuple[Any, Any]] = {}  # a stream without a name, what it holds

    def install(self) -> None:
        """Replace it in what is loaded, and in what will be."""
        effects, expect = self._effects, self._arrivals.expect
        for module in (torch, torch.serialization):
            effects.replace(module, "save", self._saving)
            effects.replace(module, "load", self._loading)
        for owner, name, known_as in (
            (torch.jit, "save", "torch.jit.save"),
            (torch.jit.ScriptModule, "save", "ScriptModule.save"),
            (torch.profiler.profile, "export_chrome_trace", "profile.export_chrome_trace"),
            (torch.autograd.profiler.profile, "export_chrome_trace", "export_chrome_trace"),
            (torch.profiler.profile, "export_stacks", "profile.export_stacks"),
        ):
            effects.skip(owner, name, known_as)
        effects.put(torch.hub, "download_url_to_file", self._downloading)
        for module in (sqlite3, sqlite3.dbapi2):
            effects.replace(module, "connect", self._connecting)
        expect("torch.onnx", lambda m: effects.skip(m, "export", "torch.onnx.export"))
        expect("safetensors.torch", self._install_safetensors)
        expect("safetensors.numpy", self._install_safetensors)
        expect("transformers.modeling_utils", self._install_transformers)
        expect("pandas.core.frame", self._install_pandas)
        expect("matplotlib.figure", self._install_matplotlib)
        expect("h5py._hl.files", self._install_h5py)

    def _saving(self, original: Any) -> Any:
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            path = path_of(f)
            if path is None and _nbytes(obj) <= _SMALL:
                original(obj, f, *args, **kwargs)
                return
            self._effects.tell(described("torch.save", (obj, f)))
            path = path or path_of(getattr(f, "name", None))
            if path is not None:
                self._files.touch(path, Content(None, _nbytes(obj)))
                self._files.objects[path] = _on_host(obj)
            else:
                self._buffers[id(f)] = f, _on_host(obj)

        return save

    def _loading(self, original: Any) -> Any:
        parameters = inspect.signature(original).parameters

        def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            if id(f) in self._buffers:
                return _placed(self._buffers[id(f)][1], map_location)
            path = path_of(f) or path_of(getattr(f, "name", None))
            if path in self._files.objects:
                return _placed(self._files.objects[path], map_location)
            if path is not None and path_of(f) and path in self._files:
                f = self._files.open(path, "rb")
            elif path_of(f) and "mmap" in parameters and kwargs.get("mmap") is None:
                kwargs["mmap"] = zipfile.is_zipfile(f)
            return original(f, map_location, *args, **kwargs)

        return load

    def _downloading(self, url: str, *args: Any, **kwargs: Any) -> None:
        self._effects.tell(described("torch.hub.download_url_to_file", (url,)))
        raise no_connection(url)

    def _connecting(self, original: Any) -> Any:
        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            path = path_of(database)
            if database in (":memory:", "") or path is None:
                return original(database, *args, **kwargs)
            self._effects.tell(described("sqlite3.connect", (database,)))
            kwargs.pop("uri", None)
            memory = original(":memory:", *args, **kwargs)
            if os.path.isfile(path):  # noqa: PTH113
                with self._effects.silence():
                    real = original(f"file:{path}?mode=ro", uri=True)
                    real.backup(memory)
                    real.close()
            return memory

        return connect

    def _install_safetensors(self, module: Any) -> None:
        for name in ("save_file", "save_model"):
            self._effects.put(module, name, self._told(f"safetensors.{name}", 1))
        # who has imported save_file by its name comes as far as here
        self._effects.skip(module, "serialize_file", "safetensors.save_file")
        for name in ("_flatten", "_flatten_as_ptr"):
            self._effects.put(module, name, lambda tensors, *others: {})

    def _install_transformers(self, module: Any) -> None:
        for name in ("save_pretrained", "push_to_hub"):
            self._effects.put(module.PreTrainedModel, name, self._told(name, 1))

    def _told(self, name: str, position: int) -> Any:
        """Does nothing with the argument at `position`, the file's name, but tell it."""

        def told(*args: Any, **kwargs: Any) -> None:
            file = [*args, *kwargs.values()][position : position + 1]
            self._effects.tell(described(name, (..., *file)))

        return told

    def _install_pandas(self, module: Any) -> None:
        for owner in (module.DataFrame, getattr(module, "Series", None)):
            for name in _PANDAS:
                if hasattr(owner, name):
                    self._effects.replace(owner, name, self._exporting)

    def _exporting(self, original: Any) -> Any:
        def export(frame: Any, *args: Any, **kwargs: Any) -> Any:
            named = [kwargs[key] for key in ("path_or_buf", "path", "buf") if key in kwargs]
            place = (*args, *named, None)[0]
            if isinstance(place, (str, os.PathLike)) or original.__name__ in ("to_sql", "to_gbq"):
                self._effects.tell(described(original.__name__, (place,)))
                if original.__name__ not in ("to_csv", "to_json", "to_pickle"):
                    return None
                with self._effects.silence():  # these write by `open`
                    return original(frame, *args, **kwargs)
            return original(frame, *args, **kwargs)

        return export

    def _install_matplotlib(self, module: Any) -> None:
        def make(original: Any) -> Any:
            def savefig(figure: Any, fname: Any, *args: Any, **kwargs: Any) -> None:
                if not isinstance(fname, (str, os.PathLike)):
                    original(figure, fname, *args, **kwargs)
                else:
                    self._effects.tell(described("savefig", (fname,)))

            return savefig

        self._effects.replace(module.Figure, "savefig", make)

    def _install_h5py(self, module: Any) -> None:
        def make(original: Any) -> Any:
            def init(self_: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
                if mode != "r" and path_of(name):
                    self._effects.tell(described("h5py.File", (name, mode)))
                    args, kwargs = (), {**kwargs, "driver": "core", "backing_store": False}
                original(self_, name, mode, *args, **kwargs)

            return init

        self._effects.replace(module.File, "__init__", make)


def _tensors(obj: Any) -> Iterator[torch.Tensor]:
    for leaf in _pytree.tree_leaves(obj):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif isinstance(leaf, torch.nn.Module):
            yield from leaf.parameters()
            yield from leaf.buffers()
        elif isinstance(leaf, torch.UntypedStorage):
            yield torch.empty(leaf.nbytes(), dtype=torch.uint8, device="meta")


def _nbytes(obj: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(obj))


class _Saved:
    """A tensor in a file: where it was, and a copy of it on the host."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device = tensor.device
        self.parameter = isinstance(tensor, torch.nn.Parameter)
        detached = tensor.detach()
        self.copy = detached.cpu() if detached.device.type != "cpu" else detached.clone()


def _on_host(obj: Any) -> Any:
    """What is saved, with its tensors as they are in the file: on the host."""
    return _pytree.tree_map(lambda x: _Saved(x) if isinstance(x, torch.Tensor) else x, obj)


def _placed(saved: Any, map_location: Any) -> Any:
    """What torch.load makes of it: new tensors, where `map_location` wants them."""

    def load(leaf: Any) -> Any:
        if not isinstance(leaf, _Saved):
            return copy.deepcopy(leaf)
        device = _located(leaf.device, map_location)
        tensor = leaf.copy.clone() if device.type == "cpu" else leaf.copy.to(device)
        return torch.nn.Parameter(tensor) if leaf.parameter else tensor

    return _pytree.tree_map(load, saved)


def _located(device: torch.device, map_location: Any) -> torch.device:
    if map_location is None:
        return device
    if isinstance(map_location, dict):
        return torch.device(map_location.get(str(device), device))
    if callable(map_location):
        located = map_location(torch.UntypedStorage(0), str(device))
        return torch.device("cpu") if located is None else torch.device(located.device)
    return torch.device(map_location)
