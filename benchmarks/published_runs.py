"""What others measured on real GPUs and published: the numbers, where they stand, and the cells
that do what was run. Read by published.py."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fidelity_table import text_of

CELLS = Path(__file__).parent / "published_cells"
TOLD = 1.0
"""Percent from which on a gap wants its cause."""
GB, MB, GIB = 10**9, 10**6, 2**30


@dataclass(frozen=True, slots=True)
class Source:
    """Where numbers were published. card: what was measured on; key: its like in the catalog."""

    name: str
    page: str
    card: str
    key: str
    versions: str


@dataclass(frozen=True, slots=True)
class Run:
    """One published number. counter: what was read of the peak (allocated, reserved), or of the end
    of a step (after). unit: bytes of the last digit that was published. values: variables of the
    cell's head. cause: why the prediction is off by more than TOLD."""

    title: str
    source: Source
    cell: str
    counter: str
    published: float
    unit: int = 1
    values: tuple[tuple[str, int], ...] = ()
    cause: str = ""

    @property
    def code(self) -> str:
        """The cell's text. Raises KeyError for a value whose variable the cell does not assign."""
        return text_of(CELLS / f"{self.cell}.py", self.values)


_PEFT = "https://github.com/huggingface/peft/blob/main/method_comparison/image-gen/results/"
_HUB = "https://huggingface.co/datasets/"
_TABLES = _HUB + "sayakpaul/sample-datasets/blob/"
_COMMITS = _HUB + "optimum-benchmark/cuda/commit/"


def _peft(file: str, torch: str) -> Source:
    versions = f"torch {torch}, diffusers 0.38.0, peft 0.19.2.dev0"
    return Source("PEFT", f"{_PEFT}{file}--flux2-klein-{{}}.json", "NVIDIA L40S", "L40S", versions)


def _peft_run(
    what: str, source: Source, file: str, sizes: tuple[int, int], **kept: Any
) -> list[Run]:
    """Two numbers of one run: the highest reserved memory, and allocated memory after a step."""
    page = Source(**{**asdict(source), "page": source.page.format(file)})
    cause = kept.pop("cause", "")
    values = tuple(kept.items())
    title = f"FLUX.2-klein 4B, {what}"
    return [
        Run(title, page, "flux2_klein", "reserved", sizes[0], values=values, cause=cause),
        Run(title, page, "flux2_klein", "after", sizes[1], values=values),
    ]


def _fast(file: str) -> Source:
    """Of huggingface/diffusion-fast, whose script prints max_memory_allocated in GiB."""
    return Source(
        "diffusion-fast",
        _TABLES + file,
        "A100, 79.3 GiB",
        "A100-80GB",
        "not in the table; torch of January 2024",
    )


_AO = Source(
    "torchao",
    "https://github.com/pytorch/ao/blob/ba1e09024dc1d906319364c713a48c91103e70d5/"
    "torchao/prototype/low_bit_optim/README.md",
    "RTX 4070 Ti SUPER",
    "16GiB",
    "not on the page; July 2024",
)
_GUIDE = Source(
    "transformers",
    "https://huggingface.co/docs/transformers/v4.51.3/llm_tutorial_optimization",
    "not named; 40 GB suffice",
    "A100-80GB",
    "not on the page; 2023",
)
_QUANTISED = Source(
    "diffusers",
    _HUB + "derekl35/diffusers-quantization-benchmarks",
    "H100 80 GB",
    "H100",
    "not in the table; May 2025",
)


def _optimum(commit: str) -> Source:
    return Source(
        "optimum-benchmark",
        _COMMITS + commit,
        "not seen; A10G taken",
        "A10G",
        "2024; torch 2.2 to 2.5",
    )


_CACHE_CUT = (
    "The run computes images between its steps and empties the cache every 25 steps, which leaves "
    "other segments; what is allocated after a step agrees."
)
_CONVOLUTIONS = (
    "The peak lies in the convolutions of the image decoder, whose workspaces cuDNN chooses; "
    "predictions leave them out. What is loaded agrees."
)
_NOT_SAID = _CONVOLUTIONS + " The source does not say which counter it read."

