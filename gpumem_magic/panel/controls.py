"""The controls that the panel is made of, each with its label and as wide as its place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ipywidgets

_FLEXIBLE = "1 1 220px"


def button(text: str, tooltip: str, **traits: Any) -> Any:
    """A button as wide as its text."""
    return ipywidgets.Button(
        description=text, tooltip=tooltip, layout=_layout("0 0 auto"), **traits
    )


def switch(text: str, value: bool) -> Any:
    """A button that is on or off; its text says which."""
    return ipywidgets.ToggleButton(description=text, value=value, layout=_layout("0 0 auto"))


def choice(text: str, options: Iterable[Any], **traits: Any) -> Any:
    """One of many, folded."""
    return ipywidgets.Dropdown(
        description=text, options=tuple(options), layout=_layout(_FLEXIBLE), style=_wide(),
        **traits,
    )  # fmt: skip


def rows(text: str, count: int) -> Any:
    """One of many, as a list of so many rows; its label stands above."""
    made = ipywidgets.Select(description=text, rows=count, layout=_layout(), style=_wide())
    made.add_class("gpumem-rows")
    return made


def many(text: str, options: Iterable[Any], count: int) -> Any:
    """Some of many."""
    return ipywidgets.SelectMultiple(
        description=text, options=tuple(options), rows=count, layout=_layout(_FLEXIBLE),
        style=_wide(),
    )  # fmt: skip


def number(text: str) -> Any:
    """A whole number between bounds."""
    return ipywidgets.BoundedIntText(
        description=text, min=1, max=1, value=1, layout=_layout("1 1 150px"), style=_wide()
    )


def slider(text: str) -> Any:
    """A place on a scale."""
    return ipywidgets.IntSlider(
        description=text, min=0, max=1, value=0, readout=False, continuous_update=False,
        layout=_layout(), style=_wide(),
    )  # fmt: skip


def line(text: str, **traits: Any) -> Any:
    """A line of text."""
    return ipywidgets.Text(description=text, layout=_layout(_FLEXIBLE), style=_wide(), **traits)


def lines(text: str, count: int) -> Any:
    """Several lines of text, such as code."""
    made = ipywidgets.Textarea(description=text, rows=count, layout=_layout(), style=_wide())
    made.add_class("gpumem-rows")
    return made


def html() -> Any:
    """A place for HTML."""
    return ipywidgets.HTML(layout=_layout())


def across(*children: Any) -> Any:
    """Controls side by side, in as many rows as they need."""
    layout = ipywidgets.Layout(display="flex", flex_flow="row wrap", width="100%")
    return ipywidgets.Box(list(children), layout=layout)


def below(*children: Any) -> Any:
    """Controls one below the other."""
    return ipywidgets.VBox(list(children), layout=_layout())


def show(widget: Any, shown: bool) -> None:
    """Let a control be seen, or take it out of the page."""
    widget.layout.display = None if shown else "none"


def _layout(flex: str | None = None) -> Any:
    """As wide as the panel, or, in a row of controls, as `flex` says."""
    return ipywidgets.Layout(width="auto", max_width="100%", min_width="0", flex=flex)


def _wide() -> Any:
    return {"description_width": "initial"}
