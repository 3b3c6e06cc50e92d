"""The card to predict for: named, or in use."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from gpumem_magic import devices as cards
from gpumem_magic.sources import ACTIVE, Active
from gpumem_magic.values.findings import Level
from gpumem_magic.values.recording import Device
from gpumem_magic.virtual.catalog import MODELS, lookup

MIB = 1 << 20


class RealDevice:
    """A source of a device that is no virtual one."""

    def __init__(self, name, total, level):
        self.device = Device(name, 0, total, (8, 6), virtual=False)
        self._level = level

    def level(self):
        return self._level


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.key)
def test_every_card_of_the_catalog_has_its_name(model):
    assert cards.card_for(model.key, None) == model


def test_without_any_device_it_is_a_t4(monkeypatch):
    monkeypatch.setattr(cards, "cuda_devices", lambda: 0)
    with cards.source_in_use() as source:
        assert source is None
    assert cards.card_for(None, None) == lookup("T4")


def test_the_active_source_is_the_one_in_use():
    source = RealDevice("Some GPU", 8 << 30, Level(0, 0, 0))
    token = ACTIVE.set(Active(source, recording=False))
    try:
        with cards.source_in_use() as found:
            assert found is source
    finally:
        ACTIVE.reset(token)


def test_before_cuda_runs_the_context_is_still_to_come(monkeypatch):
    monkeypatch.setattr(cards, "is_initialized", lambda: False)
    model = lookup("RTX3090")
    others = 700 * MIB
    card = cards.card_for(None, RealDevice(model.name, 24 << 30, Level(0, 0, others)))
    assert (card.total, card.context) == (model.total, model.context + others)
    assert card.multiprocessors == model.multiprocessors


def test_what_pytorch_cannot_have_is_taken(monkeypatch):
    monkeypatch.setattr(cards, "is_initialized", lambda: True)
    monkeypatch.setattr(cards, "_multiprocessors", lambda index, known: 46)
    source = RealDevice("Some GPU", 8 << 30, Level(100 * MIB, 300 * MIB, 900 * MIB))
    card = cards.card_for(None, source)
    assert (card.name, card.total, card.capability) == ("Some GPU", 8 << 30, (8, 6))
    assert (card.context, card.multiprocessors) == (600 * MIB, 46)


def test_a_family_of_cards_is_no_question_of_auto_or_off():
    with pytest.raises(ValueError, match=r"write A100-40GB or A100-80GB$"):
        cards.check_device("A100")
    with pytest.raises(ValueError, match="; or auto, off"):
        cards.check_device("A1000")


def test_an_unknown_card_is_told():
    with pytest.raises(ValueError, match="T4"):
        cards.card_for("H1000000", None)
    with pytest.raises(ValueError, match="is not here"):
        cards.card_for("cuda:77", None)
