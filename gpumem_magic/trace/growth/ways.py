"""The ways to what is held: what two of them have in common, and what they begin with."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

import numpy as np

from gpumem_magic.values.inventory import CIRCLE, HolderKind
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import chained, variable_of
from gpumem_magic.values.recording import Held, Recording

PASSES = 3
"""Passes that have to survive: what a loop made last, and before that, always does."""

GRAPH, HOOK = ".grad_fn", "hooks[*]: "
"""How the way to what a graph holds ends, and how the one to what a hook holds begins."""

GRADIENTS, SEVERAL = "'s gradients", "[0.."
"""What the gradients of a model are called, where they hold a graph; how the places of a tuple are
written that goes on from pass to pass: "self.hidden[0..1]"."""

BETWEEN = re.compile(r"\[(?:-?\d[\w.+-]*|'[^']*'|\"[^\"]*\"|True|False|None)\]")
_VALUES = re.compile(r"list\((.+?)(?:\.(?:values|keys)\(\))?\)(?=\[|$)")
"""How a place in a set is written, a key, or what is found under a key that is an object."""

_NUMBER = re.compile(r"(?<=[a-zA-Z_])\d+(?![\w\[])")
"""A number that a name ends with."""

_OF_HOOK = re.compile(r".*?hooks\[\d+\](?=: )")
"""The way to a hook, of what it holds."""

Group = list[tuple[int, Held | None]]
"""Rows of storages, each with the way to it, where that is known."""


def known_ways(recording: Recording, lives: Lifetimes) -> dict[int, Held]:
    """By row the way to what outlived the cell, and to what was freed as garbage."""
    held = {one.address: one for one in recording.held}
    outlived = lives.death >= lives.events
    known = np.flatnonzero(outlived & np.isin(lives.address, list(held)))
    ways = {row: held[int(lives.address[row])] for row in known.tolist()}
    between = np.searchsorted(np.ravel(recording.collected), lives.death, side="right")
    for row in np.flatnonzero((between % 2 == 1) & ~outlived).tolist():
        ways[row] = Held(int(lives.address[row]), CIRCLE, False, HolderKind.CYCLE.value)
    return ways


def pattern(path: str) -> str:
    """The way with all places taken for the same: "outputs[*].grad_fn"."""
    return BETWEEN.sub("[*]", path)


def holder_of(one: Held) -> str:
    """What holds: the gradients of a model or a tensor, where it is what a gradient holds."""
    return variable_of(one.path) + GRADIENTS if is_of_gradient(one) else root_of(one.path)


def without_places(way: str) -> str:
    """The way to a container, whatever its places: "trainer.history" of "trainer.history[*]"."""
    return re.sub(r"\[[^\]]*\]", "", way)


def of_layers(one: Held, layers: Collection[str]) -> str:
    """The name under which several of these layers, "net[*]", keep graphs, "net[*].penalty", or
    collect what is not a weight, "net[*].maps[*]"; "" for what is held otherwise."""
    way = pattern(one.path.removesuffix(GRAPH))
    collected = one.module and way.endswith("[*]")
    if not (one.path.endswith(GRAPH) or collected) or root_of(one.path) not in layers:
        return ""
    return way if way.partition("[*]")[2].startswith(".") else ""


def is_of_gradient(one: Held) -> bool:
    """Whether a gradient holds it, rather than is it."""
    return one.gradient and not one.path.endswith(".grad")


def root_of(path: str) -> str:
    """The way up to its first place in a container."""
    head = _VALUES.sub(r"\1", pattern(path)).removesuffix(GRAPH)
    place = head.find("[*]", head.rfind(HOOK) + 1)
    return head if place < 0 else head[: place + 3]


def alike(groups: dict[str, Group]) -> dict[str, Group]:
    """Holders whose names differ by a number, and the links of a chain, as one: "rec.out_*",
    "tail.prev*.value"."""
    general = {root: chained(_NUMBER.sub("*", root)) for root in groups}
    count = Counter(general.values())
    found: dict[str, Group] = {}
    for root, group in groups.items():
        name = general[root] if root and count[general[root]] >= PASSES else root
        found.setdefault(name, []).extend(group)
    return found


def place_of(group: Group) -> str:
    """The container whose places differ: "self.cbs[0].outputs[*]"; "" where none do."""
    paths = {one.path for _, one in group if one and not is_of_gradient(one)}
    split = [BETWEEN.split(path) for path in paths]
    if len({parts[0] for parts in split}) != 1:
        return ""
    places = [BETWEEN.findall(path) for path in paths]
    for level, found in enumerate(zip(*places, strict=False)):
        if len({parts[level] for parts in split}) > 1:
            return ""
        if len(set(found)) > 1:
            between = zip(split[0], places[0][:level], strict=False)
            head = "".join(text for pair in between for text in pair) + split[0][level]
            whole = _VALUES.sub(r"\1", f"{head}[*]")
            opened = whole.count("(") > whole.count(")")
            return whole.removeprefix("list(") if opened else whole
    return ""


def optimizer_of(one: Held) -> str:
    """The way to an optimizer in a container that holds a parameter; "" where none does."""
    way, found, _ = one.path.partition(".param_groups[")
    return way if found and "[" in way else ""


def hooks_of(group: Group) -> int:
    """How many hooks of one module, or of one tensor, hold something."""
    found = {match[0] for _, one in group if one and (match := _OF_HOOK.match(one.path))}
    owners = Counter(way[: way.rindex("[")] for way in found)
    return max(owners.values(), default=0)


def only_way(group: Group) -> str:
    """The way to all of it, where there is one: a sum in a dictionary, a state in a tuple."""
    ways = {g.path.removesuffix(GRAPH) for _, g in group if g and not is_of_gradient(g)}
    return ways.pop() if len(ways) == 1 else ""
