"""Names that user code can see, told without keeping anything alive."""

from __future__ import annotations

import gc
import random
import threading
import weakref

from gpumem_magic.sources.objects.namespaces import UserNames, names_of


class Thing:
    pass


def run(code, **names):
    """Run code as a cell's: at module level of a namespace of its own."""
    namespace = {"__name__": "__main__", "Thing": Thing, "ref": weakref.ref, **names}
    namespace["names"] = names_of(namespace)
    exec(compile(code, "<ipython-input-1>", "exec"), namespace)
    return namespace


def test_a_cells_names_are_its_namespace():
    found = run("a = 1\nseen = names()", b=2)["seen"]
    assert (found["a"], found["b"]) == (1, 2)


def test_locals_of_running_functions_count_and_the_innermost_wins():
    found = run(
        """
def inner(batch):
    hidden = "inner"
    return names()
def outer():
    hidden, model = "outer", "net"
    return inner("data")
model = "global"
seen = outer()
after = names()
"""
    )
    assert found["seen"]["hidden"] == "inner"
    assert found["seen"]["model"] == "net"
    assert found["seen"]["batch"] == "data"
    assert found["after"]["model"] == "global"
    assert "hidden" not in found["after"]


def test_functions_of_libraries_do_not_count():
    found = run("import functools\nseen = functools.reduce(lambda x, y: names(), [1, 2])")["seen"]
    assert found["x"] == 1
    found = run(
        "import json\nclass E(json.JSONEncoder):\n def default(self, given): return names()\n"
        "kept = []\nold = E.default\n"
        "E.default = lambda s, o: kept.append(old(s, o)) or 1\n"
        "E().encode({'k': Thing()})"
    )["kept"][0]
    assert "given" in found
    assert "_one_shot" not in found


def test_what_a_function_deletes_dies_at_once():
    found = run(
        """
def work():
    thing = Thing()
    alive = ref(thing)
    names()
    del thing
    return alive()
dead = work()
"""
    )
    gc.collect()
    assert found["dead"] is None


def test_a_function_that_holds_its_locals_keeps_them():
    found = run(
        """
def work():
    first = 1
    mine = locals()
    names()
    return mine
kept = work()
"""
    )
    assert found["kept"]["first"] == 1


def test_other_threads_are_answered_for_the_first_one():
    namespace = {"__name__": "__main__"}
    namespace["names"] = names_of(namespace)
    namespace["threading"] = threading
    code = """
def work():
    here = "main"
    seen = []
    thread = threading.Thread(target=lambda: seen.append(names()))
    thread.start()
    thread.join()
    return seen[0]
found = work()
"""
    exec(code, namespace)
    assert namespace["found"]["here"] == "main"


class Counted(dict):
    """A namespace that counts how many of its names are walked."""

    walked = 0

    def __iter__(self):
        for name in super().__iter__():
            self.walked += 1
            yield name

    def __reversed__(self):
        for name in super().__reversed__():
            self.walked += 1
            yield name


def without_entries(names):
    return [(k, v) for k, v in names.items() if not (k[0] == "_" and k.strip("_i").isdigit())]


def test_names_are_read_without_walking_the_entries_of_old_cells_again():
    own, names = UserNames(), Counted(x=1)
    walked = []
    for cell in range(1, 201):
        names[f"_i{cell}"] = "x = 2"
        names["x"] = cell
        names[f"_{cell}"] = cell
        names["passing"] = cell
        names.walked = 0
        assert own.read(names) == {"x": cell, "passing": cell}
        walked.append(names.walked)
        del names["passing"]
    assert max(walked[1:]) < 10


def test_names_that_come_and_go_are_read_in_their_order():
    chance = random.Random(5)
    own, names = UserNames(), {}
    for step in range(3_000):
        name = chance.choice(("a", "b", "c", "_i", "In", "_x1")) + chance.choice("_ab")
        if chance.random() < 0.3:
            names[f"_i{step}"] = "text"
        if chance.random() < 0.02:
            names.pop(next(iter(names), None), None)
        names[name] = step
        if chance.random() < 0.3:
            del names[chance.choice(list(names))]
        if chance.random() < 0.01:
            names = dict(names)
        if chance.random() < 0.5:
            assert list(own.read(names).items()) == without_entries(names)
