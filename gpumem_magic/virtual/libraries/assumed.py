"""Libraries that are not installed here: who looked for them, and what stands in for those that are
to be assumed. A stand-in has shapes only: it takes what the library takes from torch's allocator.

flash_attn: csrc/flash_attn/flash_api.cpp (mha_fwd, mha_bwd) and flash_attn_interface.py of 2.8.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.metadata
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gpumem_magic.sources.stacks.frames import PACKAGE, outwards
from gpumem_magic.virtual.assumable import ASSUMABLE, OTHERS
from gpumem_magic.virtual.libraries.native import given_to

_TORCH = str(Path(torch.__file__).parent)
_ASKING = ("/importlib/", "import_utils.py", "functools.py")
"""Parts of the names of files whose code imports what other code asks for."""

_ANSWERING = ("transformers.utils.import_utils", "diffusers.utils.import_utils")
"""Modules whose functions remember which packages there are."""


def install_assumed(
    names: Sequence[str], written: Callable[[torch.Tensor], None], tell: Callable[[str], None]
) -> None:
    """From here on libraries of these names are there, and of others it is told who looks for them.

    In a process that ends with the dry run.
    """
    sys.meta_path.append(_Absent(tell))  # which Python asks last
    if not names:
        return
    finder = _Assumed(names, written)
    sys.meta_path.insert(0, finder)
    for name in [name for name in sys.modules if finder.covers(name)]:
        del sys.modules[name]
    for module in (sys.modules.get(name) for name in _ANSWERING):
        for value in list(vars(module).values()) if module else ():
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()
    tell(f"Assumed to be installed, with stand-ins that only have shapes: {', '.join(names)}.")


class _Absent:
    """Finds nothing, and tells once for each library where it was looked for."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """No spec."""
        library = name.partition(".")[0]
        known = library in ASSUMABLE or library in OTHERS
        if not known or library in self._told:
            return
        place = _asking()
        if place is None:
            return
        self._told.add(library)
        cure = f" --assume {library} predicts that." if library in ASSUMABLE else ""
        self._tell(
            f"{place} looked for {library}, which is not installed here; where it is, other code "
            f"may run.{cure}"
        )


def _asking() -> str | None:
    """The line that imports; None for torch's own, which a prediction answers by itself."""
    for frame in outwards(sys._getframe(2)):
        name = frame.f_code.co_filename
        if name.startswith(("<frozen", PACKAGE)) or any(each in name for each in _ASKING):
            continue
        if name.startswith(_TORCH):
            return None
        place = "The cell's line " if name.startswith("<") else f"{Path(name).name}:"
        return f"{place}{frame.f_lineno}"
    return None


class _Assumed:
    """Finds stand-ins for libraries, and what is known of their distributions."""

    def __init__(self, names: Sequence[str], written: Callable[[torch.Tensor], None]) -> None:
        self._names = names
        self._modules = {**_contents(), "triton": _triton(written)}

    def covers(self, name: str) -> bool:
        """Whether a module is of one of the libraries."""
        return name.partition(".")[0] in self._names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of a stand-in."""
        known = name in self._modules or name.startswith("triton.")
        if not (self.covers(name) and known):
            return None
        loader: Any = self
        return importlib.machinery.ModuleSpec(name, loader, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        """A module; of Triton one that has anything."""
        triton = spec.name.partition(".")[0] == "triton"
        return _Anything(spec.name) if triton else types.ModuleType(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Put in what is known of it."""
        library = module.__name__.partition(".")[0]
        known = {"__version__": ASSUMABLE[library][1], **self._modules.get(module.__name__, {})}
        vars(module).update(known)

    def find_distributions(self, context: Any = None) -> Iterator[importlib.metadata.Distribution]:
        """What `importlib.metadata` asks for: all, or those of a name."""
        for name in self._names:
            distribution = ASSUMABLE[name][0]
            asked = getattr(context, "name", None)
            if asked is None or asked.replace("_", "-") == distribution:
                yield _Distribution(name)


class _Distribution(importlib.metadata.Distribution):
    """The metadata of a library that is assumed."""

    def __init__(self, library: str) -> None:
        self._library = library

    def read_text(self, filename: str) -> str | None:
        """The text of one of its files."""
        name, version = ASSUMABLE[self._library]
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        return {"METADATA": metadata, "top_level.txt": self._library}.get(filename)

    def locate_file(self, path: Any) -> Any:
        """It has no files."""
        return Path(path)


class _Anything(types.ModuleType):
    """A module, a type or a function of Triton's: whatever is asked of it is such a thing again."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (_Any,), {}) if name[0].isupper() else _Anything(name)
        setattr(self, name, made)
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _Anything("value")

    def __getitem__(self, key: Any) -> Any:
        return _Anything("value")

    def __iter__(self) -> Iterator[Any]:
        return iter(())  # by its items it would never end


class _Any:
    """A type of Triton's, such as Config."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


class _Kernel:
    """A kernel of Triton's: a launch allocates nothing."""

    run: Any
    __call__: Any

    def __init__(self, function: Any) -> None:
        functools.update_wrapper(self, function)
        self.fn = function

    def __getitem__(self, grid: Any) -> Any:
        return self.run


