"""The controls that the panel is made of, each with its label and as wide as its place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import ipywidgets

from gpumem_magic.renderers.document import (
    Document,
    Fold,
    Line,
    Piece,
    Row,
    Section,
    Style,
    Table,
    flat,
    unfolded,
)
from gpumem_magic.renderers.figure import chart
from gpumem_magic.renderers.html import (
    CLASSES,
    EMPTY,
    ROOT,
    Markup,
    Printer,
    element,
    join,
    printed,
    widths,
)

SNAPSHOT = "gpumem-still"
"""The class of what stays in a saved notebook; the living panel hides it by that."""

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
    """Some of many; their label stands above."""
    made = ipywidgets.SelectMultiple(
        description=text, options=tuple(options), rows=count, layout=_layout(_FLEXIBLE),
        style=_wide(),
    )  # fmt: skip
    made.add_class("gpumem-rows")
    return made


def number(text: str) -> Any:
    """A whole number between bounds."""
    return ipywidgets.BoundedIntText(
        description=text, min=1, max=1, value=1, layout=_layout("1 1 150px"), style=_wide()
    )


def slider(text: str) -> Any:
    """A place on a scale, whose ends lie below those of a chart's picture."""
    made = ipywidgets.IntSlider(
        description=text, min=0, max=1, value=0, readout=False, continuous_update=False,
        layout=_layout(), style=_wide(),
    )  # fmt: skip
    made.add_class("gpumem-slider")
    return made


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


def column(*children: Any) -> Any:
    """One of two columns, one below the other where there is no room; it scrolls by itself, so that
    the panel is never taller than a screen."""
    made = ipywidgets.VBox(list(children), layout=_layout("1 1 340px"))
    made.add_class("gpumem-column")
    return made


def show(widget: Any, shown: bool) -> None:
    """Let a control be seen, or take it out of the page."""
    widget.layout.display = None if shown else "none"


def _layout(flex: str | None = None) -> Any:
    """As wide as the panel, or, in a row of controls, as `flex` says."""
    return ipywidgets.Layout(width="auto", max_width="100%", min_width="0", flex=flex)


def _wide() -> Any:
    return {"description_width": "initial"}


MOST = 17_000
"""Bytes of one piece of HTML as it is sent; with what surrounds it a message stays below 20 kB."""


def as_many(rows: Sequence[Markup], most: int = MOST) -> tuple[list[Markup], int]:
    """The first rows that fit into a message, and how many do not."""
    shown: list[Markup] = []
    for row in rows:
        most -= _sent(row)
        if most < 0:
            break
        shown.append(row)
    return shown, len(rows) - len(shown)


def _sent(markup: Markup) -> int:
    """The bytes of it in a message."""
    return len(json.dumps(markup, ensure_ascii=False).encode("utf-8", "replace"))


def told(*pieces: Piece, alarm: bool = False) -> Markup:
    """Pieces of a document, as one <div>."""
    return printed((Section(pieces, alarm),), plain=False)


def table(
    caption: str, head: tuple[str, ...], rows: Sequence[Row], rest: str, most: int = MOST
) -> Markup:
    """As many rows of a table as fit into a message; `rest` says where the others are."""
    printer = Printer(plain=False)
    columns = widths(head, rows)
    printed_rows = [one for row in rows for one in printer.rows(row, columns)]
    shown, more = as_many(printed_rows, most)
    below = (Line(f"... and {more} more{rest}", Style.FAINT),) if more else ()
    return join(printer.tabulated(caption, head, columns, shown), printer.pieces(below))


_FRAME = 1500  # bytes of a table beside its rows


def fitted(document: Document, rest: str) -> Markup:
    """A document that fits into a message, without what says in short what stands below it: its
    longest tables are cut, what a terminal leaves out is only told."""
    sections = (section for section in unfolded(document) if not section.brief)
    pieces = [_shortened(p, rest) for section in sections for p in section.pieces]
    lengths = [len([*flat(p.rows)]) if isinstance(p, Table) else 0 for p in pieces]
    made, room = [EMPTY] * len(pieces), MOST
    for i in sorted(range(len(pieces)), key=lengths.__getitem__):
        p = pieces[i]
        if isinstance(p, Table):
            made[i] = table(p.caption, p.head, p.rows, rest, room - _FRAME)
        else:
            made[i] = Printer(plain=False).pieces((p,))
        room -= _sent(made[i])
    return element("div", *made, style=ROOT)


def _shortened(piece: Piece, rest: str) -> Piece:
    if isinstance(piece, Fold) and piece.told:
        return Line(f"{piece.told.strip()}{rest}", Style.FAINT)
    return piece


STYLE = f"""<style>
.{SNAPSHOT} {{ display: none; }}
.gpumem-panel {{ min-width: 0; overflow: hidden; container-type: inline-size; }}
.gpumem-column {{ max-height: 720px; overflow-y: auto; box-sizing: border-box; padding: 0 8px; }}
.gpumem-column > * {{ flex: 0 0 auto; }}
@container (max-width: 700px) {{ .gpumem-column {{ max-height: 310px; }} }}
.gpumem-panel .widget-box, .gpumem-panel .jupyter-widgets {{ min-width: 0; }}
.gpumem-panel .widget-html-content, .gpumem-panel .widget-html {{ min-width: 0; width: 100%; }}
.gpumem-panel button:focus-visible, .gpumem-panel select:focus-visible,
.gpumem-panel input:focus-visible, .gpumem-panel textarea:focus-visible,
.gpumem-panel [tabindex]:focus-visible {{ outline: 2px solid #3b82f6; outline-offset: 1px; }}
.gpumem-rows {{ display: flex; flex-direction: column; height: auto !important; overflow: hidden; }}
.gpumem-rows label, .gpumem-rows select, .gpumem-rows textarea {{ white-space: pre;
  font-family: ui-monospace, Menlo, Consolas, monospace !important; font-size: 12px !important; }}
.gpumem-rows label {{ text-align: left !important; padding-left: 4px; }}
.gpumem-rows select, .gpumem-rows textarea {{ flex: 0 0 auto !important; width: 100%;
  height: auto !important; box-sizing: border-box; overflow-x: auto; }}
.gpumem-panel .widget-html > label {{ display: none; }}
.gpumem-slider label {{ flex: 0 0 {chart.AXIS}px; margin: 0 !important; text-align: left; }}
.gpumem-slider .slider-container {{ margin: 0 !important; padding: 0; }}
.gpumem-slider .ui-slider .ui-slider-handle {{
  margin-left: calc(var(--jp-widgets-slider-handle-size) / -2); }}
{CLASSES}
</style>"""

NAME_SLIDERS = (
    '<img alt="" width="1" height="1" style="position:absolute" src="data:image/gif;base64,'
    'R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw==" onload="'
    "const name = () => document.querySelectorAll('.gpumem-panel [role=slider]').forEach("
    "handle => handle.setAttribute('aria-label', 'Moment of the cell'));"
    'name(); setTimeout(name, 1000); setTimeout(name, 4000)">'
)
"""Gives the handle of a slider the name that ipywidgets' own control leaves out, for screen
readers."""
