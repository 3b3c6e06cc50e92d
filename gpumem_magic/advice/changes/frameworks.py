"""Training frameworks: how stacks tell that one runs, which of its arguments save memory, and how
these are written into the calls that make its objects."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.casts import casts_of_parameters
from gpumem_magic.advice.rewrite import UnsafeError, import_line, replace, set_keyword
from gpumem_magic.values.advice import Argument, Cost, Edit
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import ArgumentFacts, Names
from gpumem_magic.values.recording import Category

Values = Mapping[str, "bool | int | str"]


@dataclass(frozen=True, slots=True)
class Knob:
    """Arguments that save memory. values: as passed; half: in place of them on a device without
    bfloat16. kinds: of the storages that they make smaller, which are called `what`; born_in: in
    a function of this name.
    price: what they cost; cost: the class of that. package: to be installed for them."""

    values: Values
    change: str
    price: str
    kinds: tuple[Category, ...] = (Category.ACTIVATION,)
    what: str = "activations"
    half: Values = field(default_factory=dict)
    born_in: str = ""
    package: str = ""
    cost: Cost = Cost.ACCURACY

    def values_for(self, bfloat16: bool) -> Values:
        """The values on a device that has bfloat16, or has not."""
        return self.half if self.half and not bfloat16 else self.values


@dataclass(frozen=True, slots=True)
class Framework:
    """A library that trains. title: what it is called. files: how the names of the files end whose
    frames show that it runs. owner: the class that takes the arguments, dotted. spelled: what calls
    of it, and of classes derived from it, are written as. steps: the argument that says over how
    many batches gradients are added up. batch: the one that says how large these are: its class,
    what that is spelled as, and its name; None where the loop is the user's own.
    """

    title: str
    files: tuple[str, ...]
    owner: str
    spelled: str
    knobs: tuple[Knob, ...]
    steps: str = ""
    batch: tuple[str, str, str] | None = None

    def spelled_as(self, owner: str) -> str:
        """What calls of one of its two classes are written as."""
        return self.batch[1] if self.batch and owner == self.batch[0] else self.spelled

    @property
    def runs_transformers(self) -> bool:
        """Whether it trains models of transformers, which peft knows."""
        return self.owner == _TRANSFORMERS

    @property
    def runs_loop(self) -> bool:
        """Whether the loop is not the user's to change."""
        return self.batch is not None


_STATE = "the optimizer's state"
_PRECISE = "Results differ in the third digit; matrix products are faster."
_TRANSFORMERS = "transformers.training_args.TrainingArguments"
_TRANSFORMERS_SPELLED = (
    r"(transformers|sentence_transformers)\..*TrainingArguments|trl\.(?!Model|Script).*Config"
)
_LOADER = ("torch.utils.data.dataloader.DataLoader", r"torch\.utils\.data\..*DataLoader")


def _lightning(package: str) -> Framework:
    return Framework(
        "Lightning",
        (f"{package.replace('.', '/')}/trainer/trainer.py",),
        f"{package}.trainer.trainer.Trainer",
        r"(lightning|lightning\.pytorch|pytorch_lightning)(\..*)?\.Trainer",
        (
            Knob(
                {"precision": "bf16-mixed"},
                "Train in mixed precision",
                _PRECISE,
                half={"precision": "16-mixed"},
            ),
        ),
        "accumulate_grad_batches",
        (*_LOADER, "batch_size"),
    )


BATCH = Knob(
    {},
    "Take each batch in parts whose gradients are added up",
    "More and smaller passes, which use the device less well.",
    cost=Cost.TIME,
)

ADAPTERS = Knob(
    {},
    "What if LoRA's adapters were trained in place of the model's weights",
    "It is another training: the weights stay as they are.",
    kinds=(Category.OPTIMIZER_STATE,),
    what=_STATE,
)

