"""Many ways to storages, told in few words: "model.layers[0..11].weight", "outputs"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_TOKENS: Final = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]|\.[^.\[:]+|: [^.\[]*|[^.\[:]+|.")
_NUMBER: Final = re.compile(r"\[(\d+)\]")
_AROUND: Final = re.compile(r"^(?:list\(|getattr\()+")
_ENDS: Final = ("", ".", "[", ":", ")", ",")
_VALUES: Final = re.compile(r"list\((.+)\.values\(\)\)(?:\[\d+\.\.\d+\].*)?")
_PLACE: Final = re.compile(r"\[\d+\]")


def folded(paths: Sequence[str]) -> str:
    """One name for several ways: what they have in common, with a range of the first number in
    which they differ; only its container where nothing follows the number, or where it counts the
    values of a dict."""
    if len(set(paths)) == 1:
        return paths[0]
    name = _folded(paths)
    values = _VALUES.fullmatch(name)
    return values[1] if values else name


def _folded(paths: Sequence[str]) -> str:
    rows = [_TOKENS.findall(path) for path in paths]
    common = _common(rows)
    head = "".join(rows[0][:common]).rstrip(": ")
    rest = [row[common:] for row in rows]
    numbers = [_NUMBER.fullmatch(row[0]) for row in rest if row]
    places = {int(match[1]) for match in numbers if match}
    whole = len(numbers) == len(rest) and all(numbers)
    if not whole or len(places) != max(places) - min(places) + 1 or len(places) < 2:
        return head
    tails = [row[1:] for row in rest]
    shared = _common(tails)
    if not shared:
        return f"{head}[{min(places)}..{max(places)}]" if all(tails) else head
    return f"{head}[{min(places)}..{max(places)}]" + "".join(tails[0][:shared]).rstrip(": ")


def parent(path: str) -> str:
    """The way without its last step: the module of "model.fc.weight.grad"."""
    tokens = _TOKENS.findall(path.removesuffix(".grad"))
    return "".join(tokens[:-1]).rstrip(": ") or path


def pattern(path: str) -> str:
    """The way with all numbers taken for the same."""
    return _PLACE.sub("[*]", path)


def is_below(path: str, name: str) -> bool:
    """Whether a way begins with `name`, or is it: `list(outputs)[0]` does as well."""
    path = _AROUND.sub("", path)
    return path.startswith(name) and path[len(name) : len(name) + 1] in _ENDS


def _common(rows: Iterable[Sequence[str]]) -> int:
    """How many tokens all rows begin with."""
    columns = zip(*rows, strict=False)
    shortest = min(map(len, rows), default=0)
    return next((i for i, column in enumerate(columns) if len(set(column)) > 1), shortest)