RUNS = (
    *_peft_run(
        "all parameters",
        _peft("full-finetuning", "2.12.0+cu130"),
        "default",
        (39873150976, 31504182528),
        rank=0,
    ),
    *_peft_run(
        "LoRA, rank 32",
        _peft("lora", "2.12.0+cu130"),
        "default",
        (10708058112, 8889635072),
        rank=32,
        cause=_CACHE_CUT,
    ),
    *_peft_run(
        "LoRA, rank 64",
        _peft("lora", "2.13.0+cu130"),
        "rank64",
        (11383341056, 9482262784),
        rank=64,
    ),
    *_peft_run(
        "DoRA, rank 64",
        _peft("dora", "2.13.0+cu130"),
        "rank64",
        (13176406016, 9497696512),
        rank=64,
        dora=1,
        cause=_CACHE_CUT,
    ),
    Run(
        "Stable Diffusion 1.5, float32, attention of three operators",
        _fast("cd3714455caf789c3d9268486ac3a9cb3c04e021/collated_results_sdv15.csv"),
        "stable_diffusion",
        "allocated",
        6.116,
        GIB,
    ),
    Run(
        "Stable Diffusion 1.5, bfloat16, attention of three operators",
        _fast("cd3714455caf789c3d9268486ac3a9cb3c04e021/collated_results_sdv15.csv"),
        "stable_diffusion",
        "allocated",
        3.071,
        GIB,
        (("half", 1),),
    ),
    Run(
        "Stable Diffusion 1.5, bfloat16, fused attention",
        _fast("cd3714455caf789c3d9268486ac3a9cb3c04e021/collated_results_sdv15.csv"),
        "stable_diffusion",
        "allocated",
        2.616,
        GIB,
        (("half", 1), ("fused_attention", 1)),
        _CONVOLUTIONS,
    ),
    Run(
        "PixArt-XL 1024 px, float32, attention of three operators",
        _fast("cd3714455caf789c3d9268486ac3a9cb3c04e021/collated_results_pixart.csv"),
        "pixart",
        "allocated",
        24.547,
        GIB,
    ),
    Run(
        "PixArt-XL 1024 px, bfloat16, attention of three operators",
        _fast("cd3714455caf789c3d9268486ac3a9cb3c04e021/collated_results_pixart.csv"),
        "pixart",
        "allocated",
        12.571,
        GIB,
        (("half", 1),),
        _CONVOLUTIONS,
    ),
    Run("ViT-H, AdamW of PyTorch", _AO, "vit", "allocated", 12.94, GB),
    Run(
        "ViT-H, 8-bit AdamW of bitsandbytes",
        _AO,
        "vit",
        "allocated",
        8.31,
        GB,
        (("optimizer_kind", 1),),
    ),
    Run(
        "ViT-H, 8-bit AdamW of torchao", _AO, "vit", "allocated", 8.32, GB, (("optimizer_kind", 2),)
    ),
    Run(
        "ViT-H, 4-bit AdamW of torchao", _AO, "vit", "allocated", 7.72, GB, (("optimizer_kind", 3),)
    ),
    Run(
        "bert-base, float32, loaded",
        _optimum("7b7c3ab97da84f4d851f587d92fa7b5323ab123e"),
        "bert_base",
        "reserved",
        589.299712,
        MB,
        (("loading_only", 1),),
    ),
    Run(
        "bert-base, float32, forward",
        _optimum("7b7c3ab97da84f4d851f587d92fa7b5323ab123e"),
        "bert_base",
        "allocated",
        449.025024,
        MB,
    ),
    Run(
        "roberta-base, float32, loaded",
        _optimum("2be30b2a87eaa728506e371ab75eed2d6fe448b1"),
        "roberta_base",
        "reserved",
        555.74528,
        MB,
    ),
    Run(
        "OctoCoder 15.5B, bfloat16, 60 new tokens",
        _GUIDE,
        "starcoder",
        "allocated",
        29.0260648727417,
        GIB,
    ),
    Run(
        "FLUX.1-dev, bfloat16, loaded",
        _QUANTISED,
        "flux_dev",
        "allocated",
        31.447,
        GIB,
        (("loading_only", 1),),
    ),
    Run(
        "FLUX.1-dev, bfloat16, 1024 px",
        _QUANTISED,
        "flux_dev",
        "allocated",
        36.166,
        GIB,
        cause=_NOT_SAID,
    ),
)
