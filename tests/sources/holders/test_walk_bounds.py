"""How far a look goes: by what there is to look at, never by the time that it takes."""

from __future__ import annotations

import sys
import time

import pytest

from gpumem_magic.magics.shell_places import shell_roots
from gpumem_magic.sources.holders import Looked, break_down, take_inventory, walk
from gpumem_magic.values.inventory import HolderKind as Kind

MIB = 1 << 20
BIG = "torch.ones(1 << 18, device='cuda')"
RING = f"ring = [{BIG}]\nring.append(ring)\ndel ring"
MODULE = (
    f"import sys, types\nd = sys.modules['other'] = types.ModuleType('other')\nd.k = {BIG}\ndel d"
)
MANY = "xs = [[i, {}, torch.zeros(1, requires_grad=True)] for i in range(999)]"


def look(notebook, **how):
    names = notebook.shell.user_ns
    return take_inventory(notebook.source, names, shell_roots(notebook.shell), **how)


@pytest.mark.parametrize("cells", [[RING], [MANY, RING], [MANY, MODULE]])
def test_a_slow_machine_finds_the_same_holder(notebook, cells, monkeypatch, request):
    # GIVEN a machine on which each look at the clock is an hour later than the one before
    notebook.run(*cells)
    request.addfinalizer(lambda: sys.modules.pop("other", None))
    hours = iter(range(0, 10**9, 3600))
    for clock in ("thread_time", "process_time", "perf_counter", "monotonic", "time"):
        monkeypatch.setattr(time, clock, lambda: float(next(hours)))

    found = look(notebook)

    assert found.size_of(Kind.UNKNOWN) == 0
    assert found.notes == ()


def test_many_lost_tensors_are_found_together(notebook):
    notebook.run(f"for _ in range(100):\n    ring = [{BIG}]\n    ring.append(ring)\ndel ring")

    assert look(notebook).size_of(Kind.CYCLE) == 100 * MIB


def test_a_name_for_operators_leads_no_further(notebook):
    notebook.run("x = torch.ones(8, device='cuda')")
    before, after = Looked(), Looked()
    look(notebook, looked=before)
    notebook.run(
        "aten = torch.ops.aten\n"
        "for n in dir(torch._C._VariableFunctions):\n    getattr(aten, n, None)"
    )

    look(notebook, looked=after)

    assert after.objects < before.objects + 50


def test_a_long_chain_is_followed_to_its_end(notebook):
    notebook.run(f"ring = end = []\nfor _ in range(50):\n    ring = [ring]\nend += [ring, {BIG}]")
    notebook.run("del ring, end")

    assert look(notebook).size_of(Kind.CYCLE) == MIB


def test_what_is_beyond_the_bound_is_said_to_be_unknown(notebook):
    notebook.run(MANY, f"s = iter([[{BIG}]])")

    found = look(notebook, most=1)

    assert found.size_of(Kind.UNKNOWN) + found.size_of(Kind.VARIABLE) == MIB
    assert bool(found.notes) == bool(found.size_of(Kind.UNKNOWN))


def test_beyond_the_bound_the_way_back_finds_the_variable(notebook):
    notebook.run(f"x = {BIG}")

    (holding,) = look(notebook, most=0).holdings

    assert (holding.kind, holding.name) == (Kind.VARIABLE, "x")


def test_where_nothing_is_unknown_there_is_no_such_note(notebook):
    notebook.run(f"x = {BIG}", MANY)

    assert look(notebook, most=0).notes == ()


def test_of_many_objects_the_rest_is_left_when_all_is_explained(notebook, monkeypatch):
    notebook.run(f"x = {BIG}", "xs = [[torch.zeros(1, requires_grad=True)] for _ in range(20_000)]")
    monkeypatch.setattr(walk, "_MANY", 100)
    looked = Looked()

    found = look(notebook, looked=looked)

    assert (found.size_of(Kind.VARIABLE), found.notes) == (MIB, ())
    assert looked.objects < 20_000
    assert looked.unexplained == 0


class Interrupts:
    """Tells no holder of anything: Ctrl-C falls on it."""

    kind, name, unneeded = Kind.MODULE_STATE, "there", None

    def nodes(self):
        raise KeyboardInterrupt


def test_an_interrupt_ends_the_look_with_what_was_found(notebook):
    notebook.run(f"x = {BIG}", RING)
    roots = [*shell_roots(notebook.shell)]
    names, source = notebook.shell.user_ns, notebook.source
    looked = Looked()
    original = walk.Walk._ends_at

    def interrupted(self, end, to_the_end):
        if len(self.reached.found) == 1:
            raise KeyboardInterrupt
        return original(self, end, to_the_end)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk.Walk, "_ends_at", interrupted)
        found = take_inventory(source, names, roots, looked)

    assert found.size_of(Kind.VARIABLE) == MIB
    assert found.size_of(Kind.UNKNOWN) == MIB
    assert "not everything looked at" in found.notes[0]
    assert "interrupt" in found.notes[0]


def test_without_anyone_to_tell_an_interrupt_goes_on(notebook):
    notebook.run(f"x = {BIG}")
    names, source = notebook.shell.user_ns, notebook.source

    with pytest.raises(KeyboardInterrupt):
        take_inventory(source, names, [Interrupts()])
    with pytest.raises(KeyboardInterrupt):
        break_down(source, {**names, "y": 1}, [Interrupts()], "y")


def test_a_look_that_ends_early_still_tells_who_else_holds(notebook, monkeypatch):
    notebook.run(f"x = {BIG}", "x")
    monkeypatch.setattr(walk, "_MANY", 0)
    monkeypatch.setattr(walk, "_CHECK", 1)

    (found,) = [h for h in look(notebook).holdings if h.size == MIB]

    assert found.name == "x"
    assert "Out[3]" in found.also
