"""Writes a training step as several smaller ones whose gradients add up."""

from __future__ import annotations

import ast
import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

from gpumem_magic.advice.code import Code, called
from gpumem_magic.advice.evidence.training_pass import (
    TrainingPass,
    is_mean_loss,
    is_mean_of_tokens,
)
from gpumem_magic.advice.rewrite import (
    UnsafeError,
    enclose,
    indent_of,
    insert_after,
    insert_before,
    remove,
    replace,
)
from gpumem_magic.advice.tree import lines_of, root
from gpumem_magic.values.advice import Edit
from gpumem_magic.values.names import ModuleFacts, Names

PIECES = 4
_BY_SAMPLE = (".view", ".reshape", ".flatten", ".squeeze", ".unsqueeze", ".size", ".float", ".long",
              ".contiguous", ".to", ".cuda", ".mean", ".permute", ".relu", ".tanh", ".sigmoid",
              ".square", "torch.nn.functional.relu", "torch.nn.functional.gelu")  # fmt: skip
"""What treats each sample of a batch alone, beside models and losses."""


def in_pieces(
    cell: Code, names: Names, found: TrainingPass, model: ModuleFacts
) -> tuple[Edit, ...]:
    """The forward pass and `backward()` in a loop over pieces of the batch."""
    if any("BatchNorm" in kind for kind in model.kinds):
        raise UnsafeError("BatchNorm normalises over the whole batch")
    between = cell.after(found.forward[-1], until=found.backward)
    above = [statement for statement in (*found.forward, *between) if _clears(statement)]
    found = dataclasses.replace(found, forward=tuple(s for s in found.forward if s not in above))
    made = _loss_statement(cell, names, found)
    below = [statement for statement in between if not _clears(statement)]
    _require_movable(cell, below)
    later, outputs = _read_later(cell, found, made)
    later = [read for read in later if cell.statement(read) not in below]
    batches = _batches(cell, names, found)
    total = found.loss if isinstance(found.value, ast.Name) else "loss"
    own = [f"{name}_" for name in (*batches, found.loss, *outputs)]
    taken = cell.spoken() & {*own, *({total, f"{total}_"} - {found.loss})}
    if taken:
        raise UnsafeError(f"{', '.join(sorted(taken))} is a name of the cell already")
    moved = [cell.text(s).replace(cell.text(found.value), total) for s in below]
    indent, inside = indent_of(cell.source), [*found.forward, found.backward]
    weight = f" * (len({own[0]}) / len({batches[0]}))"
    return (
        *(edit for s in above for edit in insert_before(cell, inside[0], cell.text(s))),
        *(edit for s in (*above, *below) for edit in remove(cell, s)),
        *insert_before(cell, inside[0], f"{total} = 0.0"),
        *(edit for n in outputs for edit in insert_before(cell, inside[0], f"{n} = []")),
        *insert_before(cell, inside[0], _header(batches)),
        *_weighed(cell, found, made, weight, later),
        *_indented(cell, found.forward, above),
        *_indented(cell, [found.backward], ()),
        *_renamed(cell, found.forward, {*batches, found.loss, *outputs}),
        *insert_after(cell, found.backward, f"{indent}{total} += {total}_.detach()"),
        *(edit for n in outputs for edit in _collected(cell, found, n)),
        *(edit for text in moved for edit in insert_after(cell, found.backward, text)),
    )


