"""Which values the options of the magics take: read before anything runs, offered by <Tab>.

Every reader raises ValueError, saying what is wrong, for a text that cannot work."""

from __future__ import annotations

import builtins
import difflib
import keyword
import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError

from gpumem_magic.advice import RULES
from gpumem_magic.devices import check_device, device_names, is_cuda_device
from gpumem_magic.snapshots import SNAPSHOTS
from gpumem_magic.virtual.catalog import lookup

_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")

_WIDTH = 80  # columns of a terminal

SUFFIXES = (".json", ".csv", ".html", ".png", ".svg", ".txt", ".pickle")


def variable(text: str) -> str:
    """The name of a variable."""
    if not text.isidentifier() or keyword.iskeyword(text):
        raise ValueError("not a variable name")
    return text


def position(text: str) -> int:
    """A position in the history."""
    if not re.fullmatch(r"-?\d+", text):
        raise ValueError("not a number of the history, which %gpumem --history lists")
    return int(text)


def count(text: str) -> int:
    """A whole number from 1."""
    if not re.fullmatch(r"\d+", text) or not int(text):
        raise ValueError("not a whole number from 1")
    return int(text)


def percent(text: str) -> float:
    """A share of the whole, given in per cent, with the sign or without."""
    if not re.fullmatch(r"\d{1,2}(\.\d+)?\s?%?", text):
        raise ValueError("not a number of per cent from 0 to 99")
    return float(text.rstrip(" %")) / 100


def target(text: str) -> Path:
    """A file to save to."""
    if Path(text).suffix.lower() not in SUFFIXES:
        raise ValueError(f"the name must end in one of {' '.join(SUFFIXES)}")
    return _path(text)


def saved(text: str) -> Path:
    """A file of saved reports, or a memory snapshot of PyTorch."""
    if not text.lower().endswith((".json", *SNAPSHOTS)):
        raise ValueError("a saved .json can be loaded, or a memory snapshot (.pickle) of PyTorch")
    return _path(text)


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("there is no home folder of that user") from None


def switch(text: str) -> bool:
    """On or off."""
    if text not in ("on", "off"):
        raise ValueError("on or off")
    return text == "on"


def device(text: str) -> str:
    """A device that exists; ImportError without torch."""
    if "," in text:
        raise ValueError("a cell is measured on one device; %%gpucheck --gpu predicts for several")
    check_device(text)
    return text


def rules(text: str) -> tuple[str, ...]:
    """The names of rules between commas."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name and name not in rule_names():
            near = nearest_rule(name)
            hint = f"did you mean {near}?" if near else "%gpucheck --rules lists them"
            raise ValueError(f"no rule {name!r}; {hint}")
    return tuple(name for name in names if name)


def nearest_rule(name: str) -> str | None:
    """The rule that a name is nearly that of, or a part of, in any spelling; None where none is
    near."""
    plain = "-".join(name.lower().replace("_", "-").split())
    within = [rule for rule in rule_names() if plain in rule]
    near = within if len(within) == 1 else difflib.get_close_matches(plain, rule_names(), 1, 0.75)
    return next(iter(near), None)


def known_rules() -> str:
    """What there is to explain, as part of a sentence."""
    lines = textwrap.wrap(
        ", ".join(rule_names()), _WIDTH, initial_indent="  ", subsequent_indent="  ",
        break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(("the rules are ", *lines))


def rule_names() -> list[str]:
    """The names of all rules, in their order."""
    return [rule.name for rule in RULES]


def cards(text: str) -> tuple[str, ...]:
    """The cards between commas."""
    names = tuple(name.strip() for name in text.split(","))
    if "" in names:
        raise ValueError("several cards go with commas and without spaces: T4,L4")
    for name in names:
        if is_cuda_device(name):
            check_device(name)
        else:
            lookup(name)
    return names


def different_cards(names: Iterable[str]) -> tuple[str, ...]:
    """`names` in their order, without those that mean a card that was named before."""
    keys = {name if is_cuda_device(name) else lookup(name).key: name for name in names}
    return tuple(keys.values())


def names_in(text: str, namespace: Mapping[str, Any]) -> tuple[str, ...]:
    """The names that are all that `text` has, such as `model, optimizer.state`; none where it is a
    statement. Raises UsageError for names of nothing."""
    words = text.replace(",", " ").split()
    roots = [word.partition(".")[0] for word in words if _PATH.fullmatch(word)]
    if len(roots) < len(words) or any(keyword.iskeyword(root) for root in roots):
        return ()
    unknown = [root for root in roots if root not in namespace]
    if any(hasattr(builtins, root) for root in unknown):
        return ()
    if unknown:
        near = difflib.get_close_matches(unknown[0], list(namespace), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"%gpucheck: there is no variable {unknown[0]}{hint}")
    return tuple(words)


def offer_devices(names: Mapping[str, Any]) -> Iterable[str]:
    """Every device."""
    return device_names()


def offer_cards(names: Mapping[str, Any]) -> Iterable[str]:
    """Every card that can be predicted for."""
    return [name for name in device_names() if name not in ("auto", "off")]


def offer_rules(names: Mapping[str, Any]) -> Iterable[str]:
    """The rules that give advice."""
    return rule_names()


def offer_whole_numbers(names: Mapping[str, Any]) -> Iterable[str]:
    """The user's variables that hold a whole number."""
    return [name for name, value in names.items() if type(value) is int and name[0] != "_"]
