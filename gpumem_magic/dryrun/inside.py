"""What happens in the child: the notebook's card becomes one that computes nothing, what would
reach outside is stopped, the cell runs, and its Recording is handed back."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpumem_magic.allocator.caching import CachingAllocator
from gpumem_magic.allocator.script import Scribe, Script
from gpumem_magic.dryrun.in_use import CardInUse, StartingState
from gpumem_magic.dryrun.running import lbfgs, whole_batches
from gpumem_magic.dryrun.running.assignments import with_values
from gpumem_magic.dryrun.running.collection import Collection
from gpumem_magic.dryrun.running.loops import Loops
from gpumem_magic.dryrun.running.main_module import become_main
from gpumem_magic.dryrun.running.rounds import SETTLED
from gpumem_magic.dryrun.scenario import Scenario
from gpumem_magic.dryrun.shapes.dry_kernels import DryKernels
from gpumem_magic.dryrun.shapes.stand_ins import Guesses
from gpumem_magic.dryrun.taken_out import take_out
from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.isolation.effects import Stopped
from gpumem_magic.isolation.effects.refusals import refuse
from gpumem_magic.isolation.waits.event_loop import run_coroutine
from gpumem_magic.sources import ACTIVE, Active
from gpumem_magic.sources.objects.namespaces import names_of
from gpumem_magic.units import format_bytes
from gpumem_magic.values.recording import Recording
from gpumem_magic.virtual.catalog import GPUModel
from gpumem_magic.virtual.libraries import install_libraries
from gpumem_magic.virtual.libraries.arguments import Arguments
from gpumem_magic.virtual.libraries.nvml import nvidia_smi
from gpumem_magic.virtual.libraries.worst_batch import largest_first
from gpumem_magic.virtual.torch_cuda.inductor import PLANNED, Inductor

_SHOW = "__show__"


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of a scenario. total: bytes of the card as it is, where the run has no limit. writes:
    whether to write down what the allocator is asked for. may_skip: see Loops."""

    scenario: Scenario
    card: GPUModel
    total: int
    writes: bool = False
    may_skip: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a dry run came to. skipped: whether iterations were left out that would have repeated
    others. fits: of a run without limit, whether the card as it is would have been enough. script:
    what the allocator was asked for. again: whether what the cell had left was taken out. compiled:
    whether parts of it ran as inductor plans them."""

    recording: Recording
    skipped: bool
    fits: bool | None = None
    script: Script | None = None
    again: bool = False
    compiled: bool = False


def run_inside(plan: Plan, in_use: CardInUse, stopped: Stopped) -> Outcome:
    """Run the plan's cell; `in_use` is the card that the notebook was on when it was forked."""
    return _Run(plan, in_use, stopped).outcome()


