"""What the panel says of the devices now."""

from __future__ import annotations

from gpumem_magic.glance import Glance
from gpumem_magic.panel.live import Live
from gpumem_magic.panel.now import now_html
from gpumem_magic.units import GIB
from gpumem_magic.values.findings import Level
from gpumem_magic.values.recording import Device

CARD = Device("Fake GPU", 0, 16 * GIB, (7, 5), virtual=True)


def test_a_full_card_is_told_apart_from_a_large_cache():
    full, cached = (
        now_html(Live((Glance(CARD, Level(size, 14 * GIB, 15 * GIB)),)), {}, "")
        for size in (14 * GIB, GIB)
    )
    assert "more than 80 % of this device is in use, 1.00 GiB are left." in full
    assert "cache" not in full
    assert "13.00 GiB of what is in use is PyTorch&#x27;s cache" in cached


def test_a_course_is_not_flat_below_a_large_cache():
    level = Level(GIB, 14 * GIB, 15 * GIB)
    live = Live((Glance(CARD, level),), seconds=1.0, trail=[(GIB, 14 * GIB)] * 4)
    shown = now_html(live, {}, "")
    assert ">1 GiB<" in shown
    assert ">8 GiB<" not in shown
