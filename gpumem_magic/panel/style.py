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
.gpumem-rows {{ flex-direction: column; height: auto !important; }}
.gpumem-rows select, .gpumem-rows textarea, .gpumem-head div {{
  font-family: ui-monospace, Menlo, Consolas, monospace !important; font-size: 12px !important; }}
.gpumem-rows select, .gpumem-rows textarea {{ width: 100%; }}
.gpumem-rows select {{ overflow-x: auto; }}
</style>"""
