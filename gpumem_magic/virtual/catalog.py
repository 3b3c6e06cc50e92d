"""The cards that can be simulated: what they report of themselves, and whence the numbers are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile

from gpumem_magic.units import GIB, MIB, parse_bytes

_QUERY = "total: published output of CUDA's deviceQuery on this card"
_BYTES = "total: published torch.cuda.get_device_properties of this card, in bytes"
_MIB = "total: published torch.cuda.get_device_properties of this card, which prints MiB"
_TEXT = "total: published out-of-memory texts of this card, which print hundredths of a GiB"
_SEEN = "context: published out-of-memory texts of this card"
_LIKE = (
    "context: derived, 3.75 MiB per multiprocessor (3 before Ampere) as on cards where it is seen"
)
_SMALLEST = 2 * MIB  # the granularity of device memory


@dataclass(frozen=True, slots=True)
class GPUModel:
    """A card. Sizes in bytes.

    name: what torch.cuda.get_device_name reports. total: what torch.cuda.mem_get_info calls total,
    under Linux; it differs by some 0.3 % between drivers. context: what a process takes before its
    first tensor (CUDA 11.7 and later, which load kernels lazily). source: where total and context
    come from; name, capability and multiprocessors are NVIDIA's.
    """

    key: str
    name: str
    total: int
    capability: tuple[int, int]
    context: int
    multiprocessors: int
    source: str


# fmt: off
# A table: key, name; total, capability, context, multiprocessors, source.
MODELS = (
    GPUModel("K80", "Tesla K80",
             11996954624, (3, 7), 39 * MIB, 13, f"{_QUERY}; {_LIKE}"),
    GPUModel("P100-16GB", "Tesla P100-PCIE-16GB",
             17071734784, (6, 0), 168 * MIB, 56, f"{_QUERY}; {_LIKE}"),
    GPUModel("GTX1080Ti", "NVIDIA GeForce GTX 1080 Ti",
             11721506816, (6, 1), 84 * MIB, 28, f"{_QUERY}; {_LIKE}"),
    GPUModel("V100-16GB", "Tesla V100-SXM2-16GB",
             16945512448, (7, 0), 240 * MIB, 80, f"{_QUERY}; {_LIKE}"),
    GPUModel("V100-32GB", "Tesla V100-SXM2-32GB",
             34089926656, (7, 0), 240 * MIB, 80, f"{_QUERY}; {_LIKE}"),
    GPUModel("T4", "Tesla T4",
             15828320256, (7, 5), 120 * MIB, 40, f"{_BYTES}; {_SEEN}"),
    GPUModel("RTX2080Ti", "NVIDIA GeForce RTX 2080 Ti",
             11554717696, (7, 5), 195 * MIB, 68, f"{_QUERY}; {_SEEN}"),
    GPUModel("A100-40GB", "NVIDIA A100-SXM4-40GB",
             42405855232, (8, 0), 450 * MIB, 108, f"{_QUERY}; {_SEEN}"),
    GPUModel("A100-80GB", "NVIDIA A100-SXM4-80GB",
             85093777408, (8, 0), 450 * MIB, 108, f"{_BYTES}; {_SEEN}"),
    GPUModel("A30", "NVIDIA A30",
             24064 * MIB, (8, 0), 210 * MIB, 56, f"{_TEXT}; {_LIKE}"),
    GPUModel("A10", "NVIDIA A10",
             23696375808, (8, 6), 270 * MIB, 72, f"{_QUERY}; {_LIKE}"),
    GPUModel("A10G", "NVIDIA A10G",
             22587 * MIB, (8, 6), 290 * MIB, 80, f"{_MIB}; {_SEEN}"),
    GPUModel("A40", "NVIDIA A40",
             45416 * MIB, (8, 6), 315 * MIB, 84, f"{_MIB}; {_LIKE}"),
    GPUModel("RTXA5000", "NVIDIA RTX A5000",
             25283526656, (8, 6), 240 * MIB, 64, f"{_BYTES}; {_LIKE}"),
    GPUModel("RTXA6000", "NVIDIA RTX A6000",
             48676 * MIB, (8, 6), 315 * MIB, 84, f"{_MIB}; {_LIKE}"),
    GPUModel("RTX3060", "NVIDIA GeForce RTX 3060",
             12486246400, (8, 6), 105 * MIB, 28, f"{_BYTES}; {_LIKE}"),
    GPUModel("RTX3080", "NVIDIA GeForce RTX 3080",
             10005 * MIB, (8, 6), 255 * MIB, 68, f"{_TEXT}; {_LIKE}"),
    GPUModel("RTX3090", "NVIDIA GeForce RTX 3090",
             25323503616, (8, 6), 290 * MIB, 82, f"{_BYTES}; {_SEEN}"),
    GPUModel("L4", "NVIDIA L4",
             23659151360, (8, 9), 250 * MIB, 58, f"{_BYTES}; {_SEEN}"),
    GPUModel("L40S", "NVIDIA L40S",
             47677177856, (8, 9), 532 * MIB, 142, f"{_BYTES}; {_LIKE}"),
    GPUModel("RTX4070TiSUPER", "NVIDIA GeForce RTX 4070 Ti SUPER",
             15934 * MIB, (8, 9), 247 * MIB, 66, f"{_MIB}; {_LIKE}"),
    GPUModel("RTX4080", "NVIDIA GeForce RTX 4080",
             16049 * MIB, (8, 9), 285 * MIB, 76, f"{_MIB}; {_LIKE}"),
    GPUModel("RTX4090", "NVIDIA GeForce RTX 4090",
             25250627584, (8, 9), 500 * MIB, 128, f"{_QUERY}; {_SEEN}"),
    GPUModel("H100-80GB", "NVIDIA H100 80GB HBM3",
             85017755648, (9, 0), 495 * MIB, 132, f"{_QUERY}; {_LIKE}"),
    GPUModel("H200", "NVIDIA H200",
             143156 * MIB, (9, 0), 495 * MIB, 132, f"{_MIB}; {_LIKE}"),
    GPUModel("B200", "NVIDIA B200",
             191503007744, (10, 0), 555 * MIB, 148, f"{_BYTES}; {_LIKE}"),
    GPUModel("RTX5090", "NVIDIA GeForce RTX 5090",
             33668857856, (12, 0), 604 * MIB, 170, f"{_QUERY}; {_SEEN}"),
    GPUModel("RTXPRO6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition",
             97250 * MIB, (12, 0), 705 * MIB, 188, f"{_MIB}; {_LIKE}"),
)
# fmt: on


def lookup(name: str) -> GPUModel:
    """The card meant by `name`: a key or a device name in any spelling, or a plain size ("24GiB").

    A plain size is an imaginary card of compute capability 8.0 that has exactly so many bytes, all
    of them free. Raises ValueError, which lists the names, for what is unknown or ambiguous.
    """
    wanted = _plain(name)
    exact = [model for model in MODELS if wanted in (_plain(model.key), _plain(model.name))]
    if exact:
        return exact[0]
    if re.fullmatch(r"\s*\d+(\.\d+)?\s*[KMGT]i?B\s*", name, re.IGNORECASE):
        return _of_size(parse_bytes(name))
    return _only(name, [model for model in MODELS if wanted and _means(wanted, model.key)])


def _plain(name: str) -> str:
    """A name without makers, families, spaces and dashes, in lower case."""
    words = re.sub(r"nvidia|tesla|geforce", "", name.lower())
    return re.sub(r"[^a-z0-9]", "", words)


def _means(wanted: str, key: str) -> bool:
    """The name of a family ("a100", "a100 80"), or one without its "rtx" ("4090")."""
    family, whole = _plain(key.partition("-")[0]), _plain(key)
    begun = whole.startswith(wanted) and wanted.startswith(family)  # "h20" is no H200
    return begun or family.removeprefix("rtx").removeprefix("gtx") == wanted


class SeveralCardsError(ValueError):
    """A name of a family of cards, where one of them is wanted."""


def _only(name: str, found: list[GPUModel]) -> GPUModel:
    if len(found) == 1:
        return found[0]
    if found:
        choices = " or ".join(model.key for model in found)
        raise SeveralCardsError(f"{name!r} is more than one card: write {choices}")
    keys = {_plain(model.key): model.key for model in MODELS}
    close = get_close_matches(_plain(name), keys, n=len(keys), cutoff=0.4)
    # the first of those that begin alike for longest: "h100x" is more like H200, but means H100
    meant = max(close, key=lambda key: _begins_alike(key, _plain(name)), default="")
    likely = f"{name}GiB" if re.fullmatch(r"\d{1,3}", name) else keys.get(meant)
    hint = f"; did you mean {likely}?" if likely else "."
    known = ", ".join(model.key for model in MODELS)
    raise ValueError(f"unknown card {name!r}{hint} Known: {known}, or a size such as 24GiB")


def _begins_alike(one: str, other: str) -> int:
    """How many characters both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _of_size(total: int) -> GPUModel:
    if total < _SMALLEST:
        raise ValueError(
            f"a card of {total} bytes is too small; the least is {_SMALLEST // MIB}MiB"
        )
    key = f"{total // GIB}GiB" if total % GIB == 0 else f"{total / MIB:g}MiB"
    source = "total: as asked for; context: none; compute capability: that of an A100"
    return GPUModel(key, f"{key} GPU", total, (8, 0), 0, 108, source)
