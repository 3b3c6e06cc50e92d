"""Ends training loops of a dry run where they only repeat: an iteration that does the same to the
allocator as the one before it, event for event, leaves it as it found it, and so will the next."""

from __future__ import annotations

import ast
import copy
import functools
import itertools
import operator
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import BatchSampler, DataLoader

from gpumem_magic.dryrun.running.loop_items import Items, can_look_ahead, outcomes_of
from gpumem_magic.dryrun.running.rounds import Rounds

_NAME = "__bounded__"
_TRACED = "__traced__"
_CUTTING = (zip, itertools.islice, itertools.cycle)  # what may not end where what it is given does
_LEAST = 3  # iterations: the first makes the optimizer's states, the second may move blocks

_LOADING = str(Path(torch.utils.data.__file__).parent)


class Loops:
    """Ends loops early in one dry run, where the rest would change nothing.

    events_so_far: the allocator's events, a sequence that only grows; a row begins with action,
    address, size and requested. optimizer_steps: end every loop after so many steps of each
    optimizer that has stepped in it. may_skip: False runs all other loops to their ends.
    least_rounds: a loop that only repeats goes so far nevertheless.

    Only `for` loops of the cell and loops over a DataLoader are seen, and of these only those that
    contain an optimizer's step, by rounds: the iterations up to one with a step. See Rounds for how
    exact it is; shapes and the program's flow have to stay the same from one to the next.
    skipped: whether any iteration was left out for that reason, so that a cell which then fails may
    fail for want of them.
    """

    def __init__(
        self,
        events_so_far: Callable[[], Sequence[Any]],
        optimizer_steps: int | None = None,
        *,
        may_skip: bool = True,
        least_rounds: int = 0,
    ) -> None:
        if optimizer_steps is not None and optimizer_steps < 1:
            raise ValueError(f"optimizer_steps is {optimizer_steps}; the least is 1")
        self.events_so_far = events_so_far
        self.optimizer_steps = optimizer_steps
        self.may_skip = may_skip
        self.least_rounds = least_rounds
        self.skipped = False
        self.stepped: list[int] = []  # which optimizer, for each step so far
        self.asking: list[BoundedLoop] = []  # loops that wait for their next item, outermost first
        self._notes: dict[str, str] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out, a sentence for each loop of the program."""
        return tuple(f"{place}: {what}" for place, what in self._notes.items())

    def bind(self, tree: ast.Module, place: str = "line ") -> ast.Module:
        """A copy of `tree` in which each `for x in items` asks here how far to go; lines stay."""
        bound: ast.Module = _Binder(place).visit(copy.deepcopy(tree))
        return ast.fix_missing_locations(bound)

    def names(self) -> Mapping[str, object]:
        """What code from `bind` needs to find among its globals."""
        return {_NAME: self, _TRACED: torch.compiler.is_dynamo_compiling}

    def install(self) -> None:
        """Count optimizers' steps and see loops over a DataLoader anywhere, from here on."""
        register_optimizer_step_post_hook(self._note_step)
        iterate = DataLoader.__iter__

        def bounded(loader: DataLoader[Any]) -> BoundedLoader:
            return BoundedLoader(self, iterate(loader), loader, _place(sys._getframe(1)))

        DataLoader.__iter__ = bounded  # type: ignore[assignment,method-assign]

    def tell(self, place: str, what: str, *, skipped: bool) -> None:
        """Note that the loop at `place` was ended early; a loop inside another is told once."""
        self.skipped = self.skipped or skipped
        self._notes.setdefault(place, what)

    def __call__(
        self,
        items: Iterable[Any],
        place: str,
        tests: Callable[[Any], Any] | None = None,
        *,
        leaves: bool = False,
    ) -> BoundedLoop:
        """What the cell's `for` iterates over in place of `items`. tests: see outcomes_of; leaves:
        its body has a `break`."""
        iterator = iter(items)
        if isinstance(iterator, BoundedLoader):
            iterator.place, iterator.leaves = place, leaves
            return iterator
        loop = BoundedLoop(self, iterator, _length(items), place)
        loop.cuts, loop.leaves = type(items) in _CUTTING, leaves
        if can_look_ahead(iterator) and (tests or type(items) is not range):
            loop.kinds = Items(tests)
        return loop

    def __reduce__(self) -> Any:
        """What pickles a function with its globals (dill, cloudpickle) gets loops without ends."""
        return functools.partial, (_unbounded,)

    def _note_step(self, optimizer: object, args: object, kwargs: object) -> None:
        self.stepped.append(id(optimizer))


