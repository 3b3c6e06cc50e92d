"""A measured cell in a real kernel: replies, outputs and their order, interrupts, progress."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

manager = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Answer:
    """What one execution came to: the reply's content, and the outputs that answer to the cell."""

    reply: dict
    outputs: list

    def texts(self, kind):
        return [
            content["text"] if kind == "stream" else content["data"].get("text/plain", "")
            for found, content in self.outputs
            if found == kind
        ]


class Kernel:
    def __init__(self, folder):
        self.manager = manager.KernelManager(kernel_name="python3")
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self.manager.kernel_spec.argv[:] = command
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "IPYTHONDIR": str(folder)}
        self.manager.start_kernel(env=environment)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def run(self, code, meanwhile=None, patience=120):
        """Execute and collect; `meanwhile(outputs)` is called after each output. patience: seconds.

        For a moment after an error a kernel aborts what it is asked: then ask again.
        """
        answer = self._run_once(code, meanwhile, patience)
        while answer.reply["status"] == "aborted":
            answer = self._run_once(code, meanwhile, patience)
        return answer

    def _run_once(self, code, meanwhile, patience):
        """The answer to one request: whole once the kernel is idle; one that was interrupted while
        it wrote may never say so, but replies."""
        sent, reply = self.client.execute(code), None
        outputs, deadline, silent = [], time.monotonic() + patience, 0
        while reply is None or silent < 3:
            assert time.monotonic() < deadline, "the kernel does not answer"
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except (queue.Empty, ValueError):  # half of a message: its writing was interrupted
                reply, silent = reply or self._reply(sent, 0), silent + 1
                continue
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content, silent = message["msg_type"], message["content"], 0
            if kind == "status" and content["execution_state"] == "idle":
                reply = reply or self._reply(sent, 60)
                break
            if kind not in ("status", "execute_input"):
                outputs.append((kind, content))
                if meanwhile:
                    meanwhile(outputs)
        assert reply is not None, "the kernel is idle and does not reply"
        return Answer(reply, outputs)

    def _reply(self, sent, timeout):
        """The content of the reply to a request; None where it does not come in time."""
        with contextlib.suppress(queue.Empty):
            while True:
                reply = self.client.get_shell_msg(timeout=timeout)
                if reply["parent_header"].get("msg_id") == sent:
                    return reply["content"]
        return None


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    kernel = Kernel(tmp_path_factory.mktemp("ipython"))
    yield kernel
    kernel.close()


@pytest.fixture
def loaded(kernel):
    answer = kernel.run("%load_ext gpumem_magic\n%gpumem --device T4\n%gpumem --reset")
    assert answer.reply["status"] == "ok", answer.reply
    yield kernel
    assert kernel.run("%unload_ext gpumem_magic").reply["status"] == "ok"
    left = kernel.run(
        "import torch, threading\n"
        "from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes\n"
        "from torch.overrides import _get_current_function_mode_stack as functions\n"
        "print(modes(), functions(), [t.name for t in threading.enumerate() if 'gpumem' in t.name])"
    )
    assert "".join(left.texts("stream")) == "[] [] []\n"


def test_the_report_stands_below_the_cells_own_output(loaded):
    answer = loaded.run(
        "%%gpumem\nimport torch\nprint('mine')\nx = torch.ones(1 << 20, device='cuda')\nx.is_cuda"
    )
    assert answer.reply["status"] == "ok"
    kinds = [kind for kind, _ in answer.outputs]
    assert kinds == ["stream", "execute_result", "display_data"]
    assert answer.texts("execute_result") == ["True"]
    data = answer.outputs[-1][1]["data"]
    assert "4.00 MiB" in data["text/plain"]
    assert "<table" in data["text/html"]


