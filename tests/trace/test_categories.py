"""The table of trace/categories.py, row by row, and cells as an expert would read them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpumem_magic.trace import build_trace
from gpumem_magic.values.recording import Category, Frame, Phase

BACKWARD, OPTIMIZER = Phase.BACKWARD, Phase.OPTIMIZER


def kinds(recording):
    """Bytes at the peak: the sizes tell the blocks of a test apart."""
    return dict(build_trace(recording).at_peak)


def kind_of(recording, size):
    found = {block.category for block in build_trace(recording).blocks if block.size == size}
    (category,) = found
    return category


@pytest.mark.parametrize("category", list(Category))
def test_a_label_with_a_category_decides(script, frames, category):
    s = script()
    s.alloc("a", 512, 1, frames.moved)
    s.label("a", category)
    assert kinds(s.recording()) == {category: 512}


def test_of_several_labels_a_category_beats_a_name_and_the_later_the_earlier(script):
    s = script()
    s.alloc("a", 512, 1)
    s.label("a", Category.INPUT, "first", shape=(128,), dtype="float32")
    s.label("a", Category.BUFFER, "second")
    s.label("a", None, "third", graph=True)
    (block,) = build_trace(s.recording()).blocks
    assert (block.name, block.category, block.shape, block.dtype) == (
        *("second", Category.BUFFER),
        *((128,), "float32"),
    )


def test_a_label_means_the_block_alive_at_its_address_then(script):
    s = script()
    s.alloc("a", 512, 1, at=4096)
    s.label("a", Category.INPUT, "early")
    s.free("a", 1)
    s.alloc("b", 1024, 2, at=4096)
    s.label("b", Category.BUFFER, "late")
    s.alloc("c", 2048, 3)
    (c, b) = build_trace(s.recording()).blocks
    assert (b.size, b.name, b.category, b.line) == (1024, "late", Category.BUFFER, 2)
    assert (c.size, c.name) == (2048, None)


def test_a_label_for_an_address_that_is_free_names_nothing(script):
    s = script()
    s.alloc("a", 512, 1, at=4096)
    late = s.live["a"]
    s.free("a", 1)
    s.live["a"] = late
    s.label("a", Category.BUFFER, "gone")
    del s.live["a"]
    assert build_trace(s.recording()).blocks[0].name is None


def test_a_label_may_name_an_initial_block(script):
    s = script()
    s.initial("weight", 1024)
    s.label("weight", Category.PARAMETER, "model.weight")
    (block,) = build_trace(s.recording()).blocks
    assert (block.name, block.category, block.line) == ("model.weight", Category.PARAMETER, None)


def test_born_in_backward(script, frames):
    s = script()
    s.alloc("scratch", 512, 1, frames.engine, BACKWARD)
    s.alloc("grad", 1024, 1, frames.engine, BACKWARD)
    s.free("scratch", 1, frames.engine, BACKWARD)
    s.free("grad", 2)
    assert kinds(s.recording()) == {Category.GRADIENT: 1024, Category.TEMPORARY: 512}


def test_the_gradient_that_backward_starts_from_is_temporary_though_autograd_has_not_begun(
    script, frames
):
    s = script()
    s.alloc("root", 512, 1, frames.root)
    s.alloc("grad", 1024, 1, frames.engine, BACKWARD)
    s.free("root", 1, frames.engine[1:])
    assert kinds(s.recording()) == {Category.GRADIENT: 1024, Category.TEMPORARY: 512}


def test_a_gradient_that_outlives_its_backward_stays_one_if_the_next_backward_frees_it(
    script, frames
):
    s = script()
    s.alloc("root1", 512, 1, frames.root, BACKWARD)
    s.alloc("old", 1024, 1, frames.engine, BACKWARD)
    s.alloc("root2", 512, 2, frames.root, BACKWARD)
    s.alloc("new", 2048, 2, frames.engine, BACKWARD)
    s.free("old", 2, frames.engine, BACKWARD)
    assert kind_of(s.recording(), 1024) is Category.GRADIENT
    assert kind_of(s.recording(), 2048) is Category.GRADIENT


def test_born_in_an_optimizer(script):
    s = script()
    s.alloc("state", 1024, 1, phase=OPTIMIZER)
    s.alloc("scratch", 512, 1, phase=OPTIMIZER)
    s.free("scratch", 1, phase=OPTIMIZER)
    assert kinds(s.recording()) == {Category.OPTIMIZER_STATE: 1024, Category.TEMPORARY: 512}


@pytest.mark.parametrize(
    ("stack", "category"),
    [
        ([Frame("/t/torch/nn/modules/module.py", 900, "_apply")], Category.PARAMETER),
        ([Frame("/t/torch/nn/modules/linear.py", 90, "__init__")], Category.PARAMETER),
        ([Frame("C:\\t\\torch\\nn\\modules\\conv.py", 90, "__init__")], Category.PARAMETER),
        ([Frame("/t/torch/nn/parameter.py", 40, "__new__")], Category.PARAMETER),
        ([Frame("/t/mine.py", 90, "__init__")], Category.OTHER),
        (
            [
                Frame("/t/torch/nn/init.py", 500, "orthogonal_"),
                Frame("/t/torch/nn/modules/linear.py", 100, "reset_parameters"),
            ],
            Category.OTHER,
        ),
    ],
)
def test_where_a_module_is_built_or_moved(script, stack, category):
    s = script()
    s.alloc("a", 512, 1, tuple(stack))
    assert kinds(s.recording()) == {category: 512}


def test_named_tensors(script, frames):
    s = script()
    s.alloc("x", 512, 1)
    s.alloc("h", 1024, 2, frames.module())
    s.alloc("y", 2048, 3, frames.module())
    for key, graph in (("x", False), ("h", True), ("y", False)):
        s.label(key, name=key, graph=graph)
    assert kinds(s.recording()) == {
        Category.ACTIVATION: 1024,
        Category.INPUT: 512,
        Category.OTHER: 2048,
    }


def test_born_in_forward_and_freed_in_backward_is_an_activation(script, frames):
    s = script()
    s.initial("from an earlier cell", 4096)
    s.alloc("a", 512, 1)
    s.free("a", 1, frames.engine, BACKWARD)
    s.free("from an earlier cell", 1, frames.engine, BACKWARD)
    assert kinds(s.recording()) == {Category.ACTIVATION: 4608}


def test_freed_in_the_pass_of_its_line_is_temporary(script, frames):
    s = script()
    s.alloc("h", 1024, 1, frames.module())
    s.alloc("y", 512, 1, frames.module("other"))
    s.free("h", 1)
    s.label("y", name="y")
    assert kinds(s.recording()) == {Category.TEMPORARY: 1024, Category.OTHER: 512}


def test_what_one_stack_bears_in_a_loop_is_of_one_kind(script):
    """Only the last batch still has its name when labels are taken."""
    s = script()
    s.alloc("x0", 512, 1)
    s.alloc("other", 4096, 2)
    s.alloc("x1", 1024, 1)
    s.free("x0", 1)
    s.label("x1", name="x")
    assert kind_of(s.recording(), 512) is Category.INPUT


def test_survivors_on_a_line_that_made_a_graph_are_activations(script):
    s = script()
    s.alloc("intermediate", 1024, 1)
    s.alloc("loss", 512, 1, (Frame("/mine.py", 3, "f"),))
    s.alloc("elsewhere", 2048, 2)
    s.label("loss", name="loss", graph=True)
    assert kinds(s.recording()) == {Category.ACTIVATION: 1536, Category.OTHER: 2048}


@pytest.mark.parametrize("freed", [True, False])
@pytest.mark.parametrize("graphs", [True, False])
def test_survivors_of_a_module_are_activations_where_graphs_are_built(
    script, frames, graphs, freed
):
    s = script()
    s.alloc("h", 1024, 1, frames.module())
    s.alloc("z", 512, 2)
    s.label("z", name="z", graph=graphs)
    if freed:
        s.free("h", 2)
    expected = Category.ACTIVATION if graphs else Category.OTHER
    assert kind_of(s.recording(), 1024) is expected


def test_what_modules_hold_when_memory_runs_out_in_the_first_forward_is_activation(script, frames):
    s = script()
    s.alloc("h1", 1024, 1, frames.module())
    s.alloc("h2", 1024, 1, frames.module())
    s.fail(1 << 30, 1)
    assert kinds(s.recording(error="OutOfMemoryError")) == {Category.ACTIVATION: 2048}


@pytest.mark.parametrize("recorded", [True, False])
def test_what_a_graph_held_when_memory_ran_out_waited_though_the_failed_line_dropped_it(
    script, frames, recorded
):
    s = script()
    s.alloc("h", 1024, 1, frames.module())
    s.fail(1 << 30, 1)
    s.free("h", 1)
    found = s.recording(error="OutOfMemoryError")
    graph = np.array([recorded, False, False])
    found = replace(found, events=replace(found.events, graph=graph))
    assert kinds(found) == {Category.ACTIVATION if recorded else Category.TEMPORARY: 1024}


def test_nothing_known_is_other(script):
    s = script()
    s.initial("old", 512)
    s.alloc("a", 1024, 1)
    s.alloc("no stack", 2048)
    assert kinds(s.recording()) == {Category.OTHER: 3584}


def training_step(s, frames, step):
    s.alloc(f"x{step}", 1 << 9, 4)
    s.alloc(f"h{step}", 1 << 10, 5, frames.module())
    s.alloc(f"loss{step}", 1 << 11, 5)
    s.alloc("root", 1 << 12, 6, frames.root)
    s.alloc("scratch", 1 << 13, 6, frames.engine, BACKWARD)
    s.free(f"h{step}", 6, frames.engine, BACKWARD)
    s.alloc("grad", 1 << 14, 6, frames.engine, BACKWARD)
    s.free("scratch", 6, frames.engine, BACKWARD)
    s.free("root", 6, frames.engine[1:])
    if step == 0:
        s.alloc("state", 1 << 15, 7, phase=OPTIMIZER)
    s.alloc("update", 1 << 16, 7, phase=OPTIMIZER)
    s.free("update", 7, phase=OPTIMIZER)


def test_a_training_loop(script, frames):
    s = script()
    s.alloc("weight", 1 << 17, 2, frames.moved)
    s.label("weight", Category.PARAMETER, "model.weight")
    for step in range(3):
        if step:
            s.free("grad", 3)  # zero_grad(set_to_none=True)
        training_step(s, frames, step)
        if step:
            s.free(f"x{step - 1}", 4)
            s.free(f"loss{step - 1}", 5)
    s.label("x2", name="x")
    s.label("loss2", name="loss", graph=True)
    trace = build_trace(s.recording())
    assert trace.at_peak == {
        Category.PARAMETER: 1 << 17,
        Category.GRADIENT: 1 << 14,
        Category.OPTIMIZER_STATE: 1 << 15,
        Category.ACTIVATION: 2 << 11,
        Category.INPUT: 2 << 9,
        Category.TEMPORARY: 1 << 16,
    }
    assert trace.at_end == {
        Category.PARAMETER: 1 << 17,
        Category.GRADIENT: 1 << 14,
        Category.OPTIMIZER_STATE: 1 << 15,
        Category.ACTIVATION: 1 << 11,
        Category.INPUT: 1 << 9,
    }


def test_outputs_kept_in_a_list_without_no_grad(script, frames):
    s = script("for b in batches:\n    outs.append(model(b))\n")
    for i in range(4):
        s.alloc(f"h{i}", 1024, 2, frames.module())
        s.alloc(f"out{i}", 512, 2, frames.module("head"))
    for i in range(4):
        s.label(f"out{i}", name=f"outs[{i}]", graph=True)
    assert kinds(s.recording()) == {Category.ACTIVATION: 4 * 1536}


def test_inference_with_no_grad(script, frames):
    s = script()
    for i in range(3):
        s.alloc(f"x{i}", 256, 1)
        s.alloc(f"h{i}", 1024, 2, frames.module())
        s.alloc(f"y{i}", 512, 2, frames.module("head"))
        s.free(f"h{i}", 2, frames.module("head"))
        if i:
            s.free(f"x{i - 1}", 1)
            s.free(f"y{i - 1}", 2)
    s.label("x2", name="x")
    s.label("y2", name="y")
    trace = build_trace(s.recording())
    assert trace.at_peak == {
        Category.INPUT: 512,
        Category.TEMPORARY: 1024,
        Category.OTHER: 1024,
    }
    assert trace.at_end == {Category.INPUT: 256, Category.OTHER: 512}


def test_what_a_checkpoint_recomputes_is_temporary(script, frames):
    s = script()
    s.alloc("again", 1024, 1, (*frames.module(), *frames.engine), BACKWARD)
    s.alloc("grad", 512, 1, frames.engine, BACKWARD)
    s.free("again", 1, frames.engine, BACKWARD)
    assert kinds(s.recording()) == {Category.GRADIENT: 512, Category.TEMPORARY: 1024}


def test_gradients_of_two_losses_accumulate(script, frames):
    s = script()
    s.alloc("grad", 1024, 1, frames.engine, BACKWARD)
    s.alloc("loss", 512, 2)
    s.alloc("more", 1024, 3, frames.engine, BACKWARD)
    s.free("more", 3, frames.engine, BACKWARD)
    assert kinds(s.recording()) == {
        Category.GRADIENT: 1024,
        Category.TEMPORARY: 1024,
        Category.OTHER: 512,
    }
