"""The panel in a real kernel: how much it sends while a cell runs, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import queue
import sys
import time
from pathlib import Path

import pytest

manager = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")
pytest.importorskip("ipywidgets")

ROOT = Path(__file__).resolve().parents[2]
CELL = (
    "%%gpumem -q\nimport time\nkept, seen, end = [], set(), time.time() + 4\n"
    "(panel,) = get_ipython().magics_manager.registry['GpuMemMagics'].monitor.observers\n"
    "while time.time() < end or len(seen) < 2:\n"
    "    kept.append(net(x).relu().sum())\n"
    "    shown = panel.now.picture.value + str(getattr(panel.front.widget, 'now', ''))\n"
    "    seen |= {shown} if 'running for' in shown else set()\n"
    "    time.sleep(0.02)"
)
MODEL = (
    "import torch\nnet = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).cuda()\n"
    "x = torch.randn(32, 64, device='cuda')"
)


@pytest.fixture
def kernel(tmp_path):
    started = manager.KernelManager(kernel_name="python3")
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    started.kernel_spec.argv[:] = command
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "IPYTHONDIR": str(tmp_path)}
    started.start_kernel(env=environment)
    client = started.client()
    client.start_channels()
    client.wait_for_ready(timeout=120)
    yield client
    client.stop_channels()
    started.shutdown_kernel(now=True)


def run(client, code, after=0.0):
    """The reply to a cell, and when each message of its run came: (seconds, message). `after`:
    seconds for which to listen on when the cell has ended."""
    sent = client.execute(code)
    messages, end = [], None
    while end is None or time.monotonic() < end:
        try:
            message = client.get_iopub_msg(timeout=0.2)
        except queue.Empty:
            continue
        messages.append((time.monotonic(), message))
        idle = message["content"].get("execution_state") == "idle"
        if idle and message["parent_header"].get("msg_id") == sent:
            end = time.monotonic() + after
    while True:
        reply = client.get_shell_msg(timeout=60)
        if reply["parent_header"].get("msg_id") == sent:
            return reply["content"], messages


def said(messages):
    return "".join(m["content"]["text"] for _, m in messages if m["msg_type"] == "stream")


MODULE = (
    "(panel,) = get_ipython().magics_manager.registry['GpuMemMagics'].monitor.observers\n"
    "panel._heard({'hello': True})\npanel.front.widget.tab = 'Cell'"
)
"""A browser answers that it has the module, and its user looks at the cell."""


@pytest.mark.parametrize("module", [False, True], ids=["controls", "module"])
def test_a_running_cell_sends_few_and_small_messages(kernel, module):
    if module:
        pytest.importorskip("anywidget")
    opened = "%gpumem --panel", *([MODULE] if module else ["import time; time.sleep(2)"])
    for code in ("%load_ext gpumem_magic\n%gpumem --device T4", MODEL, *opened):
        reply, _ = run(kernel, code)
        assert reply["status"] == "ok", reply
    run(kernel, "1", after=2)
    reply, messages = run(kernel, CELL, after=3)
    assert reply["status"] == "ok", reply
    comms = [(at, m) for at, m in messages if m["msg_type"].startswith("comm")]
    moments = [m["header"]["date"].timestamp() for _, m in comms]

    # THEN it is followed while it runs, and until everything is shown
    live = [m for _, m in comms if "running for" in json.dumps(m["content"])]
    assert len(live) >= 2
    assert "report" in json.dumps(comms[-1][1]["content"]) or len(comms) > len(live)

    # AND no second sees more than four messages, and no message is larger than 20 kB
    for start in moments:
        assert sum(start <= moment < start + 1 for moment in moments) <= 4
    assert max(len(json.dumps(m["content"]).encode()) for _, m in comms) <= 20_000
    packed = [len(buffer) for _, m in comms for buffer in m["buffers"]]
    assert bool(packed) == module  # the timeline
    assert max(packed, default=0) <= 18_000

    # AND afterwards nothing of it runs
    _, told = run(
        kernel,
        "import threading\n"
        "print([t.name for t in threading.enumerate() if t.name == 'gpumem-panel'])",
    )
    assert said(told) in ("['gpumem-panel']\n", "[]\n")  # it follows this very cell
    _, told = run(
        kernel,
        "%unload_ext gpumem_magic\n"
        "print([t.name for t in threading.enumerate() if 'gpumem' in t.name])",
    )
    assert said(told) == "[]\n"


def test_a_restarted_kernel_opens_a_panel_again(kernel):
    for _ in range(2):
        reply, messages = run(kernel, "%load_ext gpumem_magic\n%gpumem --panel")
        assert reply["status"] == "ok", reply
        shown = [m for _, m in messages if m["msg_type"] == "display_data"]
        assert "application/vnd.jupyter.widget-view+json" in shown[0]["content"]["data"]
        kernel.parent.restart_kernel(now=True)
        kernel.wait_for_ready(timeout=120)
