"""What to change in a cell: the rules, and the one function that asks them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import cleandoc

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.shortage import is_short
from gpumem_magic.advice.joined import JoinedCode, Texts
from gpumem_magic.advice.rule import Rule
from gpumem_magic.advice.rules.activations import Activations
from gpumem_magic.advice.rules.attention_matrix import AttentionMatrix
from gpumem_magic.advice.rules.autocast_inference_cache import AutocastInferenceCache
from gpumem_magic.advice.rules.cache_not_the_problem import CacheNotTheProblem
from gpumem_magic.advice.rules.checkpoint_on_device import CheckpointOnDevice
from gpumem_magic.advice.rules.computed_weights import ComputedWeights
from gpumem_magic.advice.rules.context_tensors import ContextTensors
from gpumem_magic.advice.rules.copied_model import CopiedModel
from gpumem_magic.advice.rules.dataset_on_device import DatasetOnDevice
from gpumem_magic.advice.rules.earlier_cells import EarlierCells
from gpumem_magic.advice.rules.enlarged import EnlargedResult
from gpumem_magic.advice.rules.float32_inference import Float32Inference
from gpumem_magic.advice.rules.float64_by_accident import Float64ByAccident
from gpumem_magic.advice.rules.foreach_peak import ForeachPeak
from gpumem_magic.advice.rules.fragmentation import Fragmentation
from gpumem_magic.advice.rules.framework_arguments import FrameworkArguments
from gpumem_magic.advice.rules.frozen_layers_record import FrozenLayersRecord
from gpumem_magic.advice.rules.full_logits import FullLogits
from gpumem_magic.advice.rules.gradient_accumulation_wrong import GradientAccumulationWrong
from gpumem_magic.advice.rules.gradients_kept import GradientsKept
from gpumem_magic.advice.rules.graph_used_twice import GraphUsedTwice
from gpumem_magic.advice.rules.growth import GrowingMemory
from gpumem_magic.advice.rules.idle_gpus import IdleGpus
from gpumem_magic.advice.rules.kept_graph import KeptGraph, tells_of
from gpumem_magic.advice.rules.kv_cache import KvCache
from gpumem_magic.advice.rules.large_pass import LargePass
from gpumem_magic.advice.rules.missing_no_grad import EvalIsNotNoGrad, MissingNoGrad
from gpumem_magic.advice.rules.missing_zero_grad import MissingZeroGrad
from gpumem_magic.advice.rules.old_advice import (
    BackwardUnderNoGrad,
    ClippingIsNotMemory,
    RemovedVolatile,
)
from gpumem_magic.advice.rules.optimizer_state import OptimizerState
from gpumem_magic.advice.rules.other_process import OtherProcess
from gpumem_magic.advice.rules.retained_graph import RetainedGraph
from gpumem_magic.advice.rules.second_model import SecondModel
from gpumem_magic.advice.rules.second_optimizer import SecondOptimizer
from gpumem_magic.advice.rules.separate_models import SeparateModels
from gpumem_magic.advice.rules.stale_exception import StaleException
from gpumem_magic.advice.rules.stale_output import StaleOutput
from gpumem_magic.advice.rules.stale_variable import StaleVariable
from gpumem_magic.advice.rules.step_in_backward import StepInBackward
from gpumem_magic.advice.rules.weights_too_large import WeightsTooLarge
from gpumem_magic.advice.work import CountedLifetimes, TooMuchWorkError
from gpumem_magic.sources.failures import defect
from gpumem_magic.values.advice import Advice, Cost, Kind
from gpumem_magic.values.assessment import RulePage
from gpumem_magic.values.findings import OutOfMemory, Trace, Way
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Cell

__all__ = ["RULES", "Advice", "Rule", "Said", "advise", "find_rule"]

RULES: tuple[Rule, ...] = (
    GraphUsedTwice(),
    GrowingMemory(),
    MissingNoGrad(),
    EvalIsNotNoGrad(),
    RemovedVolatile(),
    KeptGraph(),
    RetainedGraph(),
    BackwardUnderNoGrad(),
    FrozenLayersRecord(),
    ContextTensors(),
    ComputedWeights(),
    GradientsKept(),
    MissingZeroGrad(),
    GradientAccumulationWrong(),
    Float64ByAccident(),
    EnlargedResult(),
    FrameworkArguments(),
    Activations(),
    FullLogits(),
    AttentionMatrix(),
    Float32Inference(),
    AutocastInferenceCache(),
    OptimizerState(),
    WeightsTooLarge(),
    ForeachPeak(),
    StepInBackward(),
    StaleOutput(),
    StaleException(),
    SecondModel(),
    SeparateModels(),
    SecondOptimizer(),
    CopiedModel(),
    EarlierCells(),
    CheckpointOnDevice(),
    DatasetOnDevice(),
    LargePass(),
    StaleVariable(),
    KvCache(),
    Fragmentation(),
    OtherProcess(),
    IdleGpus(),
    ClippingIsNotMemory(),
    CacheNotTheProblem(),
)
"""All rules. Where two say the same of one line, the earlier one is heard."""

KINDS = {rule.name: rule.kind for rule in RULES}

SMALLER = frozenset(
    {"enlarged-result", "full-logits", "attention-matrix", "float64-by-accident", "kv-cache"}
    | {"activations", "float32-inference", "framework-arguments", "dataset-on-device"}
    | {"large-pass"}
)
"""Rules whose changes make one tensor smaller: no others help where it is more than there is."""

OF_ERRORS = frozenset({GraphUsedTwice.name, BackwardUnderNoGrad.name})
"""Rules that tell why the cell failed."""

OF_GRAPHS = frozenset({MissingNoGrad.name, EvalIsNotNoGrad.name})
"""Rules that tell of graphs that nothing goes backward through."""

LITTLE = 0.1
"""Share of the peak below which a cure comes after all that save more."""

LITTLE_OF_A_CAUSE = 0.05
"""Share of the peak below which a cause does, too."""

_ALONE = Texts()


@dataclass(frozen=True, slots=True)
class Said:
    """What the rules say of a cell, what saves most first. left_out: names of rules that would have
    had to look at more of a large cell than a rule may. on_host: why nothing was on the device.
    failed: a sentence on the rules that have a defect.
    """

    advice: tuple[Advice, ...] = ()
    left_out: tuple[str, ...] = ()
    on_host: str = ""
    failed: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the report: all was on the host, rules were left out or failed."""
        rules = ", ".join(self.left_out)
        left_out = f"This cell is too large for these rules, which were left out: {rules}."
        return tuple(filter(None, (self.on_host, left_out if rules else "", self.failed)))