def _clears(statement: ast.stmt) -> bool:
    """Whether it clears gradients: to be done once, above all pieces."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and called(call) == "zero_grad"


def _require_movable(cell: Code, statements: Sequence[ast.stmt]) -> None:
    """What else stands between the loss and `backward()` has to do as well below the pieces."""
    for statement in statements:
        simple = isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign))
        if not simple or "grad" in cell.text(statement):
            raise UnsafeError(f"{cell.place(statement.lineno)} comes between loss and backward()")


def _header(batches: Sequence[str]) -> str:
    own, chunks = [f"{n}_" for n in batches], [f"{n}.chunk({PIECES})" for n in batches]
    if len(batches) == 1:
        return f"for {own[0]} in {chunks[0]}:"
    return f"for {', '.join(own)} in zip({', '.join(chunks)}):"


def _collected(cell: Code, found: TrainingPass, output: str) -> Iterator[Edit]:
    """What the model made of all pieces, for what reads it later."""
    torch = cell.spelling("torch", "torch")
    kept = f"{indent_of(cell.source)}{output}.append({output}_.detach())"
    yield from insert_after(cell, found.backward, kept)
    yield from insert_after(cell, found.backward, f"{output} = {torch}.cat({output})")


def _weighed(
    cell: Code, found: TrainingPass, made: ast.Assign, weight: str, later: Sequence[ast.expr]
) -> Iterator[Edit]:
    """The loss of a piece by its share of the batch. A part of an output ("output.loss") gets a
    name for it, which later reads have in its place."""
    if isinstance(found.value, ast.Name):
        yield from enclose(cell, made.value, "", weight)
        yield from _renamed(cell, (found.backward,), {found.loss})
        return
    of_piece = f"{found.loss}_{cell.text(found.value).removeprefix(found.loss)}"
    named = f"{indent_of(cell.source)}loss_ = {of_piece}{weight}"
    yield from insert_before(cell, found.backward, named)
    yield from replace(cell, found.value, "loss_")
    for read in later:
        yield from replace(cell, read, "loss")


def _loss_statement(cell: Code, names: Names, found: TrainingPass) -> ast.Assign:
    """What the loss, or the output that it is a part of, is made in."""
    made = [s for s in cell.assigned(found.loss) if s in found.forward]
    given = list(cell.assigned(found.loss))
    if not made and any(cell.inside(s, outer) for s in given for outer in found.forward):
        raise UnsafeError("the loss is computed in a block of its own")
    if len(made) != 1 or not isinstance(made[0], ast.Assign) or len(made[0].targets) != 1:
        raise UnsafeError("the loss is put together in several steps")
    value = made[0].value if isinstance(found.value, ast.Name) else found.value
    outputs = [s.value for s in cell.assigned(root(value)) if isinstance(s, ast.Assign)]
    if is_mean_loss(cell, names, value):
        return made[0]
    if len(outputs) == 1 and is_mean_of_tokens(cell, names, value, outputs[0]):
        return made[0]
    raise UnsafeError("it is not certain that the loss is a mean over the batch")


def _read_later(
    cell: Code, found: TrainingPass, made: ast.Assign
) -> tuple[list[ast.expr], list[str]]:
    """Where the rest of the cell reads the loss, and the name of what it is computed of, if that is
    read there; nothing else that the forward pass names may be."""
    inside = {id(node) for s in (*found.forward, found.backward) for node in ast.walk(s)}
    later: list[ast.expr] = []
    outputs: list[str] = []
    for statement in found.forward:
        if not isinstance(statement, (ast.Assign, ast.Expr)):
            raise UnsafeError("the forward pass is more than assignments")
        for node in ast.walk(statement):
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Store):
                continue
            reads = [read for read in cell.reads(node.id) if id(read) not in inside]
            losses = [_same(cell, read, found.value) for read in reads]
            if all(losses):
                later += [loss for loss in losses if loss]
            elif node.id == _compared(made) and isinstance(found.value, ast.Name):
                outputs.append(node.id)
            else:
                raise UnsafeError(f"{node.id} of the whole batch is used later")
    return later, outputs


def _compared(made: ast.Assign) -> str:
    """The name of what a loss is computed of: "outputs" of `criterion(outputs, labels)`."""
    first = made.value.args[0] if isinstance(made.value, ast.Call) and made.value.args else None
    return first.id if isinstance(first, ast.Name) else ""


def _same(cell: Code, read: ast.Name, loss: ast.expr) -> ast.expr | None:
    """The expression around a name that is written as the loss is, if there is one."""
    around = (read, *(n for n in cell.ancestors(read) if isinstance(n, ast.expr)))
    return next((n for n in around if cell.text(n) == cell.text(loss)), None)


def _batches(cell: Code, names: Names, found: TrainingPass) -> list[str]:
    """The tensors of the batch that the forward pass reads: those with its first dimension."""
    read = list(dict.fromkeys(_read_outside(found)))
    if cell.function(found.backward) is not None:
        _require_alone(cell, names, found)
        return _input_and_target(cell, found, {*read} - {*names.known})
    tensors = [(name, facts) for name in read if (facts := names.tensors.get(name)) and facts.shape]
    if not tensors:
        raise UnsafeError("the tensors of the batch have no names that are known")
    length = tensors[0][1].shape[0]
    if length < PIECES:
        raise UnsafeError(f"the batch has {length} element{'s' if length != 1 else ''}")
    if any(
        facts.requires_grad
        or facts.has_graph
        or facts.shape[0] != length
        or facts.shape[1:2] == (length,)
        for _, facts in tensors
    ):
        raise UnsafeError("it is not certain which tensors are the batch")
    unknown = {*read} - {name for name, _ in tensors} - _moved_to(found)
    unknown -= names.modules.keys() | names.known.keys()
    if unknown & (set(names.containers) | set(names.others)):
        raise UnsafeError(f"{', '.join(sorted(unknown))} may depend on the batch")
    _require_alone(cell, names, found)
    return [name for name, _ in tensors]


def _moved_to(found: TrainingPass) -> set[str]:
    """Names of devices and types: what only stands in `x.to(...)`."""
    nodes = [*found.walk()]
    moves = [n for n in nodes if isinstance(n, ast.Call) and called(n) == "to"]
    given = Counter(root(argument) for move in moves for argument in move.args)
    read = Counter(node.id for node in nodes if isinstance(node, ast.Name))
    return {name for name, count in given.items() if count == read[name]}


def _input_and_target(cell: Code, found: TrainingPass, read: set[str]) -> list[str]:
    """Of a function, whose variables are not known: what it calls the model with, and what it
    compares the result with, if it reads nothing else."""
    nodes = [*found.walk()]
    calls = [n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    inputs = {root(call.args[0]) for call in calls if len(call.args) == 1 and not call.keywords}
    targets = {root(n.args[1]) for n in nodes if isinstance(n, ast.Call) and len(n.args) == 2}
    functions = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    batches = sorted(read - functions - _moved_to(found))
    if len(inputs & read) == len(targets & read) == 1 and {*batches} == (inputs | targets) & read:
        return batches
    raise UnsafeError("the tensors of the batch have no names that are known")


def _require_alone(cell: Code, names: Names, found: TrainingPass) -> None:
    """Raises UnsafeError where samples may meet: contrastive losses, random numbers."""
    for node in found.walk():
        if isinstance(node, ast.Call):
            alone = isinstance(node.func, ast.Name) and node.func.id in names.modules
            if not alone and not is_mean_loss(cell, names, node):
                alone = cell.is_one_of(node.func, _BY_SAMPLE)
                if not alone:
                    raise UnsafeError(f"{cell.text(node.func)} may need the whole batch")
        meets = isinstance(node, ast.MatMult) or (
            isinstance(node, ast.Attribute) and node.attr in ("T", "mT", "H", "shape")
        )
        if meets:
            raise UnsafeError("samples of the batch meet in the loss")
        if isinstance(node, ast.Subscript) and not _keeps_samples(node.slice):
            raise UnsafeError(f"{cell.text(node)} may pick from the whole batch")


def _keeps_samples(index: ast.expr) -> bool:
    """Whether an index takes all there is of the first axis, or a key of a dictionary."""
    first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
    if isinstance(first, ast.Slice):
        return first.lower is None and first.upper is None and first.step is None
    return isinstance(first, ast.Constant) and (first.value is ... or isinstance(first.value, str))


def _read_outside(found: TrainingPass) -> Iterator[str]:
    """Names that the forward pass reads before it gives them a value."""
    made: set[str] = set()
    for statement in found.forward:
        nodes = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        reads = [n for n in nodes if isinstance(n.ctx, ast.Load) and n.id not in made]
        yield from (node.id for node in sorted(reads, key=lambda n: (n.lineno, n.col_offset)))
        made |= {node.id for node in nodes if isinstance(node.ctx, ast.Store)}


def _indented(
    cell: Code, statements: Sequence[ast.stmt], without: Sequence[ast.stmt]
) -> Iterator[Edit]:
    inside, indent = cell.lines_inside_strings(), indent_of(cell.source)
    left_out = {number for statement in without for number in lines_of(statement)} | inside
    for number in range(statements[0].lineno, (statements[-1].end_lineno or 0) + 1):
        if number not in left_out and cell.lines[number - 1].strip():
            at = cell.offset(number, 0)
            yield Edit(at, at, indent)


def _renamed(cell: Code, statements: Sequence[ast.stmt], names: set[str]) -> Iterator[Edit]:
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id in names:
                at = cell.end(node)
                yield Edit(at, at, "_")
