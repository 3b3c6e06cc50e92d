"""Experiment trackers take everything and keep nothing."""

from __future__ import annotations

import sys

import pytest

from .forked import run_cell, tracking

NAMES = {"wandb", "tensorboardX", "huggingface_hub"}
WANDB = """
run = config = None
def init(**settings): raise OSError("network")
def log(values): raise OSError("network")
def watch(model): raise OSError("network")
class Table: pass
class Api:
    def __init__(self): raise OSError("network")
    @classmethod
    def all(cls): raise OSError("network")
"""
HUB = """
import functools
from huggingface_hub.utils._http import hf_raise_for_status

def checked(function):
    @functools.wraps(function)
    def call(*args, **kwargs): return function(*args, **kwargs)
    return call

class RepoUrl(str):
    def __new__(cls, url, endpoint=None): return super().__new__(cls, url)

class HfApi:
    endpoint = "https://huggingface.co"
    @checked
    def create_repo(self, repo_id, *, token=None, exist_ok=False): raise OSError("network")
    @checked
    def upload_folder(self, *, repo_id, folder_path, run_as_future=False): raise OSError("network")
    @checked
    def whoami(self, token=None): raise OSError("network")
    def model_info(self, repo_id): hf_raise_for_status(None)

api = HfApi()
create_repo, upload_folder, whoami = api.create_repo, api.upload_folder, api.whoami
"""
HTTP = """
class OfflineModeIsEnabled(ConnectionError): pass
def hf_raise_for_status(response, endpoint_name=None): raise KeyError("id")
"""
OF_THE_HUB = {
    "__init__.py": "from ._login import login\nfrom .hf_api import *",
    "hf_api.py": HUB,
    "_login.py": "def login(token=None): raise OSError('network')",
    "utils/__init__.py": "",
    "utils/_http.py": HTTP,
}
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
    if NAMES & sys.modules.keys():
        pytest.skip("the real one is loaded")
    (tmp_path / "wandb.py").write_text(WANDB)
    (tmp_path / "tensorboardX").mkdir()
    (tmp_path / "tensorboardX" / "__init__.py").write_text(
        "from tensorboardX.writer import SummaryWriter\n"
    )
    (tmp_path / "tensorboardX" / "writer.py").write_text(WRITER)
    for name, text in OF_THE_HUB.items():
        path = tmp_path / "huggingface_hub" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [n for n in sys.modules if n.partition(".")[0] in NAMES]:
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


def test_settings_of_a_run_are_remembered():
    cell = """
        import types, wandb

        with wandb.init(config={"width": 3, "net": {"depth": 2}}) as run:
            run.config.rounds = 4
            wandb.config.update(types.SimpleNamespace(batch=5), allow_val_change=True)
        x = [wandb.config.width, run.config["net"]["depth"], wandb.config.rounds, run.config.batch]
        x += [str(wandb.config.unknown)]
    """
    after = run(cell)
    assert (after.error, after.x) == (None, [3, 2, 4, 5, ""])


def test_what_asks_a_server_is_inert():
    cell = """
        import wandb

        x = [str(wandb.Api().runs("p")[0].name), str(wandb.Api.all())]
    """
    after = run(cell)
    assert (after.error, after.x) == (None, ["", ""])
    assert after.told == ["wandb.Api() (line 4)", "wandb.Api.all() (line 4)"]


@pytest.mark.parametrize("loaded_before", [False, True])
def test_nothing_is_sent_to_the_hub(loaded_before):
    if loaded_before:
        __import__("huggingface_hub")
    cell = """
        from huggingface_hub import HfApi, create_repo, login, upload_folder, whoami

        login("hf_secret")
        x = [str(create_repo("me/net", token="hf_secret", exist_ok=True)), str(whoami()["name"])]
        work = upload_folder(repo_id="me/net", folder_path=".", run_as_future=True)
        x += [work.done(), str(HfApi().upload_folder(repo_id="me/net", folder_path="."))]
        try:
            HfApi().model_info("me/net")
        except ConnectionError as error:
            x.append(str(error))
    """
    after = run(cell)
    offline = "a dry run makes no connections (here: to huggingface.co)"
    assert (after.error, after.x) == (
        None,
        ["https://huggingface.co/me/net", "", True, "", offline],
    )
    assert after.told[:3] == [
        "huggingface_hub.login() (line 4)",
        "HfApi.create_repo('me/net', token=..., exist_ok=True) (line 5)",
        "HfApi.whoami() (line 5)",
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
