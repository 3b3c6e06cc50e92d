"""Where IPython keeps things alive: every place is known, and dropping it really lets go."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
from IPython.utils.capture import capture_output

from gpumem_magic.magics.shell_places import error_places, output_places, shell_roots
from gpumem_magic.values.inventory import HolderKind

THING = "class Thing: pass\nthing = Thing()"


@pytest.fixture
def run(shell):
    def run(cell):
        with capture_output():
            return shell.run_cell(cell, store_history=True)

    run(THING)
    return run


def watched(shell):
    return weakref.ref(shell.user_ns["thing"])


def held(places, thing):
    """Names of the places that hold the thing itself."""
    return [place.name for place in places if place.get() is thing]


def let_go(places):
    for place in places:
        place.drop()
    del places
    gc.collect()


def test_a_displayed_value_is_in_all_places_of_the_output_history(run, shell):
    number = shell.execution_count
    run("thing")
    alive = watched(shell)
    names = held(output_places(shell), alive())
    assert f"Out[{number}]" in names
    assert {"_", f"_{number}", "displayhook._", "last_execution_result.result"} <= set(names)
    assert f"user_ns_hidden['_{number}']" in names
    # WHEN the variable is deleted, THEN the value lives on, until these places are emptied
    run("del thing")
    assert alive() is not None
    let_go(output_places(shell))
    assert alive() is None
    # AND the history works as before
    assert run("1 + 1").success
    assert run("_ + 1").result == 3
    assert shell.user_ns["Out"] is shell.user_ns["_oh"]


@pytest.mark.parametrize("later", [0, 1, 2, 3])
def test_older_values_too(run, shell, later):
    run("thing")
    alive = watched(shell)
    for number in range(later):
        run(f"{number}")
    run("del thing")
    let_go(output_places(shell))
    assert alive() is None


def test_the_users_own_underscore_stays(run, shell):
    run("_, x = thing, 1")
    alive = watched(shell)
    run("del thing")
    assert held(output_places(shell), alive()) == []
    roots = [root for root in shell_roots(shell) if root.get() is alive()]
    assert [(root.kind, root.name) for root in roots] == [(HolderKind.VARIABLE, "_")]
    let_go(output_places(shell))
    assert alive() is not None
    assert shell.user_ns["_"] is alive()


RAISING = """
def work():
    inner = {}
    raise {}
work()
"""


@pytest.mark.parametrize(
    "error",
    [
        "ValueError('one')",
        "ValueError('two') from KeyError('cause')",
    ],
)
@pytest.mark.parametrize("later", [0, 1])
def test_what_an_error_keeps_is_let_go(run, shell, caplog, error, later):
    alive = watched(shell)
    result = run(RAISING.format("thing", error))
    assert not result.success
    del result
    run("del thing")
    for _ in range(later):
        run("1 + 1;")
    names = {place.name for place in error_places(shell)}
    assert {"sys.last_value", "sys.last_traceback", "InteractiveTB.tb"} <= names
    gc.collect()
    assert alive() is not None
    let_go(error_places(shell))
    assert alive() is None
    # AND %debug says so instead of failing
    assert not hasattr(sys, "last_traceback")
    with capture_output():
        shell.run_line_magic("debug", "")
    assert "No traceback has been produced" in caplog.text


def test_an_error_during_another_one(run, shell):
    alive = watched(shell)
    run("try:\n    inner = thing\n    1 / 0\nexcept ZeroDivisionError:\n    int('x')")
    run("del thing, inner")
    let_go(error_places(shell))
    assert alive() is None


def test_an_error_that_a_variable_has_keeps_what_it_has(run, shell):
    alive = watched(shell)
    run("def work(x):\n    raise ValueError\ntry:\n    work(thing)\nexcept ValueError as e:\n"
        "    kept = e\n    raise")  # fmt: skip
    run("del thing")
    let_go(error_places(shell))
    assert alive() is not None
    assert shell.user_ns["kept"].__traceback__ is not None
    run("del kept")
    gc.collect()
    assert alive() is None


def test_a_syntax_error_too(run, shell):
    run("x = (")
    assert "SyntaxTB" in [place.name for place in error_places(shell)]
    let_go(error_places(shell))
    assert error_places(shell) == ()


def test_without_errors_and_outputs_there_is_nothing(shell):
    assert error_places(shell) == ()
    assert [place.name for place in output_places(shell) if place.get() not in ("", None)] == []


def test_modules_of_run_and_hidden_names_are_places(run, shell, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("class Thing: pass\nscripted = Thing()\n")
    run(f"%run {script}")
    shell.push({"startup": shell.user_ns["thing"]}, interactive=False)
    run("del startup, thing")
    roots = {root.name: root for root in shell_roots(shell)}
    module = next(root for name, root in roots.items() if name.startswith("%run"))
    assert module.kind is HolderKind.MODULE_STATE
    assert type(module.get()["scripted"]).__name__ == "Thing"
    assert type(roots["user_ns_hidden['startup']"].get()).__name__ == "Thing"


def test_roots_keep_nothing_alive(run, shell):
    run("thing")
    run("1 / 0")
    alive = watched(shell)
    roots = shell_roots(shell)
    run("del thing")
    let_go(output_places(shell))
    gc.collect()
    assert alive() is None
    assert roots