def test_an_error_is_the_reply_with_the_line_that_failed(loaded):
    answer = loaded.run(
        "%%gpumem\nimport torch\n\nx = torch.ones(1 << 20, device='cuda')\n1 / 0  # here"
    )
    assert answer.reply["status"] == "error"
    assert answer.reply["ename"].endswith("ZeroDivisionError'>") or (
        answer.reply["ename"] == "ZeroDivisionError"
    )
    kinds = [kind for kind, _ in answer.outputs]
    assert kinds == ["error", "display_data"]
    traceback = "\n".join(answer.outputs[0][1]["traceback"])
    assert "# here" in traceback
    assert "5" in traceback
    assert "4.00 MiB" in answer.texts("display_data")[0]


def test_run_all_stops_at_a_measured_cell_that_fails(loaded):
    first = loaded.client.execute("%%gpumem -q\nimport time\ntime.sleep(0.5)\n1 / 0")
    second = loaded.client.execute("print('not reached')")
    status = {}
    while len(status) < 2:
        message = loaded.client.get_shell_msg(timeout=60)
        status[message["parent_header"]["msg_id"]] = message["content"]["status"]
    assert status[first] == "error"
    assert status[second] in ("aborted", "error")


def test_out_of_memory_is_reported_and_the_kernel_goes_on(loaded):
    answer = loaded.run("%%gpumem\nimport torch\nbig = torch.empty(20 << 30, device='cuda')")
    assert answer.reply["status"] == "error"
    assert "OutOfMemoryError" in answer.reply["ename"]
    assert "out of memory" in answer.texts("display_data")[0].lower()
    assert loaded.run("%%gpumem -q\ntorch.ones(1, device='cuda')").reply["status"] == "ok"


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("import asyncio\nawait asyncio.sleep(0, 'woke')", ["'woke'"]),
        ("%%time\n40 + 2", ["42"]),
        ("!echo hello", []),
        ("7;", []),
        ("'''a\n  b'''", ["'a\\n  b'"]),
        ("get_ipython().run_cell('6 * 7')\n5", ["42", "5"]),
    ],
)
def test_a_cell_shows_what_it_shows_without_the_mark(loaded, cell, expected):
    plain, marked = loaded.run(cell), loaded.run(f"%%gpumem\n{cell}")
    assert plain.reply["status"] == marked.reply["status"] == "ok"
    assert marked.texts("execute_result") == plain.texts("execute_result") == expected
    if "%%time" not in cell:
        assert "".join(marked.texts("stream")) == "".join(plain.texts("stream"))
    assert len(marked.texts("display_data")) == 1


@pytest.mark.parametrize(
    # a kernel cancels an `await` only when it next wakes up, with or without the mark
    "wait",
    ["import time\ntime.sleep(60)", "import asyncio\nwhile True:\n    await asyncio.sleep(0.1)"],
)
def test_an_interrupt_ends_cell_progress_and_measurement(loaded, wait):
    interrupted = []

    def interrupt(outputs):
        if outputs[-1][0] == "update_display_data" and not interrupted:
            interrupted.append(True)
            loaded.manager.interrupt_kernel()

    answer = loaded.run(
        f"%%gpumem\nimport torch\nx = torch.ones(1 << 20, device='cuda')\n{wait}", interrupt
    )
    assert answer.reply["status"] == "error"
    assert interrupted
    ids = {
        content["transient"]["display_id"]
        for kind, content in answer.outputs
        if content.get("transient")
    }
    assert len(ids) == 1  # one output follows the cell, and it answers to the cell
    assert "4.00 MiB allocated" in answer.texts("display_data")[0]
    assert answer.texts("update_display_data")[-1] == ""
    assert "4.00 MiB" in answer.texts("display_data")[-1]
    assert loaded.run("%%gpumem -q\n1").reply["status"] == "ok"


def test_every_cell_shows_one_line(loaded):
    loaded.run("%gpumem --on")
    answer = loaded.run("import torch\ny = torch.ones(1 << 20, device='cuda')")
    loaded.run("%gpumem --off")
    lines = "".join(answer.texts("stream")).splitlines()
    assert len(lines) == 1
    assert "4.00 MiB" in lines[0]