def advise(
    trace: Trace,
    cell: Cell,
    names: Names,
    *,
    ignore: Collection[str] = (),
    everything: bool = False,
    texts: Texts = _ALONE,
) -> Said:
    """Ask the rules about a cell; no code is run.

    ignore: names of rules that keep quiet, beside those that a comment `# gpumem: ignore[rule]` in
    the cell silences. everything: ask also what is worth its price only when memory is short.
    texts: how they are read; without them the cell stands alone.
    """
    if trace.lifetimes is None:
        return Said()
    code = Code(cell, names.known, parse=texts.parse)
    lives = CountedLifetimes.of_all(trace.lifetimes, code.work)
    trace = replace(trace, lifetimes=lives)
    short = everything or is_short(trace)
    found: list[Advice] = []
    left_out = []
    failed: dict[str, Exception] = {}
    whole = _Joined(texts.join, names)
    code.joined = whole.made
    for rule in RULES:
        if rule.name in ignore or (rule.kind is Kind.TRADE and not short):
            continue
        code.work.begin(len(code) + len(lives) + lives.events)
        whole.begin()
        try:
            said = tuple(rule.find(trace, code, names))
            if rule.joins and not said:
                said = whole.ask(rule)
        except TooMuchWorkError:
            left_out.append(rule.name)
        except Exception as error:  # it must not cost the user the report of the cell
            failed[rule.name] = error
        else:
            heard = (one for one in said if not code.ignores(rule.name, one.line))
            told = [one for one in heard if _helps(trace.oom, one)]
            found += [one if everything else _as_told(rule, one) for one in told]
    found = _told_once(found)
    on_host = "" if trace.lines else _why_on_host(code, names)
    asked = (trace.oom.requested or 0) if trace.oom else 0
    peak = (trace.peak.allocated or 0) + asked
    ordered = ranked(found, peak)
    if not everything:
        ordered = _worth_beside_causes(ordered, peak)
    return Said(tuple(ordered), tuple(left_out), on_host, _told_of(failed))


class _Joined:
    """The cell and the earlier ones as one text, made when a rule asks for it."""

    def __init__(self, make: Callable[[], tuple[JoinedCode, Trace] | None], names: Names) -> None:
        self._make = make
        self._names = names
        self._begun = False

    @functools.cached_property
    def _made(self) -> tuple[JoinedCode, Trace] | None:
        made = self._make()
        if made is None:
            return None
        code, trace = made
        lives = CountedLifetimes.of_all(trace.lives, code.work)
        return code, replace(trace, lifetimes=lives)

    def made(self) -> tuple[JoinedCode, Trace] | None:
        """The text, and the trace by its lines."""
        made = self._made
        if made is not None and not self._begun:
            code, trace = made
            code.work.begin(len(code) + len(trace.lives) + trace.lives.events)
            self._begun = True
        return made

    def begin(self) -> None:
        """Let what the next rule looks at there count anew."""
        self._begun = False

    def ask(self, rule: Rule) -> tuple[Advice, ...]:
        """What the rule says of it, without lines and changes: those are of no one cell.

        Raises TooMuchWorkError.
        """
        made = self.made()
        if made is None:
            return ()
        code, trace = made
        found = rule.find(trace, code, self._names)
        heard = (one for one in found if not code.ignores(rule.name, one.line))
        return tuple(replace(one, line=None, edits=(), source=None, arguments=()) for one in heard)


def _told_once(advice: list[Advice]) -> list[Advice]:
    """Without what keeps graphs where it is told as what grew."""
    grown = [one for one in advice if one.rule == GrowingMemory.name]
    return [
        one
        for one in advice
        if one.rule != KeptGraph.name or not any(tells_of(each, one) for each in grown)
    ]


