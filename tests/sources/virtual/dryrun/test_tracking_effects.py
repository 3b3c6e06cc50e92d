"""Experiment trackers take everything and keep nothing."""

from __future__ import annotations

import sys

import pytest

from gpumem_magic.sources.virtual.dryrun.side_effects import without_side_effects

WANDB = """
run = config = None
def init(**settings): raise OSError("network")
def log(values): raise OSError("network")
def watch(model): raise OSError("network")
class Table: pass
"""
WRITER = """
class SummaryWriter:
    def __init__(self, log_dir=None): raise OSError("disk")
    def add_scalar(self, name, value, step=None): raise OSError("disk")
    def close(self): raise OSError("disk")
    def __enter__(self): return self
    def __exit__(self, *error): self.close()
"""


@pytest.fixture(autouse=True)
def _libraries(tmp_path, monkeypatch):
    """Trackers of these names that fail whatever is asked of them."""
    if {"wandb", "tensorboardX"} & sys.modules.keys():
        pytest.skip("the real one is loaded")
    (tmp_path / "wandb.py").write_text(WANDB)
    (tmp_path / "tensorboardX").mkdir()
    (tmp_path / "tensorboardX" / "__init__.py").write_text(
        "from tensorboardX.writer import SummaryWriter\n"
    )
    (tmp_path / "tensorboardX" / "writer.py").write_text(WRITER)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [n for n in sys.modules if n.partition(".")[0] in ("wandb", "tensorboardX")]:
        del sys.modules[name]


@pytest.mark.parametrize("loaded_before", [False, True])
def test_a_run_is_not_begun(loaded_before):
    if loaded_before:
        import wandb
    told = []
    with without_side_effects(told.append):
        import wandb

        with wandb.init(project="p", config={"lr": 1}) as run:
            for step in range(3):
                wandb.log({"loss": step})
                run.log({"loss": step})
                run.summary["best"] = step
            wandb.config.lr = 3
        wandb.run.finish()
        assert isinstance(wandb.Table(), wandb.Table)
    assert told == ["wandb.init(project='p', config=...)", "wandb.log(...)"]
    assert wandb.run is None
    with pytest.raises(OSError, match="network"):
        wandb.log({})


def test_a_writer_writes_nothing():
    told = []
    with without_side_effects(told.append):
        from tensorboardX import SummaryWriter

        with SummaryWriter("runs/1") as writer:
            writer.add_scalar("loss", 1.0, 0)
        writer.close()
    assert [text.partition("(")[0] for text in told] == ["SummaryWriter"]
    with pytest.raises(OSError, match="disk"):
        SummaryWriter()
