from __future__ import annotations

from gpumem_magic.sources.virtual.dryrun.paths import ATTRIBUTE, ITEM, PART, Step, written


def test_paths_read_as_users_write_them():
    layers = Step(Step("model", ATTRIBUTE, "layers"), ITEM, 3)
    assert written("model") == "model"
    assert written(Step(layers, ATTRIBUTE, "weight")) == "model.layers[3].weight"
    assert written(Step("table", ITEM, "key")) == "table['key']"
    assert written(Step("table", ITEM, "k" * 99)) == "table[...]"
    assert written(Step("table", ITEM, object())) == "table[...]"
    assert written(Step("step", PART, "count")) == "step (count)"


def test_of_very_long_paths_the_ends_are_shown():
    path = "head"
    for number in range(100):
        path = Step(path, ITEM, number)
    assert written(path) == "head[0][1][2][3][4][5] ... [94][95][96][97][98][99]"
