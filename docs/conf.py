"""How Sphinx makes the site; `make docs` calls it, by way of `scripts/site`."""

from holdfast import __version__

project = "Holdfast"
author = "Holdfast contributors"
copyright = author  # noqa: A001  # Sphinx' own name for it
release = version = __version__

extensions = ["myst_parser"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "index"

# The same anchors as on a code host: every heading has one.
myst_heading_anchors = 6

html_theme = "furo"
html_title = f"Holdfast {release}"
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
