"""The stylesheet of the panel: what controls cannot be told by their traits."""

from __future__ import annotations

from gpumem_magic.panel.still import CLASS

STYLE = f"""<style>
.{CLASS} {{ display: none; }}
.gpumem-panel {{ min-width: 0; overflow: hidden; }}
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
