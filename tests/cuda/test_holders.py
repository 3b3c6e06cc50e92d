"""An inventory of a real allocator."""

from __future__ import annotations

import torch
import torch._dynamo
from torch import nn

from gpumem_magic.sources.cuda.source import CudaSource
from gpumem_magic.sources.holders import take_inventory
from gpumem_magic.values.inventory import HolderKind as Kind


def test_holdings_add_up_to_the_byte_and_the_cache_returns_what_was_said():
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.ones(64, 512, device="cuda")
    model(data).sum().backward()
    optimizer.step()
    loss = model(data).sum()
    names = {"model": model, "optimizer": optimizer, "data": data, "rows": data[3:], "loss": loss}
    source = CudaSource()
    try:
        found = take_inventory(source, names)
    finally:
        source.close()

    assert sum(h.size for h in found.holdings) == torch.cuda.memory_allocated()
    assert found.size_of(Kind.UNKNOWN) == 0
    assert found.cached.size == torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    level = found.level
    assert level.device_used == level.reserved + found.context + found.others
    data_held = next(h for h in found.holdings if h.name == "data")
    assert "rows" in data_held.also
    reserved = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert reserved - torch.cuda.memory_reserved() == found.cached.returnable
