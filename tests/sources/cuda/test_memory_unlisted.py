"""Backend cudaMallocAsync: an allocator that counts bytes, and keeps no list of its blocks."""

from __future__ import annotations

import gc

import pytest

from gpumem_magic.sources.cuda.source import CudaSource
from gpumem_magic.sources.holders import break_down, take_inventory
from gpumem_magic.values.inventory import HolderKind as Kind

torch = pytest.importorskip("torch")

MIB = 1 << 20


@pytest.fixture
def source(allocator, monkeypatch):
    """A device with 9 MiB in use, of which tensors of the host stand for what is in tensors."""

    def refuse(**_):
        raise RuntimeError("Calling snapshot with backend:cudaMallocAsync is not meaningful.")

    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    monkeypatch.setattr(torch.cuda.memory, "memory_snapshot", refuse)
    on_device = {}

    def address_of(tensor):
        return on_device.get(id(tensor))

    def put(tensor):
        on_device[id(tensor)] = tensor.data_ptr()
        return tensor

    memory = "gpumem_magic.sources.cuda.memory"
    monkeypatch.setattr(f"{memory}.address_of", address_of)
    here = on_device.values()
    monkeypatch.setattr(
        f"{memory}._address", lambda s, _: s.data_ptr() if s.data_ptr() in here else None
    )
    monkeypatch.setattr(f"{memory}._index", lambda storage: 0)
    allocator.segments[0] = {1: 9 * MIB}
    source = CudaSource()
    source.put = put
    yield source
    source.close()


def mebibytes(count):
    return torch.zeros(count << 18)


def test_the_holders_of_tensors_are_known_and_the_rest_is_not(source):
    names = {"x": source.put(mebibytes(2)), "rows": [source.put(mebibytes(3))]}

    found = take_inventory(source, names)

    held = {(h.kind, h.name): h.size for h in found.holdings}
    assert held == {
        (Kind.VARIABLE, "x"): 2 * MIB,
        (Kind.VARIABLE, "rows[0]"): 3 * MIB,
        (Kind.UNKNOWN, "nothing that Python sees"): 4 * MIB,
    }
    assert sum(held.values()) == found.level.allocated
    assert (found.cached.largest, found.cached.returnable) == (None, None)
    assert "cudaMallocAsync, keeps no list of its blocks" in found.notes[0]
    assert found.text()


def test_a_cycle_is_found_there_as_well(source):
    gc.collect()
    gc.disable()
    try:
        ring = [source.put(mebibytes(9))]
        ring.append(ring)
        del ring
        (held,) = take_inventory(source, {}).holdings
    finally:
        gc.enable()

    assert (held.kind, held.size) == (Kind.CYCLE, 9 * MIB)


def test_a_name_can_be_broken_down(source):
    names = {"rows": [source.put(mebibytes(3)), source.put(mebibytes(4))]}

    assert break_down(source, names, (), "rows").size == 7 * MIB


def test_a_prediction_says_why_there_is_none(source):
    from gpumem_magic.dryrun.in_use import card_in_use
    from gpumem_magic.isolation.child import DryRunError

    with pytest.raises(DryRunError, match="cudaMallocAsync, keeps no list of its blocks"):
        card_in_use(source)
