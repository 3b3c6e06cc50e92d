"""A cell run without kernels, in a copy of the user's namespace: what it would do to the memory."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from gpumem_magic.events import Cell, Recording
from gpumem_magic.sources import ACTIVE, Active, Source
from gpumem_magic.sources.namespaces import names_of
from gpumem_magic.sources.virtual.catalog import GPUModel
from gpumem_magic.sources.virtual.dryrun.assignments import with_values
from gpumem_magic.sources.virtual.dryrun.copies import borrowed
from gpumem_magic.sources.virtual.dryrun.dry_kernels import DryKernels
from gpumem_magic.sources.virtual.dryrun.in_use import CardInUse, card_in_use
from gpumem_magic.sources.virtual.dryrun.loops import Loops
from gpumem_magic.sources.virtual.dryrun.output import captured_output
from gpumem_magic.sources.virtual.dryrun.program import execute
from gpumem_magic.sources.virtual.dryrun.reach import names_reached
from gpumem_magic.sources.virtual.dryrun.refusals import refusing
from gpumem_magic.sources.virtual.dryrun.rounds import SETTLED
from gpumem_magic.sources.virtual.dryrun.side_effects import without_side_effects
from gpumem_magic.sources.virtual.dryrun.stand_ins import Guesses
from gpumem_magic.sources.virtual.dryrun.starting_state import (
    CopiedStorages,
    StartingState,
    starting_state,
)
from gpumem_magic.sources.virtual.dryrun.surroundings import unchanged_surroundings
from gpumem_magic.sources.virtual.gpu import VirtualGPU
from gpumem_magic.sources.virtual.script import Scribe
from gpumem_magic.sources.virtual.source import VirtualSource
from gpumem_magic.units import format_bytes


def dry_run(
    cell: Cell,
    code: str,
    namespace: dict[str, Any],
    card: GPUModel,
    *,
    cells: Mapping[str, Cell] | None = None,
    origin: Source | None = None,
    optimizer_steps: int | None = None,
    values: Mapping[str, int] | None = None,
    scribe: Scribe | None = None,
) -> tuple[Recording, ...]:
    """What the cell would do to the memory of `card`: one Recording, marked as predicted.

    cell: as typed; `code` is the same as plain Python with the same lines, compiled under
    cell.filename. namespace: its globals; they, and everything they reach, stay as they are.
    cells: others of the notebook by the file name of their frames. origin: the source in use, whose
    memory the dry run starts from. optimizer_steps: see Loops. values: variables to set, in place
    of what the cell, or else the namespace, gives them. scribe: writes down what the allocator is
    asked for.

    Errors of the cell are in the Recording. KeyboardInterrupt goes through.
    """
    tree, elsewhere = with_values(ast.parse(code, cell.filename), values or {})
    attempt = _Attempt(
        cell=cell,
        tree=tree,
        shows_last=not code.rstrip().endswith(";"),
        namespace=namespace,
        values={name: value for name, value in (values or {}).items() if name in elsewhere},
        cells=cells or {},
        card=card,
        in_use=card_in_use(origin),
        optimizer_steps=optimizer_steps,
        scribe=scribe,
    )
    recording, skipped = attempt.record(may_skip=True)
    if skipped and recording.error is not None and recording.failure is None:
        recording, _ = attempt.record(may_skip=False)
    return (recording,)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Everything that one dry run needs to know."""

    cell: Cell
    tree: ast.Module
    shows_last: bool
    namespace: dict[str, Any]
    values: Mapping[str, int]
    cells: Mapping[str, Cell]
    card: GPUModel
    in_use: CardInUse | None
    optimizer_steps: int | None
    scribe: Scribe | None

    def record(self, *, may_skip: bool) -> tuple[Recording, bool]:
        """The recording, and whether iterations were left out that would have repeated others."""
        guesses = Guesses(self.cell.filename)
        kernels = DryKernels(guesses)
        not_done: list[str] = []
        marks: list[str] = []
        with ExitStack() as stack:
            enter = stack.enter_context
            enter(unchanged_surroundings())
            if self.in_use is not None:
                enter(self.in_use.set_aside())
            state = starting_state(self.in_use, self.card)
            source = VirtualSource(
                self.card, VirtualGPU(self.card, allocator=state.allocator, compute=kernels)
            )
            stack.callback(source.close)
            copies = CopiedStorages(self.in_use, state, source.gpu, kernels.valueless)
            names = names_reached(self.tree, self.namespace)
            copied = enter(borrowed(self.namespace, names, copies))
            copies.forget()
            if self.in_use is not None:
                self.in_use.tell(source, state.moved)
            loops = Loops(
                source.events_so_far,
                self.optimizer_steps,
                may_skip=may_skip,
                least_rounds=SETTLED if self.scribe else 0,
            )
            output = enter(captured_output())
            rebind = enter(without_side_effects(not_done.append))
            refuse = enter(refusing(marks.append))
            enter(loops.installed())
            rebind(self.namespace)
            refuse(self.namespace)
            self.namespace.update(self.values)
            self.namespace.update(loops.names())
            recording = self._run(source, loops, state)
        notes = (
            *_notes_on_start(state, self.card),
            *copied.notes,
            *loops.notes,
            *guesses.notes(),
            *marks,
            *_notes_on_effects(not_done),
        )
        recording = replace(
            recording,
            predicted=True,
            output=output.text,
            flow_guessed=guesses.flow_depends,
            notes=(*recording.notes, *notes),
        )
        return recording, loops.skipped

    def _run(self, source: VirtualSource, loops: Loops, state: StartingState) -> Recording:
        before = ACTIVE.set(Active(source, recording=True))
        source.enter()
        try:
            source.start(names_of(self.namespace))
            error = None
            try:
                with self.scribe.writing(state.allocator) if self.scribe else nullcontext():
                    if state.lacking:
                        source.gpu.storages.malloc(state.lacking)
                    tree = loops.bind(self.tree)
                    execute(tree, self.cell.filename, self.namespace, self.shows_last)
            except KeyboardInterrupt:
                raise
            except BaseException as raised:
                error = raised
            return source.stop(self.cell, self.cells, error)[0]
        finally:
            source.leave()
            ACTIVE.reset(before)


def _notes_on_start(state: StartingState, card: GPUModel) -> tuple[str, ...]:
    if not state.lacking:
        return ()
    return (
        f"What the notebook holds already does not fit on a {card.name}: a block of "
        f"{format_bytes(state.lacking)} found no room. The cell was not begun.",
    )


def _notes_on_effects(not_done: list[str]) -> tuple[str, ...]:
    return (f"Not executed in the dry run: {', '.join(not_done)}.",) if not_done else ()
