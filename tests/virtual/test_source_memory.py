"""What a cell left on the card is still known in the next cell."""

from __future__ import annotations

import pytest
import torch

from gpumem_magic.measure import finish
from gpumem_magic.values.recording import Category, Cell
from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.source import VirtualSource


@pytest.fixture
def source():
    opened = VirtualSource(lookup("T4"))
    opened.enter()
    yield opened
    opened.leave()
    opened.close()


def run(source, code, names):
    source.start(lambda: names)
    exec(compile(code, "<cell>", "exec"), names)
    (found,) = finish(source, Cell(code, "<cell>", 1), {}, None, "cell")
    return found.report


def test_activations_kept_by_an_earlier_cell_are_activations_in_the_next(source):
    # GIVEN outputs kept with their graph, whose inner activations no name holds
    names = {"torch": torch}
    first = run(
        source,
        "net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU()).cuda()\n"
        "outs = [net(net[0](torch.ones(64, 512, device='cuda'))) for _ in range(4)]\n",
        names,
    )
    held = first.at_end[Category.ACTIVATION]
    assert held >= 4 * 3 * 64 * 512 * 4
    # WHEN the next cell does something else
    second = run(source, "x = torch.ones(1024, device='cuda')\n", names)
    # THEN they still are what they were
    assert second.at_end[Category.ACTIVATION] == held
    assert Category.OTHER not in second.at_end


def test_a_new_block_at_the_address_of_an_old_one_is_not_taken_for_it(source):
    names = {"torch": torch}
    run(source, "w = torch.nn.Parameter(torch.ones(4096, device='cuda'))\n", names)
    # WHEN, unseen between two cells, the parameter goes and other data takes its place
    address = source.gpu.storages.locate(names["w"])
    del names["w"]
    names["hidden"] = [iter([torch.ones(4096, device="cuda")])]
    assert source.gpu.allocator.size_of(address) == 4 * 4096
    report = run(source, "pass\n", names)
    assert Category.PARAMETER not in report.at_end
