"""What PYTORCH_ALLOC_CONF says: the options of the caching allocator, as PyTorch reads them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpumem_magic.units import MIB
from gpumem_magic.values.recording import LARGE_SEGMENT

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""The environment variables that PyTorch reads; the first one that is set counts."""

UNLIMITED = sys.maxsize
INTERVALS = 16
"""roundup_power2_divisions has one entry per power of two from 1 MiB to 32 GiB."""

_SMALLEST_LARGE_SEGMENT = 10  # MiB, exclusive: requests below 10 MiB must fit into one
_WITHOUT_EFFECT_HERE = frozenset(
    {
        "graph_capture_record_stream_reuse",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
    }
)  # options of host memory, locking and graph capture: device memory is the same with any value


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of the caching allocator; sizes in bytes, the defaults are PyTorch's.

    roundup_power2_divisions: 16 counts of divisions, for sizes from 1, 2, 4 ... MiB (0 or 1: off).
    garbage_collection_threshold: 0 is off. memory_fraction: 1 is no limit.
    """

    max_split_size: int = UNLIMITED
    max_non_split_rounding: int = LARGE_SEGMENT
    roundup_power2_divisions: tuple[int, ...] = (0,) * INTERVALS
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    large_segment_size: int = LARGE_SEGMENT
    memory_fraction: float = 1.0

    @classmethod
    def parse(cls, text: str, previous: Settings | None = None) -> Settings:
        """The settings that `text` ("max_split_size_mb:128,expandable_segments:True") stands for.

        `previous`: the settings in force, when they are changed in a running process. As in PyTorch
        the options of rounding, splitting and garbage collection that `text` leaves out are then
        the default again, and the others stay.
        Raises ValueError for what PyTorch rejects, and for `backend:cudaMallocAsync`, which is
        another allocator than the one simulated here.
        """
        kept = previous or cls()
        settings = cls(
            max_non_split_rounding=kept.max_non_split_rounding,
            expandable_segments=kept.expandable_segments,
            large_segment_size=kept.large_segment_size,
            memory_fraction=kept.memory_fraction,
        )
        for key, value in _options(text):
            settings = _apply(settings, key, value)
        return settings

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """The settings of this process: `environment` defaults to os.environ."""
        environment = os.environ if environment is None else environment
        return cls.parse(next((environment[name] for name in VARIABLES if name in environment), ""))


def _options(text: str) -> list[tuple[str, str]]:
    """The `key:value` pairs of the text; a value may be a list in brackets."""
    text = re.sub(r"\s", "", text)
    if not text:
        return []
    pair = r"([^,:\[\]]+):(\[[^\[\]]*\]|[^,:\[\]]+)"
    if not re.fullmatch(rf"{pair}(,{pair})*,?", text):
        raise ValueError(f"{text!r} is not a list of key:value options, separated by commas")
    return re.findall(pair, text)


def _apply(settings: Settings, key: str, value: str) -> Settings:
    match key:
        case "max_split_size_mb":
            least = settings.large_segment_size // MIB
            return replace(settings, max_split_size=_mebibytes(key, value, least))
        case "max_non_split_rounding_mb":
            return replace(settings, max_non_split_rounding=_mebibytes(key, value, 20))
        case "large_segment_size_mb":
            size = _mebibytes(key, value, _SMALLEST_LARGE_SEGMENT + 1)
            return replace(settings, large_segment_size=size)
        case "garbage_collection_threshold":
            threshold = _fraction(key, value)
            if not 0 < threshold < 1:
                raise ValueError("garbage_collection_threshold is invalid, set it in (0.0, 1.0)")
            return replace(settings, garbage_collection_threshold=threshold)
        case "per_process_memory_fraction":
            return replace(settings, memory_fraction=_fraction(key, value))
        case "roundup_power2_divisions":
            return replace(settings, roundup_power2_divisions=_divisions(value))
        case "expandable_segments":
            return replace(settings, expandable_segments=_boolean(key, value))
        case "backend" if value != "native":
            raise ValueError(f"backend:{value} is not simulated; only backend:native is")
    if key != "backend" and key not in _WITHOUT_EFFECT_HERE:
        raise ValueError(f"Unrecognized key '{key}' in CUDA allocator config.")
    return settings


def _number(key: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{key} needs a whole number, not {text!r}")
    return int(text)


def _mebibytes(key: str, text: str, least: int) -> int:
    number = _number(key, text)
    if number < least:
        raise ValueError(f"CachingAllocator option {key} too small, must be >= {least}")
    return min(number * MIB, UNLIMITED)


def _fraction(key: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{key} needs a number, not {text!r}") from None
    if not 0 <= number <= 1:
        raise ValueError(f"{key} is invalid, set it in [0.0, 1.0]")
    return number


def _boolean(key: str, text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError(f"Expected 'True' or 'False' for {key} but got '{text}'")
    return text == "True"


def _power_of_two(key: str, text: str) -> int:
    number = _number(key, text)
    if number & (number - 1):
        raise ValueError(f"For roundups, {key} has to be a power of 2, not {number}")
    return number


def _divisions(text: str) -> tuple[int, ...]:
    """The 16 entries meant by "4" or by "[256:1,512:2,>:8]" (from 256 MiB 1 division, ...)."""
    if not text.startswith("["):
        divisions = _power_of_two("the number of divisions", text)
        if divisions == 0:
            raise ValueError("For roundups, the number of divisions has to be a power of 2, not 0")
        return (divisions,) * INTERVALS
    entries = [0] * INTERVALS
    last: int | None = None
    for item in filter(None, text.strip("[]").split(",")):
        boundary, separator, count = item.partition(":")
        if not separator:
            raise ValueError(f"roundup_power2_divisions needs size:divisions pairs, not {item!r}")
        divisions = _power_of_two("the number of divisions", count)
        if boundary == ">":
            start = 0 if last is None else last
            entries[start + 1 :] = [divisions] * (INTERVALS - start - 1)
            continue
        index = min(_power_of_two("the size", boundary).bit_length() - 1, INTERVALS - 1)
        if last is None:  # sizes below the first boundary are treated as those at it
            entries[:index] = [divisions] * index
        entries[max(index, 0)] = divisions
        last = max(index, 0)
    return tuple(entries)
