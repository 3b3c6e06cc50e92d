"""What the notebook's names were at the end of a cell: models, optimizers, tensors, as frozen
values that hold nothing of the user's and know nothing of torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_LINKS = re.compile(r"(\.[^\W\d]\w*)\*?(?:\1\*?)+")
"""The same attribute of an attribute, again and again."""


@dataclass(frozen=True, slots=True)
class Part:
    """A direct child of a module. Sizes in bytes on the device: trainable: of parameters with
    `requires_grad`; gradients: of its parameters; optimized: of parameters that an optimizer with a
    name has."""

    path: str
    type: str
    trainable: int
    gradients: int
    optimized: int


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """A module (`torch.nn.Module`) that a name means. Sizes in bytes on the device.

    type: its class, dotted. trainable: parameters with `requires_grad`. optimized: those that an
    optimizer with a name has. dtypes: bytes of parameters
    by dtype ("float32"). parts: its direct children, and what lists among them hold. repeated: the
    path from the module to its longest list of modules of one class ("transformer.h"), or "".
    kinds: classes of all modules inside it ("Dropout", ...), without their packages.
    """

    type: str
    training: bool
    parameters: int
    trainable: int
    gradients: int
    buffers: int
    dtypes: Mapping[str, int]
    parts: tuple[Part, ...] = ()
    repeated: str = ""
    kinds: frozenset[str] = frozenset()
    optimized: int = 0


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """An optimizer. type: its class, dotted.

    parameters: bytes on the device of those it has. tensors: the states that it keeps for a
    parameter ("exp_avg", ...). options: of its first group, those that are numbers, truths or None.
    """

    type: str
    parameters: int
    tensors: tuple[str, ...]
    options: Mapping[str, float | bool | None]


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """A tensor. size: bytes of its storage. has_graph: it carries a `grad_fn`."""

    size: int
    shape: tuple[int, ...]
    dtype: str
    on_device: bool
    requires_grad: bool
    has_graph: bool


@dataclass(frozen=True, slots=True)
class ArgumentFacts:
    """What an object of a training framework was made with: its class, dotted, and the arguments
    that are numbers, truths, texts or None."""

    owner: str
    values: Mapping[str, float | str | bool | None]


@dataclass(frozen=True, slots=True)
class GraphAgain:
    """A backward pass that failed because an earlier one had used up a part of its graph.

    names: the ways to tensors with a part of it, other than what it began with, numbers left out.
    ends: the names of what it began with. filename, line, function: where it was called by the
    user; source: the text of that file.
    """

    names: tuple[str, ...]
    ends: tuple[str, ...]
    filename: str
    line: int
    function: str
    source: str


@dataclass(frozen=True, slots=True)
class SkippedBackward:
    """A function that goes backward, but did not where memory ran out, as `test` says. function: ""
    where it is the cell itself. trains: what is true in it where it does."""

    function: str
    test: str
    trains: str

    @property
    def whole(self) -> str:
        """That it trains, in words."""
        return f"{self.function}() goes backward" if self.function else "The cell goes backward"

    @property
    def why(self) -> str:
        """How the text says when it does not."""
        return f"if {self.test}"


@dataclass(frozen=True, slots=True)
class Names:
    """What the names of a namespace are, each in one of the mappings.

    containers: of a list, tuple, dict or set with tensors right inside it, how many of them carry a
    `grad_fn`. known: the dotted name of what is imported from a library: modules, functions,
    classes ("F": "torch.nn.functional"). others: the dotted class of any other object. host:
    devices, or texts, that mean the CPU (`device`), each with the notebook's cell that assigned it
    last, None where that is not known. arguments: of training frameworks' objects, as a dry run saw
    them. holders: where memory was short, which names lead to the storage at an address; None where
    something else holds it; as a whole None where nobody looked. again: where that ended the cell.
    default: torch's default type of floats, and the notebook's cell that set it last, None where
    that is not known. loaded: by the name of a loader, the addresses of all storages that it reads;
    a loader that has code of the user's is not among them. skipped: why a cell that ran out of
    memory would not have gone backward next.
    """

    modules: Mapping[str, ModuleFacts] = field(default_factory=dict)
    optimizers: Mapping[str, OptimizerFacts] = field(default_factory=dict)
    tensors: Mapping[str, TensorFacts] = field(default_factory=dict)
    containers: Mapping[str, int] = field(default_factory=dict)
    known: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    host: Mapping[str, int | None] = field(default_factory=dict)
    arguments: tuple[ArgumentFacts, ...] = ()
    holders: Mapping[int, frozenset[str] | None] | None = None
    again: GraphAgain | None = None
    default: tuple[str, int | None] = ("float32", None)
    loaded: Mapping[str, frozenset[int]] = field(default_factory=dict)
    skipped: SkippedBackward | None = None


_OWNER = re.compile(r"[^\W\d]\w*")
"""A variable: what is told of in angle brackets, as an earlier error is, no name leads to."""
_STATE_OF = re.compile(r".*?\.state\[([^\W\d]\w*)")


def owner_of(path: str) -> str:
    """The variable that a path begins with; a state of an optimizer is its model's:
    "opt.state[model.weight]['exp_avg']". "" where it begins with none."""
    state, first = _STATE_OF.match(path), _OWNER.match(path)
    return state[1] if state else first[0] if first else ""


def variable_of(path: str) -> str:
    """The variable that a path begins with: "net" of "net.layers[0].weight"."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def chained(path: str) -> str:
    """The path with the links of a chain as one: "tail.prev*.value" of "tail.prev.prev.value"."""
    return _LINKS.sub(r"\1*", path)
