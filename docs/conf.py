"""Sphinx's configuration: prose in MyST, the notebooks with their outputs, and a reference from the docstrings.

``sphinx-build -W --keep-going -b html docs build/docs`` builds the site, which opens from the disk without a network.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent)]

import xpulab  # noqa: E402

project = "xpulab"
author = "the developers of xpulab"
release = version = xpulab.__version__
language = "en"
smartquotes = False  # options are typed with two hyphens, and the text has straight quotes

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_nb",
    "copied",  # notebooks and documents of the repository
    "public_names",  # the pages of the reference
    "parsers",  # the options of magics and commands
    "promises",  # links from a promise to the tests that hold it
    "llms",  # llms.txt
]
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb", ".ipynb": "myst-nb"}
exclude_patterns = ["_extensions", "_templates", "**/.ipynb_checkpoints"]
templates_path = ["_templates"]

# Docstrings write the names of objects, and other code, in single backticks. A name that Sphinx knows becomes a link.
default_role = "py:obj"
nitpicky = True
# numpydoc makes links of types such as "array-like", and docstrings name parameters and objects of other packages in
# single backticks. What begins with "xpulab." has to be on a page.
nitpick_ignore_regex = [("py:.*", r"(?!xpulab\.).*")]

autosummary_generate = True
autosummary_imported_members = True
autodoc_typehints = "none"  # the docstrings have the types
autodoc_member_order = "groupwise"
numpydoc_show_class_members = False  # the template of a class lists its methods
numpydoc_xref_param_type = False

myst_enable_extensions = ["colon_fence", "deflist"]  # no dollarmath: the pages are full of $OUT and $PATH
myst_heading_anchors = 4
nb_execution_mode = "off"  # the notebooks' outputs are checked by pytest
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # no script from the network: each view has a standing form
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]

html_theme = "pydata_sphinx_theme"
html_title = "xpulab"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_domain_indices = False  # the reference lists the packages
html_copy_source = False
html_theme_options = {
    "logo": {"text": "xpulab"},
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "navigation_with_keys": False,
}
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system
#: Pages without others beside them in their part have no list of these.
_ALONE = ("index", "promises", "how_it_works", "asked_elsewhere", "benchmarks/*", "project/*")
html_sidebars: dict[str, list[str]] = {name: [] for name in _ALONE}
copyright = "the developers of xpulab. The licence is BSD-3-Clause"