def _unbounded(items: Iterable[Any], *others: Any, **named: Any) -> Iterable[Any]:
    return items


class BoundedLoop:
    """An iterator that may end before the one it stands for, between two iterations.

    It never asks for an item that it does not hand on, and holds none.
    """

    def __init__(self, loops: Loops, items: Iterator[Any], length: int | None, place: str) -> None:
        self.place = place
        self._loops = loops
        self._items = items
        self._repeats = False
        self.kinds: Items | None = None  # of the items, where all can be seen beforehand
        self.cuts = False  # it may not end where the loaders do that it is fed by
        self.leaves = False  # the program may leave it before its end
        self.length = length
        self._count = 0
        self._ended = False
        self._first_step = self._steps_seen = len(loops.stepped)
        self._rounds = Rounds(loops.events_so_far, loops.least_rounds)
        self._first_loader: BoundedLoader | None = None
        self._loader: BoundedLoader | None = None  # which the last item came from

    def __iter__(self) -> BoundedLoop:
        return self

    def __next__(self) -> Any:
        if self._ended or (self._is_over() and not self._goes_on()):
            self._ended = True
            raise StopIteration
        asking, self._loader = self._loops.asking, None
        asking.append(self)
        try:
            item = next(self._items)
        finally:
            asking.pop()
        if self._count == 0:
            self._first_loader = self._loader
        self._count += 1
        if self.kinds is not None:
            self.kinds.ran(item)
        return item

    def _goes_on(self) -> bool:
        """Pass over items up to one that may do something else, or to the last one."""
        if self.kinds is None or not self._repeats:
            return False
        self._repeats = False
        try:
            found = self.kinds.next_unlike(self._items)
        except StopIteration:
            return False
        self._items = itertools.chain(found, self._items)
        return True

    def fed_by(self, loader: BoundedLoader) -> None:
        """`loader` is giving the item that this loop waits for (`enumerate(loader)`, ...)."""
        self._loader = loader

    def _is_over(self) -> bool:
        """Called between iterations: whether to end here."""
        loops = self._loops
        if self._count == 0:
            self._rounds.begin()
            return False
        if len(loops.stepped) == self._steps_seen:
            return False
        self._steps_seen = len(loops.stepped)
        self._rounds.close()
        if self._loader is not None and self._loader is self._first_loader:
            return False  # it decides, and can tell its last batch from the others
        if self._count == self.length:
            return False
        return self._has_steps() or (loops.may_skip and self._only_repeats())

    def _has_steps(self) -> bool:
        """Whether every optimizer of the loop has made as many steps as were asked for."""
        wanted = self._loops.optimizer_steps
        if wanted is None:
            return False
        steps = Counter(self._loops.stepped[self._first_step :])
        if min(steps.values()) < wanted:
            return False
        plural = "" if wanted == 1 else "s"
        what = f"{self._run()}, until {wanted} optimizer step{plural} had been made"
        self._loops.tell(self.place, what, skipped=False)
        return True

    def _only_repeats(self) -> bool:
        how = self._rounds.repetition() if self._count >= _LEAST else ""
        if not how:
            return False
        rest = f"the others {how}, as long as shapes stay the same"
        if self.kinds is not None:
            rest = (
                "of the others the last, and those that the loop's variable sends another way or "
                f"gives other shapes, were run as well; the rest {how}"
            )
        self._repeats = True
        self._loops.tell(self.place, f"{self._run()}; {rest}{self._at_the_end()}", skipped=True)
        return True

    def _run(self) -> str:
        if self.length is None:
            return f"only the first {self._count:,} iterations were run"
        most = "up to " if self.leaves else ""
        return f"{self._count:,} of {most}{self.length:,} iterations were run"

    def _at_the_end(self) -> str:
        """What else to say of the iterations that are left out."""
        return ""


