"""A cell that computed on the CPU says so, and by which name."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

SETUP = (
    'import torch\ndevice = {}\nplace: str = "cpu"\nmodel = torch.nn.Linear(512, 512).to(device)\n'
    "def step(where):\n    return model(torch.randn(64, 512).to(where))"
)
CHOSEN = 'torch.device("cuda" if torch.cuda.is_available() else "cpu")'


@pytest.fixture
def said(new_shell, capsys):
    """What is printed of a cell after a set-up that ran before the extension was loaded."""

    def run(cell, head="%%gpumem"):
        with new_shell() as shell:
            shell.run_cell(SETUP.format(CHOSEN), store_history=True)
            shell.run_cell("%load_ext gpumem_magic\n%gpumem --device T4", store_history=True)
            capsys.readouterr()
            shell.run_cell(f"{head}\n{cell}", store_history=True)
            shell.run_line_magic("unload_ext", "gpumem_magic")
        return " ".join(capsys.readouterr().out.split())

    return run


@pytest.mark.parametrize("head", ["%%gpumem", "%%gpucheck", "%%gpucheck --gpu T4,L4"])
@pytest.mark.parametrize("cell", ["out = step(device)", "out = step(place)"])
def test_a_cell_that_went_to_the_host_says_which_name_sent_it(said, head, cell):
    name = "device" if "device" in cell else "place"
    text = said(cell, head=head)
    assert f'computed on the CPU: {name} is "cpu", assigned in In[1]' in text
    assert f'{name} = torch.device("cuda")' in text


@pytest.mark.parametrize(
    "cell", ["x = torch.ones(9, device='cuda')\ny = x.to(device)", "n = 1 + 1", "device = None"]
)
def test_others_say_nothing_of_the_kind(said, cell):
    assert "on the CPU" not in said(cell)