def _why_on_host(code: Code, names: Names) -> str:
    """The name by which the cell chose the CPU; "" where none is seen."""
    used = {node.id for node in code.nodes(ast.Name) if isinstance(node.ctx, ast.Load)}
    for name, cell in names.host.items():
        if name in used:
            since = f", assigned in In[{cell}]" if cell else ""
            return (
                f'This cell computed on the CPU: {name} is "cpu"{since}, perhaps when there was '
                f'no GPU as yet. Assign {name} = torch.device("cuda"), and run again what puts the '
                "model and the data there."
            )
    return ""


def _as_told(rule: Rule, advice: Advice) -> Advice:
    """As it is told without a dry run: what follows from the trace may be written out; whether a
    change that has its price can be made, and what it saves, only a run of it can tell."""
    return (
        replace(advice, edits=(), source=None, arguments=()) if rule.kind is Kind.TRADE else advice
    )


def ranked(advice: Iterable[Advice], peak: int | None) -> list[Advice]:
    """What ended the cell first; gaps, of more than any advice is about, which else come after the
    cures; then what grows; graphs without a use that fill the device, and float64 by accident; what
    saves little of `peak` last; causes before cures; what costs nothing before time before
    accuracy; what makes the cell fit first; then what saves most, of cures at no other price."""
    costs = list(Cost)
    advice = list(advice)
    most = max((_size(one) for one in advice if one.rule != Fragmentation.name), default=0)

    def key(one: Advice) -> tuple[int, bool, bool, int, bool, bool, int]:
        saving = _size(one)
        gaps = one.rule == Fragmentation.name
        cure = KINDS.get(one.rule) is Kind.TRADE or (gaps and saving <= most)
        little = saving < (LITTLE if cure else LITTLE_OF_A_CAUSE) * (peak or 0)
        first = 1 if gaps and not cure else 2 if one.rule == GrowingMemory.name else 4
        fills = one.rule in OF_GRAPHS and 2 * (one.size or 0) >= (peak or 0)
        if (fills or one.rule == Float64ByAccident.name) and not little:
            first = 3
        first = 0 if one.rule in OF_ERRORS else first
        cost = costs.index(one.cost) if not gaps else len(costs)
        return first, little, cure, cost, one.fits is False, cure and bool(one.price), -saving

    return sorted(advice, key=key)


def _size(one: Advice) -> int:
    """Bytes that a change saves, or else those that it is about."""
    return (one.size if one.saving is None else one.saving) or 0


def explained(oom: OutOfMemory, advice: Sequence[Advice]) -> OutOfMemory:
    """The failure as the advice explains it: not by gaps where another cause comes first, nor by
    one tensor that nothing makes room for where a change does."""
    if not advice:
        return oom
    gaps = any(one.rule == Fragmentation.name for one in advice)
    remedies = (one for one in oom.remedies if gaps or one.way is not Way.EXPANDABLE)
    return replace(
        oom,
        explained=advice[0].rule != Fragmentation.name,
        too_large=oom.too_large and all(one.rule in SMALLER for one in advice),
        remedies=tuple(remedies),
    )


def _helps(oom: OutOfMemory | None, advice: Advice) -> bool:
    """Whether a change makes the one tensor smaller that is too large, or room for it."""
    if oom is None or not oom.too_large or advice.rule in SMALLER:
        return True
    free = (oom.device_free or 0) + (oom.reserved_free or 0)
    return free + (advice.saving or 0) >= (oom.requested or 0)


def _worth_beside_causes(advice: list[Advice], peak: int) -> list[Advice]:
    """Without cures that save little, where a cause is known: they only draw attention from it."""
    causes = [one for one in advice if KINDS[one.rule] is not Kind.TRADE]
    if not any(_size(one) >= LITTLE_OF_A_CAUSE * peak for one in causes):
        return advice
    return [one for one in advice if one in causes or _size(one) >= LITTLE * peak]


def find_rule(name: str) -> Rule:
    """The rule of this name. Raises KeyError, which lists the names."""
    for rule in RULES:
        if rule.name == name:
            return rule
    raise KeyError(f"no rule {name!r}; there are {', '.join(rule.name for rule in RULES)}")


def _told_of(failed: Mapping[str, Exception]) -> str:
    """A sentence on the rules that raised something; "" for none."""
    if not failed:
        return ""
    error = next(iter(failed.values()))
    rules = f"The rule{'s' * (len(failed) > 1)} {', '.join(failed)}"
    return f"{defect(f'{rules} failed, your code is not affected', error)}."


def pages_of(rules: Iterable[Rule]) -> tuple[RulePage, ...]:
    """What the rules say of themselves."""
    return tuple(
        RulePage(rule.name, rule.problem, rule.kind, _paragraphs(rule), rule.examples)
        for rule in rules
    )


def _paragraphs(rule: Rule) -> tuple[str, ...]:
    text = cleandoc(type(rule).__doc__ or "")
    return tuple(" ".join(part.split()) for part in text.split("\n\n"))
