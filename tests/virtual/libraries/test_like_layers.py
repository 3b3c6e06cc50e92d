"""Layers that stand for others while text is generated: event for event what all of them do."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem_magic.dryrun import Scenario
from gpumem_magic.values.recording import Cell
from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.libraries import like_layers
from tests.dry_runs import dry_run

LIBRARY = {
    "transformers/__init__.py": "from transformers.generation import utils\n",
    "transformers/generation/__init__.py": "",
    "transformers/modeling_layers.py": """
from torch import nn

class GradientCheckpointingLayer(nn.Module):
    pass
""",
    "transformers/cache_utils.py": """
REORDERED = []

class CacheLayerMixin:
    def reorder_cache(self, beam_idx):
        REORDERED.append(self)
        self.keys = self.keys.index_select(0, beam_idx)
""",
    "transformers/generation/utils.py": """
import torch
from torch import nn
from transformers.cache_utils import CacheLayerMixin
from transformers.modeling_layers import GradientCheckpointingLayer

class GenerationMixin:
    @torch.no_grad()
    def generate(self, x, steps, beams=False, **options):
        for _ in range(steps):
            for layer in self.layers:
                x = layer(x, cache=self.cache, **options)
            if beams:
                order = x[:, 0, 0].argsort()
                for part in self.cache.layers:
                    part.reorder_cache(order)
        return x

RUNS = []

class Part(CacheLayerMixin):
    keys = None
    def __init__(self):
        self.length = torch.tensor(0)

class Cache:
    def __init__(self, n):
        self.layers = [Part() for _ in range(n)]

class Layer(GradientCheckpointingLayer):
    def __init__(self, layer_idx, width=64):
        super().__init__()
        self.layer_idx = layer_idx
        self.up, self.down = nn.Linear(64, width), nn.Linear(width, 64)

    def forward(self, x, cache, kept=None, odd=None):
        RUNS.append(self.layer_idx)
        part = cache.layers[self.layer_idx]
        part.keys = torch.cat([x if part.keys is None else part.keys, x], 1)
        part.length += 1
        if kept is not None:
            kept.append(x * 2)
        if odd is not None and self.layer_idx % 2 and part.length.item() > 1:
            torch.empty(5000, device="cuda")
        return self.down(self.up(x).relu())

class Model(GenerationMixin, nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.cache = Cache(len(layers))
""",
}

BEGIN = """
import torch
from transformers.generation.utils import Layer, Model
x = torch.randn(4, 100, 64, device="cuda")
"""

CELLS = {
    "alike": "model = Model(*map(Layer, range(5))).eval().cuda()\nmodel.generate(x, 6)",
    "of two widths": """
model = Model(*(Layer(i, 64 * (1 + i % 2)) for i in range(6))).eval().cuda()
model.generate(x, 6)
""",
    "what they make is kept": """
model, kept = Model(*map(Layer, range(4))).eval().cuda(), []
model.generate(x, 5, kept=kept)
assert len(kept) == 20
""",
    "every other one takes more": """
model = Model(*map(Layer, range(6))).eval().cuda()
model.generate(x, 5, odd=True)
""",
    "beams": "model = Model(*map(Layer, range(5))).eval().cuda()\nmodel.generate(x, 6, beams=True)",
    "beams, caches of the user's": """
from transformers.cache_utils import REORDERED
from transformers.generation.utils import Part
class Mine(Part):
    pass
model = Model(*map(Layer, range(4))).eval().cuda()
model.cache.layers = [Mine() for _ in range(4)]
model.generate(x, 5, beams=True)
assert len(REORDERED) == 20
""",
    "hooks": """
model, seen = Model(*map(Layer, range(4))).eval().cuda(), []
for layer in model.layers:
    layer.up.register_forward_hook(lambda module, args, output: seen.append(output.shape))
model.generate(x, 5)
assert len(seen) == 20
""",
    "hooks of all modules": """
from torch.nn.modules.module import register_module_forward_pre_hook
model, seen = Model(*map(Layer, range(4))).eval().cuda(), []
register_module_forward_pre_hook(lambda module, args: seen.append(args[0].shape))
model.generate(x, 5)
assert len(seen) == 60
""",
    "generated twice, changed between": """
model = Model(*map(Layer, range(4))).eval().cuda()
model.generate(x, 4)
model.layers[2] = Layer(2, 256).eval().cuda()
out = model.generate(x, 4)
assert model.cache.layers[3].keys.shape == (4, 900, 64) and model.cache.layers[3].length == 8
""",
    "a layer of the user's": """
class Mine(Layer):
    def forward(self, x, **options):
        seen.append(self.layer_idx)
        return super().forward(x, **options)
model, seen = Model(*map(Mine, range(4))).eval().cuda(), []
model.generate(x, 5)
assert len(seen) == 20
""",
    "in training": "model = Model(*map(Layer, range(4))).cuda()\nmodel.generate(x, 4)",
}


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    for path, text in LIBRARY.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))

    def record(code):
        source = BEGIN + code
        scenario = Scenario(Cell(source, "<cell>"), {"__name__": "__main__"})
        recording = dry_run(scenario, lookup("T4"))
        assert recording.error is None
        return recording

    return record


def events_of(recording):
    events = recording.events
    columns = events.action, events.address, events.size, events.requested, events.graph
    return np.stack(columns), [recording.stacks[index] for index in events.stack]


@pytest.mark.parametrize("name", CELLS)
def test_events_are_those_of_all_layers(recorded, monkeypatch, name):
    found, stacks = events_of(recorded(CELLS[name]))
    monkeypatch.setattr(like_layers.LikeLayers, "expect", lambda *args: None)
    whole, whole_stacks = events_of(recorded(CELLS[name]))
    assert np.array_equal(found, whole)
    assert stacks == whole_stacks


def test_of_each_step_one_layer_runs(recorded):
    code = CELLS["alike"] + "\nfrom transformers.generation.utils import RUNS; print(len(RUNS))"
    # The first layer of all takes a workspace for good, so the second is compared a step later.
    assert recorded(code).output.split() == [str(5 + 5 + 2 + 1 + 1 + 1)]


def test_layers_that_generate_nothing_are_called_as_ever(recorded):
    """Dynamo would break the graph of a compiled model at a call that is not torch's."""
    code = (
        "from transformers.modeling_layers import GradientCheckpointingLayer as Base\n"
        "as_ever = lambda: Base.__call__ is torch.nn.Module.__call__\n"
        "print(as_ever())\n"
    )
    recording = recorded(code + CELLS["alike"] + "\nprint(as_ever())")
    assert recording.output.split() == ["True", "True"]


def test_of_each_step_one_part_of_a_cache_is_reordered(recorded):
    code = (
        CELLS["beams"] + "\nfrom transformers.cache_utils import REORDERED; print(len(REORDERED))"
    )
    assert recorded(code).output.split() == [str(5 + 5 + 1 + 1 + 1 + 1)]


def test_what_is_made_again_tells_its_shape(recorded):
    recording = recorded(CELLS["beams"])
    shapes = [recording.results[made][0] for made in recording.events.made.tolist() if made >= 0]
    assert shapes.count((4, 700, 64)) == 5 + 5  # the last keys of each layer, and reordered
