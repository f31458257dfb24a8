"""Sphinx's settings: MyST reads the Markdown, MyST-NB the notebook, Furo draws the pages."""

import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

project = "PockFarm"
author = "the PockFarm authors"
project_copyright = "the PockFarm authors, Apache-2.0"
version = release = PROJECT["version"]
root_doc = "index"
extensions = ["myst_nb"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
myst_heading_anchors = 4
myst_enable_extensions: list[str] = []
nb_execution_mode = "off"
"""The notebook is run by the tests; what it printed is in its file."""
html_theme = "furo"
html_title = f"PockFarm {release}"
html_favicon = str(Path(__file__).parents[2] / "service" / "dashboard" / "static" / "mark.svg")
html_short_title = "PockFarm"
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_use_index = False
html_domain_indices = False
html_theme_options: dict[str, object] = {"top_of_page_buttons": []}
html_last_updated_fmt = None
pygments_style = "tango"
pygments_dark_style = "native"
suppress_warnings = ["misc.highlighting_failure"]