FRAMEWORKS = (
    Framework(
        "transformers' Trainer",
        ("transformers/trainer.py",),
        _TRANSFORMERS,
        _TRANSFORMERS_SPELLED,
        (
            Knob(
                {"bf16": True},
                "Train in mixed precision",
                _PRECISE,
                half={"fp16": True},
            ),
            Knob(
                {"gradient_checkpointing": True},
                "Keep the input of each block alone, and compute the rest again in the backward "
                "pass",
                "One more forward pass of the blocks in every step.",
                cost=Cost.TIME,
            ),
            Knob(
                {"optim": "adamw_bnb_8bit"},
                "Keep AdamW's state in 8 bits",
                "The state is rounded; bitsandbytes has to be installed.",
                kinds=(Category.OPTIMIZER_STATE,),
                what=_STATE,
                package="bitsandbytes",
            ),
            Knob(
                {"optim": "adafactor"},
                "Keep sums of rows and columns in place of AdamW's state",
                "It is another optimizer: the learning rate has to be found again.",
                kinds=(Category.OPTIMIZER_STATE,),
                what=_STATE,
            ),
            Knob(
                {"eval_accumulation_steps": 1},
                "Move predictions to the host after each batch",
                "A copy to the host in every step of the evaluation.",
                kinds=tuple(Category),
                what="what the evaluation holds",
                born_in="evaluation_loop",
                cost=Cost.TIME,
            ),
        ),
        "gradient_accumulation_steps",
        (_TRANSFORMERS, _TRANSFORMERS_SPELLED, "per_device_train_batch_size"),
    ),
    _lightning("lightning.pytorch"),
    _lightning("pytorch_lightning"),
    Framework(
        "Accelerate",
        ("accelerate/accelerator.py",),
        "accelerate.accelerator.Accelerator",
        r"accelerate\.(.*\.)?Accelerator",
        (
            Knob(
                {"mixed_precision": "bf16"},
                "Train in mixed precision",
                _PRECISE,
                half={"mixed_precision": "fp16"},
            ),
        ),
    ),
)
"""The first whose frames are seen is the one that runs: transformers and Lightning may use
Accelerate."""


def framework_of(lives: Lifetimes) -> Framework | None:
    """The framework whose code made storages; None where there is none."""
    files = {frame.filename.replace("\\", "/") for stack in lives.stacks for frame in stack}
    return next(
        (each for each in FRAMEWORKS if any(name.endswith(each.files) for name in files)), None
    )


def known_value(names: Names, owner: str, name: str) -> object:
    """What an argument was, by the last object of the class; None where that is not known."""
    return next(
        (facts.values[name] for facts in names.arguments[::-1] if _has(facts, owner, name)), None
    )


def _has(facts: ArgumentFacts, owner: str, name: str) -> bool:
    return facts.owner == owner and facts.values.get(name) is not None


def is_precise_already(lives: Lifetimes, names: Names, framework: Framework) -> bool:
    """Whether training is in mixed precision, or in half of it, as it is."""
    half = any(set(facts.dtypes) & {"float16", "bfloat16"} for facts in names.modules.values())
    told = (known_value(names, framework.owner, name) for name in _PRECISIONS)
    return (
        half
        or bool(casts_of_parameters(lives).any())
        or any(value not in (None, False, "no", 32, "32", "32-true") for value in told)
    )


_PRECISIONS = ("bf16", "fp16", "precision", "mixed_precision")


_TRAINER = r"(transformers|trl|sentence_transformers)\..*Trainer"
_LORA = 'LoraConfig(target_modules="all-linear")'


def passed(cell: Code, framework: Framework, arguments: Iterable[Argument]) -> Iterator[Edit]:
    """Each argument in the one call of the cell that takes it. Raises UnsafeError where that call
    is elsewhere."""
    for argument in arguments:
        call = _one_call(cell, framework.spelled_as(argument.owner))
        known = any(keyword.arg == argument.name for keyword in call.keywords)
        if len(call.args) > 1 and not known:
            raise UnsafeError(f"{argument.name} may be passed by its place")
        yield from set_keyword(cell, call, argument.name, repr(argument.value))


def with_adapters(cell: Code) -> tuple[Edit, ...]:
    """The model of the cell's one trainer with LoRA's adapters. Raises UnsafeError."""
    call = _one_call(cell, _TRAINER)
    model = next((k.value for k in call.keywords if k.arg == "model"), None)
    model = model or next(iter(call.args), None)
    if model is None or isinstance(model, ast.Starred):
        raise UnsafeError("the trainer's model was not found")
    imported = import_line(cell, "from peft import LoraConfig, get_peft_model")
    return (*imported, *replace(cell, model, f"get_peft_model({cell.text(model)}, {_LORA})"))


def _one_call(cell: Code, spelled: str) -> ast.Call:
    calls = [c for c in cell.nodes(ast.Call) if re.fullmatch(spelled, cell.dotted(c.func))]
    if len(calls) != 1:
        raise UnsafeError("the call is not in this cell" if not calls else "there are several")
    return calls[0]