def _triton(written: Callable[[torch.Tensor], None]) -> dict[str, Any]:
    run = given_to(written)
    kernel = type("Kernel", (_Kernel,), {"run": run, "warmup": run, "__call__": run})

    def jit(function: Any = None, **options: Any) -> Any:
        return jit if function is None else kernel(function)

    def tune(*args: Any, **kwargs: Any) -> Any:
        return lambda kernel: kernel

    return {
        "jit": jit,
        "autotune": tune,
        "heuristics": tune,
        "cdiv": lambda a, b: -(-a // b),
        "next_power_of_2": lambda n: 1 << max(0, n - 1).bit_length(),
    }


def _contents() -> dict[str, dict[str, Any]]:
    """The names of modules; any other is not there."""
    flash = {
        "flash_attn_func": _flash_attention,
        "flash_attn_qkvpacked_func": lambda qkv, *a, **k: _flash_attention(*qkv.unbind(2)),
        "flash_attn_kvpacked_func": lambda q, kv, *a, **k: _flash_attention(q, *kv.unbind(2)),
        "flash_attn_varlen_func": _flash_attention_of_lengths,
        "flash_attn_with_kvcache": lambda q, k_cache, v_cache, *a, **k: _flash_attention(
            q, k_cache, v_cache
        ),
    }
    return {
        "flash_attn": flash,
        "flash_attn.flash_attn_interface": flash,
        "flash_attn.bert_padding": {
            "pad_input": _pad_input,
            "unpad_input": _unpad_input,
            "index_first_axis": lambda input, indices: input[indices],
        },
        "xformers": {},
        "xformers.ops": {"memory_efficient_attention": _memory_efficient_attention},
        "causal_conv1d": {
            "causal_conv1d_fn": _causal_convolution,
            "causal_conv1d_update": lambda x, *a, **k: torch.empty_like(x),
        },
    }


def _flash_attention(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
    """(batch, tokens, heads, width) -> the same."""
    _check_flash(q)
    return _attend(q, k, v, q.shape[1], q.shape[0])


def _flash_attention_of_lengths(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, *args: Any, **kwargs: Any
) -> Any:
    """(all tokens, heads, width) -> the same; cu_seqlens_q: where each sequence begins."""
    _check_flash(q)
    return _attend(q, k, v, q.shape[0] + 128 * (len(cu_seqlens_q) - 1), 1)


def _check_flash(q: Any) -> None:
    if torch.cuda.get_device_capability(q.device)[0] < 8:
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")


def _memory_efficient_attention(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
    """(batch, tokens, heads, width), or without heads, -> the same."""
    if q.dim() == 3:
        return _memory_efficient_attention(q[:, :, None], k[:, :, None], v[:, :, None])[:, :, 0]
    return _attend(q, k, v, q.shape[1], q.shape[0])


def _attend(q: Any, k: Any, v: Any, tokens: int, batch: int) -> Any:
    width = q.shape[-1]
    q, k, v = (F.pad(it, (0, -width % 8)) if width % 8 else it for it in (q, k, v))
    return _Attention.apply(q, k, v, tokens, batch)[..., :width]  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    """What flash attention allocates. tokens: of a sequence, or, of all with batch 1."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, tokens: int, batch: int) -> Any:
        """The result, beside the sums of its softmax and the state of random numbers."""
        q, k, v = (it if it.stride(-1) == 1 else it.contiguous() for it in (q, k, v))
        out = torch.empty_like(q)
        sums = torch.empty(q.numel() // q.shape[-1], dtype=torch.float32, device=q.device)
        state = torch.empty(2, dtype=torch.int64, device=q.device)
        ctx.save_for_backward(q, k, v, out, sums, state)
        ctx.sizes = batch * -(-tokens // 128) * 128, q.shape[-2]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gradients, beside their sums in float32 and, of grouped queries, each head's."""
        q, k, v = ctx.saved_tensors[:3]
        found = [torch.empty_like(it) for it in (q, k, v)]
        tokens, heads = ctx.sizes
        width = -(-q.shape[-1] // 32) * 32
        temporary = [
            torch.empty(tokens * heads * size, dtype=torch.float32, device=q.device)
            for size in (1, width)
        ]
        if k.shape[-2] != heads:
            shape = (*k.shape[:-2], heads, k.shape[-1])
            temporary += [torch.empty(shape, dtype=k.dtype, device=k.device) for _ in "kv"]
        del temporary
        return (*found, None, None)


def _unpad_input(hidden: Any, mask: Any, *unused: Any) -> Any:
    lengths = mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(mask.flatten(), as_tuple=False).flatten()
    begins = F.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return hidden.flatten(0, 1)[indices], indices, begins, hidden.shape[1], lengths


def _pad_input(hidden: Any, indices: Any, batch: int, tokens: int) -> Any:
    out = torch.zeros(batch * tokens, *hidden.shape[1:], device=hidden.device, dtype=hidden.dtype)
    out[indices] = hidden
    return out.view(batch, tokens, *hidden.shape[1:])


def _causal_convolution(x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Any:
    """(batch, channels, tokens) -> the same."""
    return _Convolution.apply(x, weight, bias)  # type: ignore[no-untyped-call]


class _Convolution(torch.autograd.Function):
    """A depthwise convolution: it keeps its arguments; gradients of weights are of float32."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
        """The result."""
        ctx.save_for_backward(x, weight, bias)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradients."""
        x, *weights = ctx.saved_tensors
        sums = [w if w is None else torch.zeros_like(w, dtype=torch.float32) for w in weights]
        found = [s if s is None else s.to(w.dtype) for s, w in zip(sums, weights, strict=True)]
        return (torch.empty_like(x), *found)
