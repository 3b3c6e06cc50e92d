"""Experiment trackers take everything and keep nothing."""

from __future__ import annotations

import sys

import pytest

from .forked import run_cell, tracking

WANDB = """
run = config = None
def init(**settings): raise OSError("network")
def log(values): raise OSError("network")
def watch(model): raise OSError("network")
class Table: pass
"""
WRITER = """
class SummaryWriter:
    def __init__(self, log_dir=None): self.log_dir = log_dir
    def add_scalar(self, name, value, step=None): raise OSError("disk")
    def _get_file_writer(self): return self.file_writer
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


def run(cell, **names):
    return run_cell(cell, tracking, names=names)


@pytest.mark.parametrize("loaded_before", [False, True])
def test_a_run_is_not_begun(loaded_before):
    if loaded_before:
        __import__("wandb")
    cell = """
        import wandb

        with wandb.init(project="p", config={"lr": 1}) as run:
            for step in range(3):
                wandb.log({"loss": step})
                run.log({"loss": step})
                run.summary["best"] = step
            wandb.config.lr = 3
        wandb.run.finish()
        x = isinstance(wandb.Table(), wandb.Table)
    """
    after = run(cell)
    assert (after.error, after.x) == (None, True)
    assert after.told == [
        "wandb.init(project='p', config=...) (line 4)",
        "wandb.log(...) (line 6)",
    ]


def test_a_writer_writes_nothing():
    cell = """
        from tensorboardX import SummaryWriter

        with SummaryWriter("runs/1") as writer:
            writer.add_scalar("loss", 1.0, 0)
        writer.close()
    """
    after = run(cell)
    assert after.error is None
    assert [text.partition("(")[0] for text in after.told] == [
        *("SummaryWriter", "SummaryWriter.add_scalar"),
    ]


def test_what_a_writer_would_have_made_is_inert_too():
    cell = """
        from tensorboardX import SummaryWriter

        writer = SummaryWriter()
        writer._get_file_writer().add_summary(writer.log_dir)
        x = hasattr(writer, "__len__")
    """
    after = run(cell)
    assert (after.error, after.x) == (None, False)


def test_neither_does_one_from_before():
    from tensorboardX import SummaryWriter

    after = run("writer.add_scalar('loss', 1.0)\nwriter.close()", writer=SummaryWriter("runs/1"))
    assert (after.error, after.told) == (
        None,
        ["SummaryWriter.add_scalar(..., 'loss', 1.0) (line 1)"],
    )
