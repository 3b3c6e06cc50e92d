"""Who allocated, line by line and module by module: every byte in one place."""

from __future__ import annotations

from gpumem_magic.trace import build_trace
from gpumem_magic.values.findings import CallNode
from gpumem_magic.values.recording import Category, Modules, Phase, Running

UP = Running("net.h[0..1].up", "return F.linear(x)", 2)
HEAD = Running("net.head", "return F.linear(x)", 2)
PATHS = {"net": "net", "net.h[0].up": "net.h[0..1].up", "net.h[1].up": "net.h[0..1].up"}
SOURCE = "x = make()\nloss = net(x)\nloss.backward()\nopt.step()\n"


def tree_of(s, frames):
    """The tree, where frames of `linear` are of `h[..].up` and those of `head` of the head."""
    known = {frames.module(): UP, frames.module("head"): HEAD}
    running = tuple(known.get(stack[:2]) for stack in s.stacks)
    return build_trace(s.recording(modules=Modules(PATHS, running))).call_tree


def test_without_modules_there_is_none(script):
    s = script(SOURCE)
    s.alloc("x", 512, 1)
    assert build_trace(s.recording()).call_tree == ()


def test_activations_lie_below_the_modules_that_made_them(script, frames):
    s = script(SOURCE)
    s.alloc("x", 1024, 1)
    s.alloc("a", 4096, 2, frames.module())
    s.alloc("b", 2048, 2, frames.module())
    s.alloc("c", 512, 2, frames.module("head"))
    s.free("c", 2, frames.module("head"))
    s.alloc("d", 512, 2, frames.module("head"))
    s.free("b", 2)
    assert tree_of(s, frames) == (
        CallNode("line 2  loss = net(x) > net", 0, 6656, 7168, 4608),
        CallNode("h[0..1] > up > return F.linear(x)", 1, 6144, 6144, 4096),
        CallNode("head > return F.linear(x)", 1, 512, 1024, 512),
        CallNode("line 1  x = make()", 0, 1024, 1024, 1024),
    )


def test_a_comparison_in_the_source_is_no_step(script, frames):
    """It would be taken apart as if `0:` were called."""
    s = script("if net(x) > 0: pass\n")
    s.alloc("a", 4096, 1, frames.module())
    (node,) = tree_of(s, frames)
    steps = node.name.split(" > ")
    assert steps[0].replace("\u00a0", " ") == "line 1  if net(x) > 0: pass"
    assert steps[1:] == ["net", "h[0..1]", "up", "return F.linear(x)"]


def test_what_a_module_has_is_told_with_it_wherever_it_was_allocated(script, frames):
    s = script(SOURCE)
    s.initial("p", 8192)
    s.label("p", Category.PARAMETER, "net.h[0].up.weight")
    s.alloc("g", 8192, 3, phase=Phase.BACKWARD)
    s.label("g", Category.GRADIENT, "net.h[0].up.weight.grad")
    s.alloc("t", 512, 3, phase=Phase.BACKWARD)
    s.alloc("m", 4096, 4, phase=Phase.OPTIMIZER)
    s.label("m", Category.OPTIMIZER_STATE, "opt.state[net.h[1].up.weight]['exp_avg']")
    assert tree_of(s, frames) == (
        CallNode("line 3  loss.backward()", 0, 8704, 8704, 8704),
        CallNode("net > h[0..1] > up > gradient", 1, 8192, 8192, 8192),
        CallNode("(backward)", 1, 512, 512, 512),
        CallNode("(before the cell) > net > h[0..1] > up > parameter", 0, 8192, 0, 0),
        CallNode("line 4  opt.step() > net > h[0..1] > up > optimizer state", 0, *[4096] * 3),
    )


def test_what_is_small_is_told_together_and_the_sums_stay_whole(script, frames):
    s = script("\n".join(f"x{i} = {i}" for i in range(9)))
    s.alloc("large", 1 << 20, 1)
    for line in range(2, 8):
        s.alloc(f"x{line}", 512, line)
    tree = tree_of(s, frames)
    assert [node.name for node in tree] == ["line 1  x0 = 0", "(6 smaller)"]
    assert sum(node.at_peak for node in tree) == (1 << 20) + 6 * 512


def test_blocks_say_which_module_made_them(script, frames):
    s = script(SOURCE)
    s.alloc("a", 4096, 2, frames.module())
    s.alloc("x", 512, 1)
    running = tuple(UP if len(stack) > 1 else None for stack in s.stacks)
    blocks = build_trace(s.recording(modules=Modules(PATHS, running))).blocks
    assert [block.module for block in blocks] == ["net.h[0..1].up", ""]
