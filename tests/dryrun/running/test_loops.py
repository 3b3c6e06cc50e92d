"""Loops of a dry run end where they only repeat, and nowhere else."""

from __future__ import annotations

import ast
import itertools

import cloudpickle
import pytest
import torch
from torch.optim import optimizer
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from gpumem_magic.dryrun.running.loops import Loops

MAKE = """
import torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight])
"""


class Program:
    """Runs code under Loops; `touch(*addresses)` in it makes events as the allocator would."""

    def __init__(self, optimizer_steps=None, may_skip=True):
        self.events = []
        self.loops = Loops(lambda: self.events, optimizer_steps, may_skip=may_skip)
        self.globals = {"touch": self.touch, "seen": [], "size_of": size_of, **self.loops.names()}

    def touch(self, *addresses):
        for address in addresses:
            self.events += [(0, address, 512, 4, len(self.events)), (1, address, 512, 4, 0)]

    def run(self, code, **names):
        self.globals.update(names)
        tree = self.loops.bind(ast.parse(MAKE + code))
        iterate, hooks = DataLoader.__iter__, dict(optimizer._global_optimizer_post_hooks)
        try:
            self.loops.install()
            exec(compile(tree, "<cell>", "exec"), self.globals)
        finally:
            DataLoader.__iter__ = iterate
            optimizer._global_optimizer_post_hooks.clear()
            optimizer._global_optimizer_post_hooks.update(hooks)
        return self.globals["seen"]


LOOP = """
for i in items:
    seen.append(i)
    touch(*addresses(i))
    optimizer.step()
else:
    seen.append("else")
"""


def test_a_loop_ends_when_a_step_repeats_the_one_before():
    program = Program()
    seen = program.run(LOOP, items=range(1000), addresses=lambda i: (7,) if i else (7, 8))
    assert seen == [0, 1, 2, "else"]
    assert program.loops.skipped
    assert program.loops.notes == (
        "line 6: 3 of 1,000 iterations were run; the others repeat the last one event for event, "
        "as long as shapes stay the same",
    )


def test_addresses_that_take_turns_repeat_after_two():
    program = Program()
    seen = program.run(LOOP, items=range(1000), addresses=lambda i: (1 + i % 2,))
    assert seen == [0, 1, 2, 3, "else"]
    assert "repeat the last 2 event for event" in program.loops.notes[0]


def test_a_loop_that_grows_runs_to_its_end():
    program = Program()
    assert len(program.run(LOOP, items=range(40), addresses=range)) == 41
    assert program.loops.notes == ()
    assert not program.loops.skipped


def test_equal_blocks_that_change_places_for_ever_are_settled():
    program = Program()
    seen = program.run(LOOP, items=range(1000), addresses=lambda i: (i, 99))
    assert seen == [0, 1, 2, 3, 4, 5, "else"]
    assert "ask for the same sizes in the same order" in program.loops.notes[0]


def test_a_loop_that_takes_segments_is_not_settled():
    program = Program()
    program.globals["segment"] = lambda i: program.events.append((3, i, 2 << 20, 2 << 20, 0))
    code = LOOP.replace("    optimizer.step()", "    segment(i)\n    optimizer.step()")
    assert len(program.run(code, items=range(40), addresses=lambda i: (i,))) == 41


def test_a_loop_without_an_optimizer_runs_to_its_end():
    program = Program()
    code = "for i in range(50):\n    touch(7)\n    seen.append(i)"
    assert len(program.run(code)) == 50


def test_accumulated_steps_are_compared_from_step_to_step():
    program = Program()
    code = """
for i in range(1000):
    seen.append(i)
    touch(i % 4)
    if i % 4 == 3:
        optimizer.step()
"""
    assert program.run(code) == [*range(8), 999]


def test_no_item_is_taken_too_many():
    taken = []

    def items():
        for i in itertools.count():
            taken.append(i)
            yield i

    program = Program()
    assert program.run(LOOP, items=items(), addresses=lambda i: (7,)) == [0, 1, 2, "else"]
    assert taken == [0, 1, 2]
    assert "only the first 3 iterations were run" in program.loops.notes[0]


def test_epochs_are_compared_as_a_whole():
    program = Program()
    code = """
for epoch in range(100):
    for i in range(1000):
        seen.append((epoch, i))
        touch(7)
        optimizer.step()
    touch(9)
"""
    assert program.run(code) == [(epoch, i) for epoch in range(3) for i in range(3)]
    assert [note.split(":")[0] for note in program.loops.notes] == ["line 7", "line 6"]


def test_steps_that_were_asked_for():
    program = Program(optimizer_steps=2)
    assert program.run(LOOP, items=range(90), addresses=lambda i: (i,)) == [0, 1, "else"]
    assert not program.loops.skipped
    assert program.loops.notes == (
        "line 6: 2 of 90 iterations were run, until 2 optimizer steps had been made",
    )


def test_every_optimizer_of_the_loop_makes_its_steps():
    program = Program(optimizer_steps=2)
    code = """
other = torch.optim.SGD([weight])
for i in range(90):
    seen.append(i)
    touch(i)
    optimizer.step()
    if i % 3 == 0:
        other.step()
"""
    assert program.run(code) == [0, 1, 2, 3]


def test_a_whole_run():
    program = Program(may_skip=False)
    assert len(program.run(LOOP, items=range(90), addresses=lambda i: (7,))) == 91


