"""What notebooks have beside tensors: arrays, frames, wrappers, records, loaders."""

from __future__ import annotations

import pytest

MIB = 1 << 20
BIG = "torch.ones(1 << 18, device='cuda')"

WRAPPER = """
class LightningLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Linear(512, 512, bias=False)
        self._trainer = None
    @property
    def trainer(self):
        raise RuntimeError("not attached to a trainer")
    def __getattr__(self, name):
        calls.append(name)
        return super().__getattr__(name)
class Trainer:
    def __init__(self, module):
        self.module, module._trainer = module, self
        self.optimizers = [torch.optim.SGD(module.parameters(), lr=1)]
        self.metrics = {"loss": BIG}
calls = []
trainer = Trainer(LightningLike().cuda())
calls.clear()
"""
RECORD = """
import dataclasses, typing
@dataclasses.dataclass(slots=True, frozen=True)
class Batch:
    x: object
    y: object = None
class Pair(typing.NamedTuple):
    a: object
batch, pair = Batch(BIG), Pair(BIG)
"""
LOADER = """
from torch.utils.data import DataLoader, TensorDataset
it = iter(DataLoader(TensorDataset(BIG.view(-1, 64)), batch_size=8))
next(it);
"""
ARRAYS = """
import numpy as np
a, o = np.zeros((100, 100)), np.empty(3, object)
o[1] = BIG
r = np.zeros(3, [("x", "f4")])
"""

CASES = {
    "arrays": (ARRAYS, ["o.flat[1]"]),
    "records": (RECORD, ["batch.x", "pair.a"]),
    "wrapper": (WRAPPER, ["trainer.metrics['loss']", "trainer.module.model.weight"]),
    "loader": (LOADER, ["it"]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_holds_is_named_and_nothing_of_it_runs(notebook, case):
    cell, names = CASES[case]
    notebook.run(cell.replace("BIG", BIG))

    found = [h for h in notebook.inventory().holdings if h.size == MIB]

    assert len(found) == len(names)
    for name in names:
        assert any(h.name.startswith(name) for h in found), found
    assert notebook.shell.user_ns.get("calls", []) == []


def test_frames_of_pandas(notebook):
    pytest.importorskip("pandas")
    notebook.run(
        "import pandas as pd\ndf = pd.DataFrame({'a': range(1000), 'b': ['x'] * 1000})\n"
        f"s = pd.Series([{BIG}, None], dtype=object)\nx = {BIG}"
    )

    found = [h for h in notebook.inventory().holdings if h.size == MIB]

    assert {h.name.partition("[")[0] for h in found} >= {"x"}
    assert all(h.kind.value != "unknown" for h in found)
    assert len(found) == 2


@pytest.fixture
def _smart_apply():
    """transformers adds a method to torch's modules when it makes its first model."""
    nn = pytest.importorskip("torch.nn")
    had = hasattr(nn.Module, "smart_apply")
    yield
    if not had and hasattr(nn.Module, "smart_apply"):
        del nn.Module.smart_apply


@pytest.mark.usefixtures("_smart_apply")
def test_models_of_transformers_and_their_outputs(notebook):
    pytest.importorskip("transformers")
    notebook.run(
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        "config = GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=128, n_positions=32)\n"
        "lm = GPT2LMHeadModel(config).cuda()\n"
        "out = lm(torch.ones(2, 8, dtype=torch.long, device='cuda'), output_hidden_states=True)"
    )

    holdings = notebook.inventory().holdings
    held = {(h.kind.value, h.name.partition(".")[0]) for h in holdings}

    assert {("variable", "lm"), ("variable", "out"), ("autograd graph", "out")} <= held
    assert not [h for h in holdings if h.kind.value == "unknown"]
    parts = notebook.parts("lm").parts
    assert sum(part.size for part in parts) == sum(
        h.size for h in holdings if h.name.startswith("lm")
    )