def test_options_complete_in_a_notebook(loaded):
    content = loaded.client.complete("x = 1\n%gpumem --comp", reply=True, timeout=60)["content"]
    assert "--compare" in content["matches"]
    content = loaded.client.complete("%%gpumem --dev", reply=True, timeout=60)["content"]
    assert "--device" in content["matches"]


def test_a_wrong_option_runs_nothing(loaded):
    answer = loaded.run("%%gpumem --nmae x\nran = True")
    assert answer.reply["status"] == "error"
    assert "--nmae" in answer.reply["evalue"]
    assert "--name" in answer.reply["evalue"]
    assert "".join(loaded.run("print('ran' in globals())").texts("stream")) == "False\n"


def test_a_prediction_is_one_output_and_runs_nothing(loaded):
    answer = loaded.run(
        "%%gpucheck --gpu T4 -o r\nimport torch\nprint('mine')\n"
        "unreal = torch.ones(1 << 20, device='cuda')\ndisplay(3)\nunreal = unreal + unreal"
    )
    assert answer.reply["status"] == "ok"
    outputs = [content for _, content in answer.outputs if not content.get("transient")]
    assert len(outputs) == 1  # but for a progress line
    data = outputs[0]["data"]
    assert "Fits: " in data["text/plain"]
    assert "<table" in data["text/html"]
    count = answer.reply["execution_count"]
    answer = loaded.run("print('unreal' in globals(), r.output.split(), r.peak.allocated)")
    assert "".join(answer.texts("stream")) == f"False ['mine', '3'] {8 << 20}\n"
    assert answer.reply["execution_count"] == count + 1


def test_a_syntax_error_in_a_prediction_is_the_reply(loaded):
    answer = loaded.run("%%gpucheck\nx = 1\ny = (")
    assert answer.reply["ename"] in ("SyntaxError", "_IncompleteInputError")
    text = re.sub(r"\x1b\[[\d;]*m", "", "".join(answer.reply["traceback"]))
    assert "line 3" in text
    assert "gpumem_magic" not in text


def test_a_long_prediction_shows_one_line_and_can_be_interrupted(loaded):
    stopped = []

    def interrupt(outputs):
        if not stopped and any("predicting for T4" in str(content) for _, content in outputs):
            stopped.append(True)
            loaded.manager.interrupt_kernel()

    answer = loaded.run(
        "%%gpucheck --gpu T4\nimport time\nimport torch\nunreal = torch.ones(5, device='cuda')\n"
        "while True:\n    time.sleep(0.05)",
        interrupt,
    )
    assert stopped
    assert answer.reply["ename"] == "KeyboardInterrupt"
    assert answer.texts("update_display_data")[-1] == ""
    answer = loaded.run("print('unreal' in globals())\n1 + 1")
    assert "".join(answer.texts("stream")) == "False\n"
    assert answer.texts("execute_result") == ["2"]


def test_memory_comes_back_after_an_error_without_a_restart(loaded):
    loaded.run("%gpumem --device 1GiB\nimport torch, weakref\nkept = []")
    train = (
        "def train(n):\n    x = torch.ones(n, device='cuda')\n"
        "    kept.append(weakref.ref(x.untyped_storage()))\n    return x + 1\nout = train({})"
    )
    failed = loaded.run(train.format(3 << 26))
    assert failed.reply["ename"] == "OutOfMemoryError"
    held = loaded.run("print(kept[0]() is not None, torch.cuda.memory_allocated() >> 20)")
    assert held.texts("stream") == ["True 768\n"]
    freed = loaded.run("%gpucheck --free")
    assert "768.00 MiB let go, 768.00 MiB back to the device" in freed.texts("display_data")[0]
    after = loaded.run("print(kept[0]() is None, torch.cuda.memory_reserved())")
    assert after.texts("stream") == ["True 0\n"]
    assert loaded.run(train.format(1 << 20)).reply["status"] == "ok"
