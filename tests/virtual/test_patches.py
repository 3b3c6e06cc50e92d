"""Replaced attributes come back as they were."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpumem_magic.virtual.patches import Patches


class Base:
    inherited = 1


class Owner(Base):
    own = 2


def test_they_are_restored_in_reverse_order():
    patches, place = Patches(), SimpleNamespace(name=1)
    assert patches.set(place, "name", 2) == 1
    assert patches.set(place, "name", 3) == 2
    assert place.name == 3
    patches.restore()
    assert place.name == 1
    patches.restore()
    assert place.name == 1


def test_attributes_that_were_not_there_go_again():
    patches, place = Patches(), SimpleNamespace()
    assert patches.set(place, "name", 1) is None
    patches.restore()
    assert not hasattr(place, "name")


def test_inherited_attributes_are_not_left_on_the_class():
    patches = Patches()
    patches.set(Owner, "inherited", 5)
    patches.set(Owner, "own", 6)
    assert (Owner.inherited, Owner.own, Base.inherited) == (5, 6, 1)
    patches.restore()
    assert (Owner.inherited, Owner.own) == (1, 2)
    assert "inherited" not in vars(Owner)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_they_come_off_in_any_order(order):
    place = SimpleNamespace(name=print)
    both = Patches(), Patches()
    both[0].set(place, "name", len)
    both[1].set(place, "name", max)
    both[order[0]].restore()
    assert place.name is (max if order[0] == 0 else len)
    both[order[1]].restore()
    assert place.name is print


def test_what_other_code_replaced_stays_and_is_named():
    patches = Patches()
    patches.set(Owner, "own", len)
    patches.set(Owner, "inherited", max)
    Owner.own = theirs = lambda: 3
    try:
        assert patches.restore() == ("Owner.own",)
        assert vars(Owner)["own"] is theirs
        assert "inherited" not in vars(Owner)
    finally:
        Owner.own = 2


def test_a_value_that_its_owner_changed_goes_back():
    patches, place = Patches(), SimpleNamespace(name=1)
    patches.set(place, "name", 2)
    place.name = 3
    assert patches.restore() == ()
    assert place.name == 1