class BoundedLoader(BoundedLoop):
    """What iterates over a DataLoader, whose last batch may be smaller than the others."""

    def __init__(
        self, loops: Loops, items: Iterator[Any], loader: DataLoader[Any], place: str
    ) -> None:
        super().__init__(loops, items, _length(loader), place)
        self._source = loader
        self._goes_to_last = False

    def __next__(self) -> Any:
        for loop in self._loops.asking:
            loop.fed_by(self)
            self.place, self.leaves = loop.place, loop.leaves
            if loop.cuts:
                self.length = loop.length
        return super().__next__()

    def __len__(self) -> int:
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_items"], name)

    def _only_repeats(self) -> bool:
        if self._goes_to_last or not super()._only_repeats():
            return False
        return not self._goes_to_last  # then it ends by itself, after one more batch

    def _at_the_end(self) -> str:
        sampler, left = self._source.batch_sampler, (self.length or self._count + 1) - self._count
        if type(sampler) is not BatchSampler or sampler.drop_last or left < 1:
            return ""
        if self.length is None or not _leaves_rest(sampler):
            return ""
        if self.length != _length(self._source):
            return ""  # what asks for them ends before the last
        indices = getattr(self._items, "_sampler_iter", None)
        if indices is None or self._source.num_workers:
            return "; the last batch, a smaller one, was not run"
        # what torch's own iterator takes its next batch from (torch/utils/data/dataloader.py)
        vars(self._items)["_sampler_iter"] = iter(deque(indices, maxlen=1))
        self._goes_to_last = True
        return "; the last batch, a smaller one, was run as well"


class _Binder(ast.NodeTransformer):
    """Puts a call around what each `for` statement iterates over, but where torch.compile traces
    it: a call into this package would break the graph in two."""

    def __init__(self, place: str) -> None:
        self._place = place

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        name, place = ast.Name(_NAME, ast.Load()), ast.Constant(f"{self._place}{node.lineno}")
        leaves = [ast.keyword("leaves", ast.Constant(True))] if _has_break(node.body) else []
        call = ast.Call(name, [node.iter, place, *outcomes_of(node)], leaves)
        traced = ast.Call(ast.Name(_TRACED, ast.Load()), [], [])
        node.iter = ast.copy_location(ast.IfExp(traced, node.iter, call), node.iter)
        return node


def _has_break(nodes: Iterable[ast.AST]) -> bool:
    """Whether statements may leave the loop that they stand in."""
    inner = (ast.For, ast.AsyncFor, ast.While)
    others = (node for node in nodes if not isinstance(node, inner))
    return any(isinstance(n, ast.Break) or _has_break(ast.iter_child_nodes(n)) for n in others)


def _length(items: Any) -> int | None:
    """How many items there are, as far as they tell."""
    if type(items) is zip:
        return min((n for n in map(_length, items.__reduce__()[1]) if n is not None), default=None)
    try:
        length = operator.length_hint(items, -1)
    except Exception:  # user code: whatever it raises, the loop itself may never ask
        return None
    return length if length >= 0 else None


def _leaves_rest(sampler: BatchSampler) -> bool:
    length = _length(sampler.sampler)
    return length is not None and length % sampler.batch_size != 0


def _place(frame: Any) -> str:
    """Where in the program a DataLoader is iterated over, outside torch's own code for it."""
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LOADING):
        frame = frame.f_back
    return f"the loop at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
