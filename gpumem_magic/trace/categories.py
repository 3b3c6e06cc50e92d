"""What kind of memory each block is: its owner's word, otherwise its life."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.attribution import Attribution
from gpumem_magic.trace.owners import CODE, NO_CATEGORY, Owners
from gpumem_magic.trace.pairing import Pairing
from gpumem_magic.trace.stacks import Stacks
from gpumem_magic.values.recording import Category, Phase, Recording

_INHERITED = (
    Category.PARAMETER,
    Category.BUFFER,
    Category.INPUT,
    Category.ACTIVATION,
    Category.OTHER,
)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of every block's life: columns as long as the table of blocks.

    row: of Stacks, at its birth; initial blocks have the row of "no stack". born, freed: int8, a
    Phase, -1 for a block that is never freed. same_step, same_pass: freed in the one of its birth.
    recorded: autograd recorded the operator that made it, as far as known.
    """

    row: NDArray[np.int64]
    line: NDArray[np.int32]
    born: NDArray[np.int8]
    freed: NDArray[np.int8]
    same_step: NDArray[np.bool_]
    same_pass: NDArray[np.bool_]
    unwound: NDArray[np.bool_]
    recorded: NDArray[np.bool_]


def categorise(
    recording: Recording, stacks: Stacks, attribution: Attribution, lives: Pairing, owners: Owners
) -> NDArray[np.int8]:
    """The category of every block, as its place in owners.CATEGORIES.

    The first row that fits decides. "Step" is one call of `backward()` or of an optimizer's
    `step()`; "pass" is one uninterrupted stretch of events on a line of the cell.

        a label gives a category                                       that one
        an earlier recording told it, and other than "other"           that one
        born in backward, freed in the same step                       temporary
        born in backward, where autograd recorded a graph              activation
        born in backward, outlives the step                            gradient
        born in an optimizer, freed in the same step                   temporary
        born in an optimizer, outlives the step                        optimizer state
        born where a module or parameter is built or moved             parameter
        named, with a graph                                            activation
        named, without a graph, born outside torch.nn.modules          input
        freed in backward                                              activation
        named, without a graph, born in a module's forward             other
        with a graph, freed when the failed statement was left         activation
        freed in the pass of its line in which it was born             temporary
        born by the same stack as a named one                          what that one is
        born on a line that made a tensor with a graph                 activation
        born in a module's forward of a cell that builds graphs        activation
        born in a module's forward, still there when memory ran out    activation
        anything else                                                  other

    Workspaces are known by their label only.
    """
    facts = _facts(attribution, lives, len(stacks.line) - 1, recording)
    named = (owners.naming >= 0) | owners.graph
    module = stacks.module[facts.row]
    kind = np.full(len(lives), NO_CATEGORY, np.int8)

    def decide(rows: NDArray[np.bool_], category: Category) -> None:
        kind[(kind == NO_CATEGORY) & rows] = CODE[category]

    kind[:] = owners.category
    kind[:] = np.where(kind == NO_CATEGORY, _told_before(recording, len(lives)), kind)
    in_backward, in_optimizer = facts.born == Phase.BACKWARD, facts.born == Phase.OPTIMIZER
    decide((in_backward | in_optimizer) & facts.same_step, Category.TEMPORARY)
    decide(in_backward & facts.recorded, Category.ACTIVATION)
    decide(in_backward, Category.GRADIENT)
    decide(in_optimizer, Category.OPTIMIZER_STATE)
    decide(stacks.parameter[facts.row], Category.PARAMETER)
    decide(owners.graph, Category.ACTIVATION)
    decide(named & ~module, Category.INPUT)
    decide(facts.freed == Phase.BACKWARD, Category.ACTIVATION)
    decide(named, Category.OTHER)
    decide(facts.unwound & facts.recorded, Category.ACTIVATION)
    inherited = _by_stack(kind, named, facts)
    decide(facts.same_pass, Category.TEMPORARY)
    kind[:] = np.where(kind == NO_CATEGORY, inherited, kind)
    graph_lines = np.unique(facts.line[owners.graph & (facts.line > 0)])
    decide(np.isin(facts.line, graph_lines), Category.ACTIVATION)
    decide(module & _builds_graphs(recording, owners, facts), Category.ACTIVATION)
    decide(np.full(len(lives), True), Category.OTHER)
    return kind


def _told_before(recording: Recording, blocks: int) -> NDArray[np.int8]:
    """What an earlier recording found the initial blocks, which come first, to be."""
    told = np.full(blocks, NO_CATEGORY, np.int8)
    if recording.initial.category is not None:
        told[: len(recording.initial.category)] = recording.initial.category
    told[told == CODE[Category.OTHER]] = NO_CATEGORY
    return told


def _facts(attribution: Attribution, lives: Pairing, no_stack: int, recording: Recording) -> _Facts:
    """Look up births and deaths; a block without one takes the padding at the end of a column."""
    end, failure = len(attribution.phase), recording.failure
    birth = np.where(lives.birth < 0, end, lives.birth)
    line = np.append(attribution.line, np.int32(0))
    step, run = np.append(attribution.step, -1), np.append(attribution.run, -1)
    ends = (birth < end) & (lives.death < end)
    same_pass = run[birth] == run[lives.death]
    known = np.append(attribution.known, -1)
    within = attribution.within.at(line[birth], known[birth])
    died = attribution.within.at(line[birth], known[lives.death])
    same_pass |= (within >= 0) & (within == died)
    return _Facts(
        row=np.append(attribution.row, no_stack)[birth],
        line=line[birth],
        born=np.append(attribution.phase, np.int8(Phase.FORWARD))[birth],
        freed=np.append(attribution.phase, np.int8(-1))[lives.death],
        same_step=ends & (step[birth] == step[lives.death]),
        same_pass=ends & (line[birth] > 0) & same_pass,
        unwound=ends
        & (failure is not None)
        & (lives.death >= (failure.position if failure else 0)),
        recorded=recording.events.recorded(birth),
    )


def _by_stack(kind: NDArray[np.int8], named: NDArray[np.bool_], facts: _Facts) -> NDArray[np.int8]:
    """For every block the category of the last named one that the same stack bore, if any."""
    codes = [CODE[category] for category in _INHERITED]
    models = np.flatnonzero(named & np.isin(kind, codes) & (facts.line > 0))
    by_row = np.full(int(facts.row.max(initial=0)) + 1, NO_CATEGORY, np.int8)
    by_row[facts.row[models]] = kind[models]
    return by_row[facts.row]


def _builds_graphs(recording: Recording, owners: Owners, facts: _Facts) -> NDArray[np.bool_]:
    """Which blocks a graph may hold: all where graphs were seen, else a failure's survivors."""
    seen = bool(owners.graph.any() or (facts.born == Phase.BACKWARD).any())
    seen = seen or bool((facts.freed == Phase.BACKWARD).any())
    return np.full(len(facts.row), seen) | ((facts.freed < 0) & (recording.failure is not None))
