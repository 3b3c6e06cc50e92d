"""Replaced attributes come back as they were."""

from __future__ import annotations

from types import SimpleNamespace

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
