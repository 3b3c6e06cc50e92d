"""Reports made by hand, each from a script of what happened: (line, kind, name, bytes)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from gpumem_magic.units import KIB, MIB
from gpumem_magic.values.findings import (
    Block,
    Call,
    Level,
    Line,
    OutOfMemory,
    Remedy,
    Timeline,
    Way,
)
from gpumem_magic.values.recording import Category as K
from gpumem_magic.values.recording import Cell, Device
from gpumem_magic.values.report import Report

T4 = Device("Tesla T4", 0, 15_642_329_088, (7, 5), virtual=True)
CONTEXT = 112 * MIB
KINDS = list(K)

STORY = """\
model = Captioner().to(device)
optimizer = torch.optim.Adam(model.parameters())
for images, captions in batches:
    images = images.to(device)
    loss = F.cross_entropy(model(images), captions.to(device))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass
class Script:
    """Plays steps on a counter and keeps what a trace would find."""

    source: str
    points: list = field(default_factory=lambda: [(0.0, 0, 0, 0, (0,) * len(KINDS))])
    held: dict = field(default_factory=dict)
    reserved: int = 0
    rows: dict = field(default_factory=dict)
    passes: dict = field(default_factory=dict)

    def step(self, line, *changes, pieces=6):
        """One run of `line`: each change is (kind, name, bytes); negative bytes free."""
        row = self.rows.setdefault(line, [0, 0, 0])
        self.passes[line] = self.passes.get(line, 0) + 1
        for kind, name, size in changes:
            for piece in range(pieces):
                part = size * (piece + 1) // pieces - size * piece // pieces
                key = (kind, name, line if size > 0 else self.born(kind, name))
                self.held[key] = self.held.get(key, 0) + part
                row[0 if part > 0 else 1] += abs(part)
                row[2] = max(row[2], self.point(line))

    def born(self, kind, name):
        return next(key[2] for key in self.held if key[:2] == (kind, name))

    def point(self, line):
        kinds = [sum(s for key, s in self.held.items() if key[0] == kind) for kind in KINDS]
        total = sum(kinds)
        self.reserved = max(self.reserved, -(-total // (20 * MIB)) * 20 * MIB)
        self.points.append((self.points[-1][0] + 0.013, total, self.reserved, line, tuple(kinds)))
        return total

    def lines(self):
        rows = self.source.splitlines()
        return tuple(
            Line(number, rows[number - 1], up, down, up - down, peak, self.passes[number])
            for number, (up, down, peak) in sorted(self.rows.items())
        )

    def timeline(self):
        time, allocated, reserved, line, kinds = zip(*self.points, strict=True)
        columns = np.array(allocated, np.int64), np.array(reserved, np.int64)
        peak = int(columns[0].argmax())
        lines = np.array(line, np.int32)
        return Timeline(np.array(time), *columns, lines, np.array(kinds, np.int64), peak)

    def composition(self, index):
        kinds = self.points[index][4]
        return {kind: size for kind, size in zip(KINDS, kinds, strict=True) if size}

    def report(self, name, **changes):
        timeline = self.timeline()
        at = timeline.peak
        top, top_reserved = int(timeline.allocated[at]), int(timeline.reserved[at])
        end = int(timeline.allocated[-1])
        return Report(
            **{
                "name": name,
                "cell": Cell(self.source, "<ipython-input-3>", 3),
                "device": T4,
                "predicted": False,
                "started": 1_760_000_000.25,
                "seconds": self.points[-1][0],
                "before": Level(0, 0, CONTEXT),
                "peak": Level(top, top_reserved, top_reserved + CONTEXT),
                "after": Level(end, self.reserved, self.reserved + CONTEXT),
                "context": CONTEXT,
                "others": 0,
                "lines": self.lines(),
                "blocks": (),
                "at_peak": self.composition(at),
                "at_end": self.composition(-1),
                "timeline": timeline,
                "oom": None,
                "retries": 0,
                "error": None,
                "unknown": {},
                "notes": (),
                **changes,
            }
        )


def make_story():
    """Parameters 3.7 GB; forward +2.9, backward +3.0, Adam +6.3; the second step fails."""
    script = Script(STORY)
    act, grad, adam = 2970 * MIB, 3072 * MIB, 6451 * MIB
    script.step(1, (K.PARAMETER, "model", 3_700 * MIB), pieces=14)
    script.step(4, (K.INPUT, "images", 77 * MIB), pieces=1)
    script.step(5, (K.ACTIVATION, None, act), (K.WORKSPACE, None, 8_519_680), pieces=14)
    for _ in range(2):
        script.step(6, (K.GRADIENT, "model.grad", grad // 2), (K.ACTIVATION, None, -(act // 2)))
    script.passes[6] = 1
    script.step(7, (K.OPTIMIZER_STATE, "optimizer", adam), pieces=14)
    script.step(8, (K.GRADIENT, "model.grad", -grad))
    script.step(4, (K.INPUT, "images", 77 * MIB), pieces=1)
    script.step(4, (K.INPUT, "images", -77 * MIB), pieces=1)
    script.passes[4] = 2
    script.step(5, (K.ACTIVATION, None, act), pieces=14)
    script.step(6, (K.ACTIVATION, None, -act), (K.GRADIENT, "model.grad", grad))
    script.step(7, (K.TEMPORARY, None, 1228 * MIB), pieces=4)
    script.step(7, (K.TEMPORARY, None, -1228 * MIB), pieces=1)
    script.passes[7] = 2
    oom_point = len(script.points) - 2
    held = script.composition(oom_point)
    oom = OutOfMemory(
        requested=620 * MIB,
        segment=620 * MIB,
        device_free=331_874_304,
        reserved_free=19_922_944,
        largest_free=8 * MIB,
        fragmented=False,
        line=7,
        op="aten._foreach_sqrt",
        message="CUDA out of memory. Tried to allocate 620.00 MiB.",
        held=held,
        point=oom_point,
        others=0,
        missing=620 * MIB - 331_874_304,
        remedies=(
            Remedy(Way.UNUSED, 700 * MIB, True, "teacher"),
            Remedy(Way.EXPANDABLE, 19_922_944, None),
            Remedy(Way.HISTORY, 64 * MIB, False),
        ),
    )
    names = (
        Block(
            "optimizer.state[36]['exp_avg']",
            411_705_344,
            (50257, 2048),
            "float32",
            K.OPTIMIZER_STATE,
            7,
        ),
        Block(
            "optimizer.state[36]['exp_avg_sq']",
            411_705_344,
            (50257, 2048),
            "float32",
            K.OPTIMIZER_STATE,
            7,
        ),
        Block(
            "model.decoder.embedding.weight", 411_705_344, (50257, 2048), "float32", K.PARAMETER, 1
        ),
        Block(
            "model.decoder.embedding.weight.grad",
            411_705_344,
            (50257, 2048),
            "float32",
            K.GRADIENT,
            6,
        ),
        Block(None, 268_435_456, (32, 64, 256, 128), "float32", K.TEMPORARY, 7),
        Block("images", 80_740_352, (32, 3, 459, 458), "float32", K.INPUT, 4),
        Block(None, 8_519_680, None, None, K.WORKSPACE, 5),
    )
    oom = replace(oom, blocks=names[:3])
    error = "OutOfMemoryError: CUDA out of memory. Tried to allocate 620.00 MiB."
    return script.report("train", oom=oom, blocks=names, retries=1, error=error)


def make_small():
    script = Script("x = torch.ones(1000, device='cuda')\n")
    script.step(1, (K.OTHER, "x", 4096), pieces=1)
    blocks = (Block("x", 4096, (1000,), "float32", K.OTHER, 1),)
    return script.report("In[3]", blocks=blocks, seconds=0.0004)


def make_unknown():
    """A card of which the driver tells nothing, seen through counters alone."""
    nothing = Level(None, None, None)
    why = "the driver does not report processes in this container"
    return replace(
        make_small(),
        before=nothing,
        peak=nothing,
        after=Level(4096, 2 * MIB, None),
        context=None,
        others=None,
        lines=(Line(1, "x = torch.ones(1000, device='cuda')", 4096, 0, 4096, None, 1),),
        blocks=(Block(None, 4096, None, None, K.OTHER, None),),
        at_peak={},
        at_end={},
        timeline=empty_timeline(),
        device=replace(T4, virtual=False),
        unknown={
            "before.allocated": "the recording began late",
            "peak.allocated": "the ring buffer overflowed",
            "after.device_used": why,
            "context": why,
            "others": why,
        },
        notes=("The ring buffer of PyTorch's history overflowed: only counters are shown.",),
    )


def empty_timeline():
    n = np.zeros(0, np.int64)
    kinds = np.zeros((0, len(KINDS)), np.int64)
    return Timeline(np.zeros(0), n, n, np.zeros(0, np.int32), kinds, -1)


def make_empty():
    """A cell that touched nothing on the device."""
    idle = Level(0, 0, CONTEXT)
    nothing = {"lines": (), "blocks": (), "at_peak": {}, "at_end": {}}
    levels = {"before": idle, "peak": idle, "after": idle}
    return replace(make_small(), **levels, **nothing, timeline=empty_timeline())


HOSTILE = (
    "</code><script>alert('1')</script> \"q\" 'a' &amp; $x_1^2$ "
    "\u202egnp.exe\u202c שלום \U0001f469\u200d\U0001f4bb 数据"
)


def make_hostile():
    source = f"{HOSTILE}\n{'x = torch.cat([x, x]) ; ' * 450}\n\tesc = '\x1b[31m\udc80'\n"
    script = Script(source)
    script.step(1, (K.TEMPORARY, "a", 3 * MIB))
    script.step(2, (K.ACTIVATION, "b", 5 * MIB))
    script.step(3, (K.GRADIENT, "c", 700 * KIB))
    blocks = (Block(HOSTILE, 5 * MIB, (5, 1 << 20), "<b>", K.ACTIVATION, 2),)
    return script.report(
        HOSTILE, blocks=blocks, notes=(HOSTILE, "n" * 300), error=f"ValueError: {HOSTILE}",
        device=replace(T4, name="<img src=x onerror=alert(1)>"), unknown={"<i>": "<script>why"},
    )  # fmt: skip


def make_calling():
    """A loop over a function of another cell, and what no line can be named for."""
    script = Script("model = make_model()\nfor batch in batches:\n    train_step(model, batch)\n")
    script.step(1, (K.PARAMETER, "model", 200 * MIB))
    for _ in range(12):
        script.step(3, (K.ACTIVATION, None, 90 * MIB), (K.GRADIENT, None, 20 * MIB), pieces=2)
        script.step(3, (K.ACTIVATION, None, -85 * MIB), (K.GRADIENT, None, -20 * MIB), pieces=2)
    script.passes[3] = 12
    lines = script.lines()
    calls = (
        Call(
            2,
            5,
            "train_step",
            "    loss = model(batch).mean()",
            1080 * MIB,
            60 * MIB,
            1020 * MIB,
            350 * MIB,
            12,
        ),
        Call(
            2,
            6,
            "train_step",
            "    loss.backward()",
            240 * MIB,
            1200 * MIB,
            -960 * MIB,
            365 * MIB,
            12,
        ),
        Call(None, 88, "collate", "return torch.stack(rows)", 0, 0, 0, None, 1),
    )
    rest = Line(0, "", 2 * MIB, 0, 2 * MIB, 202 * MIB, 1)
    return script.report("In[3]", lines=(rest, lines[0], replace(lines[1], calls=calls)))


def make_predicted():
    return replace(make_calling(), predicted=True, name="what if")


def make_unfit():
    """The story as a prediction: out of memory, after a way that was guessed."""
    output = "".join(f"epoch {n}: loss 0.50\n" for n in range(1, 4))
    return replace(
        make_story(),
        predicted=True,
        flow_guessed=True,
        output=output,
        notes=("Line 6 goes by values that a dry run does not know (loss.item()): one way taken.",),
    )


def make_raised():
    """A prediction that another error ended."""
    cell = Cell("x = torch.ones(1000, device='cuda')\nx.nonsense()\n", "<ipython-input-3>", 3)
    error = "AttributeError: 'Tensor' object has no attribute 'nonsense'"
    return replace(make_small(), cell=cell, predicted=True, error=error, error_line=2)


MAKERS = {
    "unfit": make_unfit,
    "raised": make_raised,
    "story": make_story,
    "small": make_small,
    "unknown": make_unknown,
    "empty": make_empty,
    "hostile": make_hostile,
    "calling": make_calling,
    "predicted": make_predicted,
}


@pytest.fixture
def same_as_golden():
    """Compares with a file; WRITE_GOLDEN=1 writes it anew: look at the difference then."""

    def compare(name, text):
        path = Path(__file__).parent / "golden" / name
        if os.environ.get("WRITE_GOLDEN"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def story():
    return make_story()


@pytest.fixture
def unknown():
    return make_unknown()


@pytest.fixture
def hostile():
    return make_hostile()


@pytest.fixture(params=sorted(MAKERS))
def report(request):
    """Each report in turn."""
    return MAKERS[request.param]()


@pytest.fixture
def reports():
    """Makers of all the reports, by name."""
    return MAKERS