class _Run:
    """One dry run."""

    def __init__(self, plan: Plan, in_use: CardInUse, stopped: Stopped) -> None:
        self._plan = plan
        self._scenario = plan.scenario
        self._marks: list[str] = []
        self._arguments = Arguments(plan.scenario.arguments)
        self._stopped = stopped
        self._guesses = Guesses(self._stopped.places)
        self._state = in_use.state(plan.card)
        born = in_use.born_in(plan.scenario.cell) if plan.scenario.again else frozenset()
        # A CUDA build counts the fork against this process; the card is a virtual one in it.
        torch.cuda._is_in_bad_fork = lambda: False
        self._kernels = DryKernels(self._guesses)
        self._source, self._handed_over = in_use.hand_over(plan.card, self._state, self._kernels)
        self._collection = Collection(self._source.events_so_far)
        self._again = bool(born)
        if born:
            moved = self._state.moved
            take_out(self._source.gpu, {moved[at] for at in born if at in moved})
        self._loops = Loops(
            self._source.events_so_far,
            plan.scenario.optimizer_steps,
            may_skip=plan.may_skip,
            least_rounds=SETTLED if plan.writes else 0,
        )

    def outcome(self) -> Outcome:
        """Run the cell."""
        recording, script, start = self._record()
        fits, ended = None, recording.error is None
        if script is not None and start is not None and ended and not self._scenario.limited:
            fits = self._fits(script, start, recording)
        script = script if self._plan.writes else None
        compiled = PLANNED in self._marks
        return Outcome(recording, self._loops.skipped, fits, script, self._again, compiled)

    def _record(self) -> tuple[Recording, Script | None, CachingAllocator | None]:
        """The recording, what was written down of it, and the allocator as it was before."""
        namespace = self._scenario.namespace
        become_main(namespace)
        namespace.update(self._generators(namespace))
        tree = self._prepare(namespace)
        here = sys._getframe()
        self._source.start(names_of(namespace, here), here)
        ACTIVE.set(Active(self._source, recording=True))
        self._source.enter()
        writes = self._plan.writes or not self._scenario.limited
        scribe = Scribe(self._state.allocator) if writes else None
        error = None
        try:
            if self._state.lacking:
                self._source.gpu.storages.malloc(self._state.lacking)
            shows_last = not self._scenario.cell.python.rstrip().endswith(";")
            execute(tree, self._scenario.cell.filename, namespace, shows_last)
        except BaseException as raised:
            error = raised
        script = scribe.script() if scribe else None
        recording = self._source.stop(self._scenario.cell, self._scenario.cells, error)[0]
        return self._told(recording), script, scribe.start if scribe else None

    def _prepare(self, namespace: dict[str, Any]) -> ast.Module:
        """The code to run; from here on nothing gets out of this process."""
        values, filename = self._scenario.values, self._scenario.cell.filename
        code = self._scenario.cell.python
        lines = code.splitlines(keepends=True)  # where libraries look for the source of functions
        linecache.cache.setdefault(filename, (len(code), None, lines, filename))
        tree, elsewhere = with_values(ast.parse(code, filename), values)
        self._stopped.prepare(namespace, self._loops, self._source.news)
        if self._scenario.worst_batch:
            names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
            made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
            largest_first(namespace, self._scenario.worst_batch, self._marks, made)
        arrivals = Arrivals()
        tools = self._source, self._kernels.valueless, self._marks.append
        install_libraries(arrivals, *tools, self._scenario.assume)
        self._stopped.programs["nvidia-smi"] = functools.partial(nvidia_smi, self._source)
        refuse(self._marks.append, namespace, arrivals)
        self._arguments.install(arrivals)
        told = self._marks.append, self._kernels.valueless.written
        inductor = Inductor(self._source.gpu.tracker, *told, plans=self._scenario.compiled)
        inductor.install()
        arrivals.expect("torch._dynamo.convert_frame", inductor.install_in)
        self._loops.install()
        whole_batches.install(self._source.gpu.storages)
        self._collection.install(self._source.gpu.storages)
        lbfgs.install(self._marks)
        namespace.update({name: value for name, value in values.items() if name in elsewhere})
        namespace.update(self._loops.names())
        return self._loops.bind(tree)

    def _generators(self, namespace: Mapping[str, Any]) -> dict[str, torch.Generator]:
        """The user's generators of random numbers, none of a real card among them."""
        of_card = self._source.gpu.random.of_card
        made = ((n, v) for n, v in namespace.items() if isinstance(v, torch._C.Generator))
        return {name: of_card(generator) for name, generator in made}

    def _told(self, recording: Recording) -> Recording:
        """With what the user has to know of it."""
        notes = (
            *_notes_on_start(self._state, self._plan.card),
            *self._handed_over,
            *self._loops.notes,
            *self._guesses.notes(),
            *self._marks,
            *self._stopped.notes(),
        )
        return replace(
            recording,
            device=replace(recording.device, total=self._plan.total),  # where there was no limit
            predicted=True,
            collected=tuple(self._collection.freed),
            output=self._stopped.output(),
            flow_guessed=self._guesses.flow_depends,
            notes=(*recording.notes, *notes),
            cells=self._stopped.scripts,  # the parent has the others
            names=replace(recording.names, arguments=tuple(self._arguments.seen)),
        )

    def _fits(self, script: Script, start: CachingAllocator, recording: Recording) -> bool:
        """Whether the cell, which ran without limit, fits the card.

        Where the cache alone is too large, what was asked of the allocator is asked again of one
        that has no more than the card, and so gives its cache back.
        """
        total, fraction = self._plan.total, start.settings.memory_fraction
        limit = min(total - self._plan.card.context, int(fraction * total))
        before, events = recording.before, recording.events
        if _highest(before.reserved, events.reserved_changes()) <= limit:
            return True
        if _highest(before.allocated, events.allocated_changes()) > limit:
            return False
        start.set_total(total)
        return script.fits(start, script.sizes())


def _highest(start: int | None, changes: NDArray[np.int64]) -> int:
    """The highest level that events reach from `start`."""
    return (start or 0) + max(0, int(np.cumsum(changes).max(initial=0)))


def _notes_on_start(state: StartingState, card: GPUModel) -> tuple[str, ...]:
    if not state.lacking:
        return ()
    return (
        f"What the notebook holds already does not fit on a {card.name}: a block of "
        f"{format_bytes(state.lacking)} found no room. The cell was not begun.",
    )


def execute(tree: ast.Module, filename: str, namespace: dict[str, Any], shows_last: bool) -> None:
    """Run a cell as a notebook does: the value of a last expression is shown and kept as `_`."""
    last = tree.body[-1] if shows_last and tree.body else None
    if isinstance(last, ast.Expr):
        call = ast.Call(ast.Name(_SHOW, ast.Load()), [last.value], [])
        shown = ast.copy_location(ast.Expr(call), last)
        tree = ast.fix_missing_locations(ast.Module([*tree.body[:-1], shown], []))
        namespace[_SHOW] = functools.partial(_show, namespace)
    awaits = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(tree, filename, "exec", awaits, dont_inherit=True)
    value = eval(code, namespace)
    if code.co_flags & inspect.CO_COROUTINE:
        run_coroutine(value)


def _show(namespace: dict[str, Any], value: Any) -> None:
    if value is not None:
        namespace["_"] = value
        namespace["_oh"] = {**namespace.get("_oh", {}), "_": value}
        print(repr(value))  # noqa: T201 - it is captured
