"""Capture and resolution of Python stacks, against what Python itself says of a frame."""

import gc
import sys
import threading
import weakref

from gpumem_magic.sources.stacks.callstacks import CallStacks
from gpumem_magic.values.recording import Frame
from tests.counting import lines_run


def compiled(source, filename, **names):
    """The names that a module of this source and file name would hold."""
    exec(compile(source, filename, "exec"), names)
    return names


def expected(frame):
    found = []
    while frame is not None:
        found.append(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(found)


def test_a_stack_is_what_python_says_of_it():
    stacks = CallStacks()

    def leaf():
        frame = sys._getframe()
        # the whole call is one line, so that both see the same line number
        return stacks.capture(frame), expected(frame)

    index, told = leaf()

    assert stacks.resolve(index) == told


def test_one_number_per_distinct_stack():
    stacks = CallStacks()

    def leaf():
        return stacks.capture(sys._getframe())

    same = {leaf() for _ in range(3)}
    other = leaf()

    assert len(same) == 1
    assert other not in same
    assert len(stacks.stacks()) == 2
    assert stacks.stacks() == (stacks.resolve(same.pop()), stacks.resolve(other))


def test_equal_code_of_two_files_is_told_apart():
    """Code objects compare equal without regard to their file; two cells may hold the same text."""
    stacks = CallStacks()
    source = "def leaf():\n    return capture(getframe())\n"
    names = {"capture": stacks.capture, "getframe": sys._getframe}
    first, second = (compiled(source, file, **names)["leaf"] for file in ("one.py", "two.py"))

    found = [stacks.resolve(leaf())[0] for leaf in (first, second, first)]

    assert first.__code__ == second.__code__
    assert [frame.filename for frame in found] == ["one.py", "two.py", "one.py"]


def test_code_that_was_replaced_keeps_its_stack():
    """GIVEN a function that is gone after its capture WHEN many others take its place in memory
    THEN each stack still names its own function."""
    stacks = CallStacks()
    names = {"capture": stacks.capture, "getframe": sys._getframe}
    indices = []
    for n in range(50):
        indices.append(
            compiled(f"def f{n}():\n  return capture(getframe())", "x.py", **names)[f"f{n}"]()
        )
        gc.collect(0)

    assert [stacks.resolve(i)[0].function for i in indices] == [f"f{n}" for n in range(50)]


def test_lines_of_multi_line_calls_and_loops():
    stacks = CallStacks()
    source = (
        "def leaf():\n"
        "    return capture(getframe())\n"
        "found = [\n"
        "    leaf(),\n"
        "    leaf(),\n"
        "]\n"
        "for _ in range(2):\n"
        "    found.append(\n"
        "        leaf()\n"
        "    )\n"
    )
    found = compiled(source, "cell.py", capture=stacks.capture, getframe=sys._getframe)["found"]

    assert [stacks.resolve(i)[1].line for i in found] == [4, 5, 9, 9]
    assert len(set(found)) == 3


def test_a_capture_keeps_no_frame_and_no_local_alive():
    stacks = CallStacks()

    class Thing:
        pass

    def leaf():
        thing = Thing()
        stacks.capture(sys._getframe())
        return weakref.ref(thing)

    assert leaf()() is None


def test_frames_below_the_cell_are_left_out_and_only_until_the_end():
    """GIVEN a shell's run_cell_async that runs a cell through run_code, as IPython does."""
    stacks = CallStacks()
    shell = compiled(
        "def run_cell_async(body):\n    begin(getframe())\n    return run_code(body)\n"
        "def run_code(body):\n    return body()\n",
        "/site-packages/IPython/core/interactiveshell.py",
        begin=stacks.begin,
        getframe=sys._getframe,
    )
    names = {"capture": stacks.capture, "getframe": sys._getframe, **shell}
    cell = compiled("def body():\n    return capture(getframe())\n", "cell.py", **names)["body"]
    nested = compiled(
        "def outer():\n    return run_cell_async(cell)\n", "outer.py", cell=cell, **names
    )["outer"]

    alone = stacks.resolve(shell["run_cell_async"](cell))
    inside_another = stacks.resolve(shell["run_cell_async"](nested))
    stacks.end()

    assert alone == (Frame("cell.py", 2, "body"),)
    # the nested shell's own begin() must find the outermost cell again
    assert inside_another[0] == Frame("cell.py", 2, "body")
    assert inside_another[-1] == Frame("outer.py", 2, "outer")
    assert (
        stacks.resolve(cell())[1].function
        == "test_frames_below_the_cell_are_left_out_and_only_until_the_end"
    )


def test_a_thread_has_its_whole_stack():
    stacks = CallStacks()
    stacks.begin(sys._getframe())
    found = []
    thread = threading.Thread(target=lambda: found.append(stacks.capture(sys._getframe())))
    thread.start()
    thread.join()

    frames = stacks.resolve(found[0])

    assert frames[0].function == "<lambda>"
    assert frames[-1].function == "_bootstrap"


def test_dispatching_frames_are_not_shown():
    stacks = CallStacks()
    names = {"capture": stacks.capture, "getframe": sys._getframe}
    own = CallStacks.capture.__code__.co_filename
    source = "def step(inner=None):\n    return inner() if inner else capture(getframe())\n"
    files = (
        own,
        "/x/torch/utils/_python_dispatch.py",
        "/x/torch/overrides.py",
        "/x/torch/nn/linear.py",
    )
    ours, dispatch, overrides, linear = (compiled(source, f, **names)["step"] for f in files)

    index = linear(lambda: overrides(lambda: dispatch(ours)))

    shown = [frame.filename for frame in stacks.resolve(index)]
    assert "/x/torch/nn/linear.py" in shown
    assert not {own, *files[1:3]} & set(shown)


def test_the_name_of_a_cell_is_the_same_in_all_versions():
    stacks = CallStacks()
    names = {"capture": stacks.capture, "getframe": sys._getframe}
    code = compile("found = capture(getframe())", "cell.py", "exec")
    exec(code.replace(co_name="<cell line: 1>"), names)

    assert stacks.resolve(names["found"])[0] == Frame("cell.py", 1, "<module>")


def test_a_long_line_table_is_read_once():
    """GIVEN a function of many lines WHEN stacks of all of them are resolved THEN that takes as
    many steps a line as in a short one."""

    def steps(lines):
        stacks = CallStacks()
        source = "def long():\n" + "    capture(getframe())\n" * lines
        compiled(source, "long.py", capture=stacks.capture, getframe=sys._getframe)["long"]()
        count, found = lines_run(lambda: [stack[0].line for stack in stacks.stacks()])
        assert found == list(range(2, lines + 2))
        return count

    assert steps(400) <= 2.1 * steps(200)


def test_an_instruction_that_the_interpreter_made_faster_is_the_same():
    stacks = CallStacks()

    class Data:
        def __getitem__(self, index):
            return stacks.capture(sys._getframe())

    data = Data()
    found = {data[i] for i in range(100)}
    other = data[0]

    first = stacks.first_alike()
    assert {first[each] for each in found} == {min(found)}
    assert first[other] == other
