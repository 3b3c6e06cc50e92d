"""Figures and widgets of a dry run are never seen; numpy prints as before."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem_magic.sources.virtual.dryrun.surroundings import unchanged_surroundings


def test_numpy_prints_and_complains_as_before():
    before = np.get_printoptions(), np.geterr()
    with unchanged_surroundings():
        np.set_printoptions(precision=1)
        np.seterr(all="ignore")
    assert (np.get_printoptions(), np.geterr()) == before


def test_a_users_figures_are_out_of_reach_and_new_ones_are_gone():
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")
    figure = plt.figure(7)
    lines = plt.plot([1, 2])
    width = plt.rcParams["lines.linewidth"]
    try:
        with unchanged_surroundings():
            plt.plot([3])
            plt.title("changed")
            plt.figure()
            plt.rcParams["lines.linewidth"] = 9
            assert len(plt.get_fignums()) == 2
            plt.close("all")
            plt.figure()
        assert plt.get_fignums() == [7]
        assert plt.gcf() is figure
        assert (figure.axes[0].lines[:], figure.axes[0].get_title()) == (lines, "")
        assert plt.rcParams["lines.linewidth"] == width
    finally:
        plt.close("all")


def test_the_notebooks_backend_has_nothing_to_show():
    inline = pytest.importorskip("matplotlib_inline.backend_inline")
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("module://matplotlib_inline.backend_inline")
    kept = inline.show._to_draw
    try:
        with unchanged_surroundings():
            plt.plot([1])
            inline.show._to_draw.append(plt.gcf())
            inline.show._draw_called = True
        assert inline.show._to_draw is kept
        assert (kept, inline.show._draw_called, plt.get_fignums()) == ([], False, [])
    finally:
        plt.switch_backend("agg")


def test_widgets_are_forgotten():
    widgets = pytest.importorskip("ipywidgets")
    from ipywidgets.widgets import widget as module

    instances = module._instances if hasattr(module, "_instances") else widgets.Widget.widgets
    kept = widgets.IntText()
    before = set(instances)
    with unchanged_surroundings():
        widgets.IntSlider()
        assert set(instances) != before
    assert set(instances) == before
    kept.close()
