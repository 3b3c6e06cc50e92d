"""Which module ran at a stack, told from where the `forward` of each class lies."""

from __future__ import annotations

import functools

import pytest

from gpumem_magic.sources.stacks import running
from gpumem_magic.sources.stacks.running import Forward, forwards_of, name_modules
from gpumem_magic.values.recording import Frame, Running

TORCH = "/lib/torch/nn/modules/"
CALL = (
    Frame(TORCH + "module.py", 1788, "_call_impl"),
    Frame(TORCH + "module.py", 1777, "_wrapped_call_impl"),
)
LINEAR, MLP = Forward(TORCH + "linear.py", 120, 134), Forward("m.py", 1, 4)
LINE = Frame("<cell>", 3, "<module>")


@pytest.fixture
def sources(monkeypatch):
    """The lines of the files, by file and number."""
    texts = {
        ("m.py", 2): "    x = self.up(x)\n",
        (TORCH + "linear.py", 134): "return F.linear(x)\n",
    }
    monkeypatch.setattr(
        "gpumem_magic.sources.stacks.running.linecache.getline",
        lambda name, line: texts.get((name, line), ""),
    )


def forward(at: Forward, line: int | None = None) -> Frame:
    return Frame(at.filename, at.last if line is None else line, "forward")


def only(stack, forwards):
    [running] = name_modules([stack], forwards).running
    return running


def test_modules_of_one_class_in_a_list_are_one():
    forwards = {"net": None, "net.h": None, "net.h[0]": MLP, "net.h[1]": MLP, "net.h[1].up": LINEAR}
    forwards |= {"net.tail": None, "net.tail[0]": LINEAR, "net.tail[1]": MLP, "net.tail[2]": LINEAR}
    paths = name_modules([], forwards).paths
    assert paths["net.h[0]"] == paths["net.h[1]"] == "net.h[0..1]"
    assert paths["net.h[1].up"] == "net.h[0..1].up"
    assert paths["net.tail[2]"] == "net.tail[0, 2]"
    assert paths["net.tail[1]"] == "net.tail[1]"
    many = {f"s[{i}]": LINEAR for i in range(0, 12, 3)}
    assert set(name_modules([], many).paths.values()) == {"s[0, 3, 6, ...]"}


def test_the_innermost_module_and_its_line(sources):
    forwards = {"net": MLP, "net.up": LINEAR}
    stack = (forward(LINEAR), *CALL, forward(MLP, 2), *CALL, LINE)
    assert only(stack, forwards) == Running("net.up", "return F.linear(x)", 4)


def test_of_several_the_one_that_the_callers_line_names(sources):
    forwards = {"net": MLP, "net.down": LINEAR, "net.up": LINEAR, "other.up": LINEAR}
    stack = (forward(LINEAR), *CALL, forward(MLP, 2), *CALL, LINE)
    assert only(stack, forwards).path == "net.up"


def test_a_module_that_nobody_names_belongs_to_the_one_around_it(sources):
    stack = (Frame("unknown.py", 5, "forward"), *CALL, forward(MLP, 3), *CALL, LINE)
    assert only(stack, {"net": MLP}).path == "net"
    assert only(stack, {"other": LINEAR}) is None


def test_a_decorator_between_the_call_and_forward_is_looked_through(sources):
    stack = (forward(MLP, 3), Frame("decorators.py", 9, "wrapper"), *CALL, LINE)
    assert only(stack, {"net": MLP}) == Running("net", "", 1)


def test_forward_called_as_a_function_is_no_module(sources):
    assert only((forward(MLP), LINE), {"net": MLP}) is None


def test_forwards_lie_where_the_classes_have_them():
    class Net:
        def forward(self, x):
            return x  # the last line

    class Wrapped:
        @functools.wraps(Net.forward)
        def forward(self, x):
            return x

    class Nothing:
        forward = None

    found = forwards_of({"net": Net, "wrapped": Wrapped, "nothing": Nothing})
    code = Net.forward.__code__
    assert found["net"].filename == __file__
    assert found["net"].first == code.co_firstlineno
    assert code.co_firstlineno < found["net"].last <= code.co_firstlineno + 3
    assert found["wrapped"] == found["net"]
    assert found["nothing"] is None


def test_many_modules_of_one_class_are_looked_at_once(sources, monkeypatch):
    """GIVEN a cell of many lines, each of which calls another module."""
    asked = []
    look = running._depth
    monkeypatch.setattr(running, "_depth", lambda path: asked.append(path) or look(path))
    lines = [Frame("<cell>", number, "<module>") for number in range(50)]
    stacks = [(forward(LINEAR), *CALL, line) for line in lines]
    named = {("<cell>", number): f"y = m{number}(x)\n" for number in range(50)}
    monkeypatch.setattr(running.linecache, "getline", lambda *place: named.get(place, ""))
    found = name_modules(stacks, {f"m{number}": LINEAR for number in range(50)}).running
    assert [one.path for one in found] == [f"m{number}" for number in range(50)]
    assert len(asked) == 50
