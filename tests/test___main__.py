"""Scripts, predicted from the command line as they are."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpumem_magic.__main__ import main

SCRIPT = """
import argparse
import sys
import torch
from helper import SIZE

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=1)
options = parser.parse_args()


def main():
    torch.empty(options.rows * SIZE, dtype=torch.uint8, device="cuda")


if __name__ == "__main__":
    main()
    if options.rows == 3:
        raise KeyError("three")
    sys.exit(0)
"""


@pytest.fixture
def predicted(tmp_path, monkeypatch, capsys):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("SIZE = 2**30\n")
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def run(*options):
        status = main(["predict", str(script), *options])
        return status, *capsys.readouterr()

    return run


def test_a_script_that_fits_ends_well_and_its_report_is_json_when_asked(predicted):
    status, out, err = predicted("--gpu", "T4", "--json", "--", "--rows", "2")
    assert (status, err) == (0, "")
    assert json.loads(out)["peak"]["allocated"] == 2 * 2**30


def test_one_that_does_not_fit_is_told_by_the_status(predicted):
    status, out, _ = predicted("--gpu", "T4", "--", "--rows", "40")
    assert status == 1
    assert "train.py" in out


def test_one_that_fails_otherwise_has_another_status(predicted):
    assert predicted("--gpu", "T4", "--", "--rows", "3")[0] == 2
    status, out, err = predicted("--gpu", "no such card")
    assert (status, out) == (2, "")
    assert "no such card" in err


def test_ctrl_c_ends_it_in_one_line(tmp_path):
    script = tmp_path / "long.py"
    script.write_text("while True:\n    pass\n")
    command = [sys.executable, "-m", "gpumem_magic", "predict", str(script), "--timeout", "60"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while children_of(process.pid) == "":
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, f"{script}: prediction stopped\n")


def children_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


LOADER = """
import torch


def main():
    rows = [torch.ones(n) for n in (3, 1 << 20, 5)]
    batches = torch.utils.data.DataLoader(rows, batch_size=None)
    for batch in batches:
        kept = batch.to("cuda")
        break


main()
"""


@pytest.mark.parametrize(
    ("options", "largest"), [([], 512), (["--worst-batch", "batches"], 1 << 22)]
)
def test_a_loader_of_the_script_begins_with_its_largest_batch(tmp_path, capsys, options, largest):
    script = tmp_path / "train.py"
    script.write_text(LOADER)
    main(["predict", str(script), "--gpu", "T4", "--json", *options])
    report = json.loads(capsys.readouterr().out)
    assert report["peak"]["allocated"] == largest