def test_break_and_errors_pass():
    program = Program()
    code = "for i in range(9):\n    seen.append(i)\n    if i == 1: break\nelse: seen.append('else')"
    assert program.run(code) == [0, 1]
    with pytest.raises(TypeError, match="not iterable"):
        program.run("for i in 5: pass")


BATCHES = """
for batch in wrap(loader):
    seen.append(size_of(batch))
    touch(seen[-1])
    optimizer.step()
"""


def size_of(batch):
    """The rows of a batch, whatever the loop has put around it."""
    return len(batch) if torch.is_tensor(batch) else size_of(batch[-1])


def counted(loader):
    return zip(range(10**6), loader, strict=False)


@pytest.mark.parametrize("wrap", [iter, enumerate, counted])
def test_the_last_batch_of_a_loader_is_run_too(wrap):
    data = TensorDataset(torch.zeros(1003, 2))
    program = Program()
    seen = program.run(BATCHES, loader=DataLoader(data, batch_size=10, shuffle=True), wrap=wrap)
    assert seen == [10, 10, 10, 3]
    assert program.loops.notes == (
        "line 6: 3 of 101 iterations were run; the others repeat the last one event for event, as "
        "long as shapes stay the same; the last batch, a smaller one, was run as well",
    )


@pytest.mark.parametrize(
    ("wrap", "said"),
    [
        (lambda loader: itertools.islice(loader, 40), "only the first 3 iterations were run;"),
        (lambda loader: zip(range(40), loader, strict=False), "3 of 40 iterations were run;"),
        (itertools.cycle, "only the first 3 iterations were run;"),
    ],
)
def test_what_ends_elsewhere_than_its_loader_is_told_by_its_own_length(wrap, said):
    loader = DataLoader(TensorDataset(torch.zeros(1003, 2)), batch_size=10)
    program = Program()
    assert program.run(BATCHES, loader=loader, wrap=wrap)[:3] == [10, 10, 10]
    assert said in program.loops.notes[0]
    assert "last batch" not in program.loops.notes[0]


@pytest.mark.parametrize("wrap", [iter, enumerate, counted])
@pytest.mark.parametrize(
    ("body", "most"),
    [
        ("if len(seen) == 40: break", "up to 101"),
        ("for _ in range(3): break", "101"),
    ],
)
def test_a_loop_that_the_cell_may_leave_has_no_known_end(wrap, body, most):
    loader = DataLoader(TensorDataset(torch.zeros(1003, 2)), batch_size=10)
    program = Program()
    program.run(f"{BATCHES}    {body}\n", loader=loader, wrap=wrap)
    assert f"line 6: 3 of {most} iterations were run;" in program.loops.notes[0]


def test_batches_of_one_size_have_no_last_one():
    data = TensorDataset(torch.zeros(1003, 2))
    loader = DataLoader(data, batch_size=10, drop_last=True)
    program = Program()
    assert program.run(BATCHES, loader=loader, wrap=iter) == [10, 10, 10]
    assert "last batch" not in program.loops.notes[0]


def test_a_stream_of_data():
    class Stream(IterableDataset):
        def __iter__(self):
            return (torch.zeros(2) for _ in itertools.count())

    program = Program()
    assert program.run(BATCHES, loader=DataLoader(Stream(), batch_size=4), wrap=iter) == [4, 4, 4]
    assert "only the first 3 iterations were run" in program.loops.notes[0]


def test_a_loader_that_is_repeated_for_ever():
    program = Program()
    loader = DataLoader(TensorDataset(torch.zeros(1000, 2)), batch_size=10)
    seen = program.run(BATCHES, loader=loader, wrap=itertools.cycle)
    assert len(seen) < 12


def test_loops_of_other_modules_over_a_loader():
    namespace = {}
    trainer = """
def train(loader, touch, optimizer, seen):
    for batch in loader:
        seen.append(len(batch[0]))
        touch(7)
        optimizer.step()
"""
    exec(compile(trainer, "/somewhere/trainer.py", "exec"), namespace)
    loader = DataLoader(TensorDataset(torch.zeros(1000, 2)), batch_size=10)
    program = Program()
    code = "train(loader, touch, optimizer, seen)"
    assert program.run(code, loader=loader, train=namespace["train"]) == [10, 10, 10]
    assert program.loops.notes[0].startswith("the loop at trainer.py:3: 3 of 100 iterations")


def test_lines_and_comprehensions_stay():
    tree = ast.parse("x = [i for i in y]\n\nfor a in (\n    b\n):\n    pass\n")
    bound = Program().loops.bind(tree)
    assert ast.unparse(bound).splitlines() == [
        "x = [i for i in y]",
        "for a in b if __traced__() else __bounded__(b, 'line 3'):",
        "    pass",
    ]
    assert [node.lineno for node in bound.body] == [1, 3]
    assert "__bounded__" not in ast.unparse(tree)
    compile(bound, "<cell>", "exec")


def test_a_wrong_number_of_steps():
    with pytest.raises(ValueError, match="the least is 1"):
        Loops(list, 0)


def test_a_function_that_is_pickled_with_its_globals_has_loops_without_ends():
    program = Program()
    program.run("def last(items):\n    for i in items:\n        pass\n    return i")
    assert cloudpickle.loads(cloudpickle.dumps(program.globals["last"]))([1, 2, 3]) == 3
