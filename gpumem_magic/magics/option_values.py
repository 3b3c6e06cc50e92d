"""Which values the options of the magics take: checked before anything runs, offered by <Tab>."""

from __future__ import annotations

import difflib
import keyword
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpumem_magic.advice import RULES
from gpumem_magic.devices import check_device, device_names
from gpumem_magic.virtual.catalog import lookup

SUFFIXES = (".json", ".csv", ".html", ".png", ".svg", ".txt")


def check_variable(value: str) -> None:
    """Raise ValueError if `value` cannot be the name of a variable."""
    if not value.isidentifier() or keyword.iskeyword(value):
        raise ValueError("not a variable name")


def check_number(value: str) -> None:
    """Raise ValueError if `value` is no position in the history."""
    if not re.fullmatch(r"-?\d+", value):
        raise ValueError("not a number of the history")


def check_count(value: str) -> None:
    """Raise ValueError if `value` is no whole number from 1."""
    if not re.fullmatch(r"\d+", value) or not int(value):
        raise ValueError("not a whole number from 1")


def check_target(value: str) -> None:
    """Raise ValueError if no report can be saved under this name."""
    if Path(value).suffix.lower() not in SUFFIXES:
        raise ValueError(f"the name must end in one of {' '.join(SUFFIXES)}")


def check_saved(value: str) -> None:
    """Raise ValueError if this name cannot be that of saved reports."""
    if Path(value).suffix.lower() != ".json":
        raise ValueError("only a saved .json can be loaded")


def check_switch(value: str) -> None:
    """Raise ValueError if `value` is neither on nor off."""
    if value not in ("on", "off"):
        raise ValueError("on or off")


def rules_in(text: str) -> tuple[str, ...]:
    """The names of rules between commas. Raises ValueError for one that no rule has."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name and name not in rule_names():
            near = nearest_rule(name)
            hint = f"did you mean {near}?" if near else "%gpucheck --rules lists them"
            raise ValueError(f"no rule {name!r}; {hint}")
    return tuple(name for name in names if name)


def nearest_rule(name: str) -> str | None:
    """The rule that a name is nearly that of, in any spelling; None where none is near."""
    plain = "-".join(name.lower().replace("_", "-").split())
    return next(iter(difflib.get_close_matches(plain, rule_names(), 1, 0.75)), None)


def rule_names() -> list[str]:
    """The names of all rules, in their order."""
    return [rule.name for rule in RULES]


def check_cards(value: str) -> None:
    """Raise ValueError, listing the right names, if one of the cards between commas is unknown."""
    for name in value.split(","):
        if _is_device(name.strip()):
            check_device(name.strip())
        else:
            lookup(name)


def different_cards(names: Iterable[str]) -> tuple[str, ...]:
    """`names` in their order, without those that mean a card that was named before."""
    keys = {name if _is_device(name) else lookup(name).key: name for name in names}
    return tuple(keys.values())


def _is_device(name: str) -> bool:
    return re.fullmatch(r"cuda(:\d+)?", name) is not None


def offer_devices(names: Mapping[str, Any]) -> Iterable[str]:
    """Every device."""
    return device_names()


def offer_cards(names: Mapping[str, Any]) -> Iterable[str]:
    """Every card that can be predicted for."""
    return [name for name in device_names() if name not in ("auto", "off")]


def offer_switch(names: Mapping[str, Any]) -> Iterable[str]:
    """What switches something."""
    return ["on", "off"]


def offer_rules(names: Mapping[str, Any]) -> Iterable[str]:
    """The rules that give advice."""
    return rule_names()


def offer_whole_numbers(names: Mapping[str, Any]) -> Iterable[str]:
    """The user's variables that hold a whole number."""
    return [name for name, value in names.items() if type(value) is int and name[0] != "_"]
