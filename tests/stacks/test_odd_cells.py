"""Odd cells: each shows and leaves the same without the extension, with it, with the mark above,
and with every cell measured; on the device the same as on the host."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import io
import multiprocessing
import os
import random
import re
import signal
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from IPython.core import async_helpers

from tests.conftest import fresh_shell

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).parent / "odd_cells"
TOPICS = sorted(path.stem for path in FOLDER.glob("*.txt"))
MARK = "%%gpumem -q"
FIRST = "#%gpumem -q"  # what stands in the mark's place without it; blank to Python like the mark
LEAVING_GARBAGE = {"rare"}
"""Topics whose cells leave what speaks when it is collected: it is between two cells."""

WAYS = ("plain", "unmarked", "marked", "on")

NOT_THE_CELLS = (
    (r"<ipython-input-\d+-\w+>", "<cell>"),
    (r"0x[0-9a-f]+", "0x"),
    (r"(CPU times|Wall time|Compiler *):.*", r"\1"),
    (r"[\d.]+ \S*s ± .* per loop .*", "per loop"),
    (r"in [\d.]+s\b", "in s"),
    (r"(, )?device='cuda(:0)?'", ""),
    (r"cuda(:0)?", "cpu"),
    (r"%%gpumem -q", FIRST),
)
"""What differs from run to run, and the device's name."""
LINE_OF_ON = re.compile(r"(?:peak|nothing allocated or freed) .* · .*\n")


def cells_of(topic):
    """Names and texts, as `#: name` separates them."""
    found = re.split(
        r"^#: (.*)\n", (FOLDER / f"{topic}.txt").read_text("utf-8"), flags=re.MULTILINE
    )
    return list(zip(found[1::2], found[2::2], strict=True))


def typed(name, text, way):
    """The cell as it is typed: all have as many lines above, but where another magic is first."""
    if way == "marked":
        return f"{MARK}\n{text}"
    if text.startswith("%%") or name.endswith("(alone)"):
        return text
    indentation = text[: len(text) - len(text.lstrip(" "))]
    return f"{indentation}{FIRST}\n{text}"


def without_first(lines):
    return ["\n", *lines[1:]] if lines and lines[0].startswith(FIRST) else lines


class Stream(io.TextIOBase):
    """Notes what is written, in one list with all other output."""

    encoding = "utf-8"

    def __init__(self, kind, shown):
        self._kind, self._shown = kind, shown

    def write(self, text):
        if not text:
            return 0
        if self._shown and self._shown[-1][0] == self._kind:
            text = self._shown.pop()[1] + text
        self._shown.append((self._kind, text))
        return len(text)


def play(way, topic, folder, answer):
    """Run the cells of a topic in one shell; for a process of its own."""
    Path(folder).mkdir()
    os.chdir(folder)
    sys.path.insert(0, folder)
    shown = []
    _leave_event_loop()
    try:
        with fresh_shell() as shell:
            answer.send(list(run_all(shell, shown, way, topic)))
    except BaseException as error:
        answer.send(f"{type(error).__name__}: {error}")


def _leave_event_loop():
    """A forked process shares the pipe that wakes the loop of an earlier test: it may take what was
    written for another."""
    async_helpers._asyncio_event_loop = None
    asyncio.set_event_loop(asyncio.new_event_loop())


def run_all(shell, shown, way, topic):
    prepare(shell, shown, way)
    gc.freeze()  # what is here already is no cell's
    kept = sys.stdout, sys.stderr
    for name, text in cells_of(topic):
        shown.clear()
        sys.stdout, sys.stderr = Stream("stdout", shown), Stream("stderr", shown)
        streams = sys.stdout, sys.stderr
        try:
            result = shell.run_cell(typed(name, text, way), store_history=True)
            untouched = streams == (sys.stdout, sys.stderr)
            if way == "on":
                drop_line_of_on(shown)
            found = [(kind, clean(text)) for kind, text in shown]
            told = outcome(shell, result)
        finally:
            sys.stdout, sys.stderr = kept
        if topic in LEAVING_GARBAGE:
            gc.collect()
        yield name, {"shown": found, "streams": untouched, **told}


def prepare(shell, shown, way):
    shell.input_transformers_cleanup.append(without_first)
    shell.display_formatter.active_types = shell.display_formatter.format_types
    shell.display_pub.publish = lambda data, *rest, **how: shown.append(("display", str(data)))
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    shell.user_ns["device"] = "cpu" if way == "plain" else "cuda"
    if way != "plain":
        shell.run_line_magic("load_ext", "gpumem_magic")
        shell.run_line_magic("gpumem", "--on" if way == "on" else "--off")


def drop_line_of_on(shown):
    if shown and shown[-1][0] == "stdout":
        text = shown.pop()[1]
        *_, (begin, end) = [found.span() for found in LINE_OF_ON.finditer(text)] or [(0, 0)]
        if before := text[:begin] + text[end:]:
            shown.append(("stdout", before))


def outcome(shell, result):
    names = shell.user_ns
    count, out = shell.execution_count, names.get("Out", {})
    return {
        "result": described(result.result),
        "errors": [type(e).__name__ for e in (result.error_before_exec, result.error_in_exec)],
        "underscores": [described(names.get(name)) for name in ("_", "__", "___")],
        "out": (sorted(out), described(out.get(count - 1)), count),
        "names": sorted(names),
        **state(),
    }


def clean(text):
    for pattern, instead in (*NOT_THE_CELLS, (re.escape(str(Path.cwd())), "")):
        text = re.sub(pattern, instead, text)
    return text


def described(value):
    try:
        return clean(repr(value))
    except Exception as error:
        return type(error).__name__


def state():
    """What a cell may have changed in the process."""
    digest = hashlib.sha256(repr(random.getstate()).encode())
    digest.update(repr(np.random.get_state()).encode())
    digest.update(torch.get_rng_state().numpy().tobytes())
    return {
        "random numbers": digest.hexdigest()[:8],
        "tracing": described((sys.gettrace(), sys.getprofile())),
        "filters": len(warnings.filters),
        "Ctrl-C": described(signal.getsignal(signal.SIGINT)),
        "threads": sorted(t.name for t in threading.enumerate() if "waitpid" not in t.name),
        "folder": clean(str(Path.cwd())),
        "limit": sys.getrecursionlimit(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "dtype": str(torch.get_default_dtype()),
    }


@pytest.mark.parametrize("topic", TOPICS)
def test_cells_are_as_without_us(topic, tmp_path):
    context, answers, processes = multiprocessing.get_context("fork"), {}, []
    for way in WAYS:
        answers[way], theirs = context.Pipe(duplex=False)
        where = way, topic, str(tmp_path / way), theirs
        processes.append(context.Process(target=play, args=where))
        processes[-1].start()
    found = {way: answer.recv() for way, answer in answers.items()}
    for process in processes:
        process.join()
    assert [told for told in found.values() if isinstance(told, str)] == []
    for way in WAYS[1:]:
        assert differences(found["plain"], found[way]) == []
        assert "gpumem_magic" not in str(found[way])


def differences(plain, other):
    return [
        f"{name}: {field}\n  plain {was[field]}\n  other {now[field]}"
        for (name, was), (_, now) in zip(plain, other, strict=True)
        for field in was
        if was[field] != now[field]
    ]


def test_there_are_enough_of_them():
    names = [name for topic in TOPICS for name, _ in cells_of(topic)]
    assert len(names) == len({(topic, name) for topic in TOPICS for name, _ in cells_of(topic)})
    assert len(names) > 500
