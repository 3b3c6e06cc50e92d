"""Ctrl-C at random moments of cells that use the device."""

from __future__ import annotations

from tests.stacks.test_interrupts import MOMENTS, check_interrupts


def test_no_interrupt_is_lost_and_none_leaves_anything(tmp_path):
    check_interrupts(tmp_path, "auto", MOMENTS // 4)
