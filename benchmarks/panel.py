"""What the panel costs: its share of a running cell's time, the messages that it sends, and the
delay of replies."""

from __future__ import annotations

import argparse
import datetime
import json
import queue
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

MODEL = """
import threading, time, torch
net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
opt = torch.optim.Adam(net.parameters())
x = torch.randn(64, 512, device="cuda")
"""
CELL = """
end, steps = time.time() + {seconds}, 0
while time.time() < end:
    opt.zero_grad()
    net(x).pow(2).mean().backward()
    opt.step()
    steps += 1
ids = [t.native_id for t in threading.enumerate() if t.name == "gpumem-panel"]
stat = [open(f"/proc/self/task/{{i}}/stat").read().rsplit(")", 1)[1].split() for i in ids]
print(sum(int(fields[11]) + int(fields[12]) for fields in stat) / 100, steps)
"""
SHORT = "torch.ones(1 << 10, device='cuda').sum().item()"
CELLS = 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the cell runs")
    parser.add_argument("--json", type=Path, help="the file to write")
    options = parser.parse_args()
    manager = KernelManager(kernel_name="python3")
    manager.kernel_spec.argv[:] = [
        *(sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}")
    ]
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=120)
    try:
        for code in ("%load_ext gpumem_magic\n%gpumem --device T4", MODEL):
            run(client, code)
        found = measure(client, options.seconds)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def measure(client: Any, seconds: float) -> dict[str, Any]:
    without = replies(client)
    run(client, "%gpumem --panel")
    shown = replies(client)
    time.sleep(4)  # what the last cell left is shown by then
    messages = run(client, CELL.format(seconds=seconds))[1]
    output = "".join(m["content"]["text"] for m in messages if m["msg_type"] == "stream")
    spent, steps = output.split()[-2:]
    comms = [m for m in messages if m["msg_type"].startswith("comm")]
    sizes = [len(json.dumps(m["content"]).encode()) for m in comms]
    print(f"a cell of {seconds:.0f} s, {steps} training steps, followed by the panel")
    print(f"  time of the panel's thread   {float(spent):.2f} s, {float(spent) / seconds:.2%}")
    print(f"  messages                     {len(comms)}, {len(comms) / seconds:.2f} a second")
    print(f"  largest message              {max(sizes, default=0):,} bytes")
    delay = statistics.median(shown) / statistics.median(without) - 1
    print(f"a short cell, median of {CELLS}")
    print(f"  without the panel            {statistics.median(without) * 1000:.2f} ms")
    print(f"  with it                      {statistics.median(shown) * 1000:.2f} ms, {delay:+.1%}")
    return {
        "date": datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
        "cell_seconds": seconds,
        "panel_share": float(spent) / seconds,
        "messages_per_second": len(comms) / seconds,
        "largest_message_bytes": max(sizes, default=0),
        "reply_seconds": statistics.median(without),
        "reply_seconds_with_panel": statistics.median(shown),
    }


def replies(client: Any) -> list[float]:
    """Seconds from the request of a short cell to its reply."""
    return [run(client, SHORT)[0] for _ in range(CELLS)]


def run(client: Any, code: str) -> tuple[float, list[Any]]:
    began = time.perf_counter()
    sent = client.execute(code)
    while True:
        reply = client.get_shell_msg(timeout=600)
        if reply["parent_header"].get("msg_id") == sent:
            break
    took = time.perf_counter() - began
    assert reply["content"]["status"] == "ok", reply["content"]
    return took, messages_of(client, sent)


def messages_of(client: Any, sent: str) -> list[Any]:
    """What the kernel published for a request, until it was idle again."""
    found = []
    while True:
        try:
            message = client.get_iopub_msg(timeout=5)
        except queue.Empty:
            return found
        found.append(message)
        idle = message["content"].get("execution_state") == "idle"
        if idle and message["parent_header"].get("msg_id") == sent:
            return found


if __name__ == "__main__":
    main()
