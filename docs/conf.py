"""How `make docs` builds the pages and runs the notebooks among them: offline, and any warning is
an error."""

import shutil
from pathlib import Path

_HERE = Path(__file__).parent
shutil.copytree(_HERE.parent / "notebooks", _HERE / "notebooks", dirs_exist_ok=True)

project = "gpumem_magic"
copyright = "the authors of gpumem_magic"
extensions = ["myst_nb"]
exclude_patterns = ["notebooks/*.py"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_ipywidgets_js: dict[str, str] = {}  # would come from the network; reports have a picture too
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]
html_theme = "furo"
html_title = project
