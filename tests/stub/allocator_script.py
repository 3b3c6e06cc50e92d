"""Runs on the stub device, with real torch: drives the real allocator, prints what it did.

A line of stdin: an object with the environment variables to set, and the steps, each [action, ...];
see test_allocator_stub.py for what they mean. Each line is done in a process that has not used the
device before, so that torch is imported once; what it did is a line of stdout.
"""

import json
import os
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from stub_device import answer_lines


def _step(blocks, streams, action, arguments):
    if action == "malloc":
        name, size, stream = arguments
        with torch.cuda.stream(streams[stream]):
            blocks[name] = torch.empty(size, dtype=torch.uint8, device="cuda")
        return {"address": blocks[name].data_ptr()}
    if action in ("free", "record_stream") and arguments[0] not in blocks:
        return {"absent": arguments[0]}
    if action == "free":
        del blocks[arguments[0]]
    elif action == "record_stream":
        blocks[arguments[0]].record_stream(streams[arguments[1]])
    elif action == "empty_cache":
        torch.cuda.empty_cache()
    elif action == "fraction":
        torch.cuda.set_per_process_memory_fraction(arguments[0])
    elif action == "reset_peaks":
        torch.cuda.reset_peak_memory_stats()
    elif action == "reset_accumulated":
        torch.cuda.reset_accumulated_memory_stats()
    elif action == "settings":
        torch.cuda.memory._set_allocator_settings(arguments[0])
    return {}


def _drive(steps):
    torch.cuda.init()
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    blocks, done = {}, []
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=10**6)
    for action, *arguments in steps:
        try:
            outcome = _step(blocks, streams, action, arguments)
        except torch.OutOfMemoryError as failure:
            outcome = {"failed": str(failure)}
        if action == "stats":
            outcome = {"stats": torch.cuda.memory_stats(), "free": torch.cuda.mem_get_info()[0]}
        done.append(outcome)
    snapshot = torch.cuda.memory._snapshot()
    events = [
        [e["action"], e["device_free"] if e["action"] == "oom" else e["addr"], e["size"]]
        for e in snapshot["device_traces"][0]
        if e["action"] != "snapshot"
    ]
    segments = [
        [
            *(s["address"], s["total_size"], s["segment_type"], s["is_expandable"]),
            [[b["address"], b["size"], b["state"]] for b in s["blocks"]],
        ]
        for s in snapshot["segments"]
    ]
    order = sorted(range(len(streams)), key=lambda index: streams[index].cuda_stream)
    return {"done": done, "events": events, "segments": segments, "order": order}


def _answer(line):
    asked = json.loads(line)
    os.environ.update(asked["environment"])
    return _drive(asked["steps"])


if __name__ == "__main__":
    answer_lines(_answer)
