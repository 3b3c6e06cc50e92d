"""How `make docs` builds the pages: offline, and any warning is an error."""

project = "gpumem_magic"
copyright = "the authors of gpumem_magic"
extensions = ["myst_parser"]
exclude_patterns: list[str] = []
myst_heading_anchors = 3
html_theme = "furo"
html_title = project
