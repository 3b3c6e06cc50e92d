"""Who holds a device's memory at one moment, what of it could go, and what letting go gave back: as
frozen values, which know neither torch nor the shell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gpumem_magic.values.answer import Answer
from gpumem_magic.values.findings import Level
from gpumem_magic.values.recording import Category, Device


@dataclass(frozen=True, slots=True)
class Process:
    """One process with a context on the device. used: bytes, None where the driver hides it."""

    pid: int
    name: str
    used: int | None


class HolderKind(Enum):
    """What keeps a storage alive. The earlier kinds are preferred where several do: what a name
    leads to, by whatever way, stays when the output history and exceptions are let go."""

    VARIABLE = "variable"
    OPTIMIZER = "optimizer"
    HOOK = "hook"
    CLOSURE = "closure"  # of a function, or its defaults
    CACHE = "cache"  # functools.lru_cache
    GENERATOR = "generator"
    RUNNING = "running function"  # of another thread, say
    GRAPH = "autograd graph"
    MODULE_STATE = "module"  # a variable of another Python module
    OUTPUT_HISTORY = "output history"
    EXCEPTION = "exception"
    CYCLE = "reference cycle"
    LIBRARY = "library"  # cuBLAS's workspaces
    UNKNOWN = "unknown"


CIRCLE = "a circle of references"
"""The way to what only objects hold that lead to each other."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Storages that one thing keeps alive, each of which counts here and nowhere else.

    name: the shortest way to them, folded where they are several ("model.layers[0..11].weight",
    "outputs"). size: bytes, whole blocks. count: storages. shape and dtype ("float32") where all
    agree. cell, line: where all were allocated, In[cell]:line, if a recording saw it; newest: where
    the last of them were, if that is not one place. also: what else leads to some of them.
    unneeded: why nothing needs them any more; None: something may. cure: the user's statement that
    lets go of them ("del optimizer"), where no option of %gpucheck does.
    """

    kind: HolderKind
    name: str
    size: int
    count: int
    category: Category
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    cell: int | None = None
    line: int | None = None
    also: tuple[str, ...] = ()
    unneeded: str | None = None
    newest: tuple[int, int] | None = None
    cure: str = ""


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes that PyTorch's allocator has reserved and no tensor uses. None where not known.

    in_small_pieces: in pieces below 1 MiB, too small for anything large. largest: the largest
    piece. returnable: what `empty_cache()` would give back to the driver. waiting: given back, but
    another stream may still use it.
    """

    size: int | None
    in_small_pieces: int | None
    largest: int | None
    returnable: int | None
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Inventory(Answer):
    """Where the memory of one device is, in bytes. device_used = allocated + cached.size + context
    + others; the sizes of `holdings` add up to allocated.

    context: of this process beyond PyTorch's reserve. others: of other processes, and `processes`
    those of them that the driver lists. Each is None where it is not known, and then `unknown` says
    why, by the field's name. notes: sentences for the user.
    """

    device: Device
    level: Level
    context: int | None
    others: int | None
    processes: tuple[Process, ...]
    cached: FreeMemory
    holdings: tuple[Holding, ...]
    by_category: Mapping[Category, int]
    unknown: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def unneeded(self) -> int:
        """Bytes that nothing needs any more."""
        return sum(holding.size for holding in self.holdings if holding.unneeded is not None)

    def size_of(self, kind: HolderKind) -> int:
        """Bytes that holders of this kind keep alive."""
        return sum(holding.size for holding in self.holdings if holding.kind is kind)


@dataclass(frozen=True, slots=True)
class Breakdown(Answer):
    """All that one variable, or a part of it, leads to: `parts` by submodule and category.

    Here a part's `also` are other names' ways to it, which `del` alone would not cut. size: the sum
    of the parts, in bytes.
    """

    name: str
    size: int
    parts: tuple[Holding, ...]


@dataclass(frozen=True, slots=True)
class Breakdowns(Answer):
    """The breakdowns of several variables, in the order asked for. What two of them share counts in
    both."""

    breakdowns: tuple[Breakdown, ...]


@dataclass(frozen=True, slots=True)
class Freed:
    """What one step of letting go gave back, in bytes: `allocated` by tensors, `reserved` to the
    driver. cost: what does not work any more; empty where nothing is lost. left: why the step could
    not let go of everything."""

    what: str
    allocated: int
    reserved: int
    cost: str = ""
    left: str = ""


@dataclass(frozen=True, slots=True)
class Recovery(Answer):
    """What letting go gave back, step by step, and what is held after it."""

    device: Device
    before: Level
    after: Level
    steps: tuple[Freed, ...]
    holdings: tuple[Holding, ...] = ()

    @property
    def freed(self) -> int | None:
        """Bytes that no tensor holds any more; None where a level is not known."""
        if self.before.allocated is None or self.after.allocated is None:
            return None
        return self.before.allocated - self.after.allocated


@dataclass(frozen=True, slots=True)
class Growing:
    """A name whose bytes grew in each of the last runs of a cell. sizes: at the end of these runs,
    oldest first. line: of the cell, where the new storages were allocated; None if not known."""

    name: str
    sizes: tuple[int, ...]
    line: int | None = None

    @property
    def growth(self) -> int:
        """Bytes more after the last run than after the first of them."""
        return self.sizes[-1] - self.sizes[0]
