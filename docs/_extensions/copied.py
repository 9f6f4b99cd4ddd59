"""Copies the notebooks and the documents of the repository into the source tree of the site. Git ignores the copies.

Links of pages and copies are those of the repository, so that they work in a clone, too; they are led to the copies.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
#: A document of the repository -> its copy in the source tree.
DOCUMENTS = {
    "benchmarks/README.md": "benchmarks/README.md",
    "CONTRIBUTING.md": "project/CONTRIBUTING.md",
    "CHANGELOG.md": "project/CHANGELOG.md",
    "SECURITY.md": "project/SECURITY.md",
    "README.md": "index.md",
}
#: Folders of pictures, and of notebooks -> their copies.
_FOLDERS = {"notebooks/": "notebooks/", "benchmarks/": "benchmarks/", "docs/": ""}
_LINK = re.compile(
    r"(?P<text>\[(?:[^\[\]]|\[[^\]]*\])*\])\((?!https?:|mailto:|#)(?P<path>[^()\s#]+)(?P<anchor>#[^()\s]*)?\)"
)


def led(text: str, here: str, page: str) -> str:
    """Return a text with its links led from the files of the repository to those of the site.

    Parameters
    ----------
    text : str
        Markdown.
    here : str
        The path of its file in the repository.
    page : str
        The path of its page in the source tree of the site.

    Returns
    -------
    str
        The text. A link to a file that the site does not have is its text alone.
    """

    def lead(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), found["path"]))
        place = _place(target)
        if place is None:
            words = found["text"][1:-1]
            return words if "`" in words or " " in words else f"`{words}`"
        relative = posixpath.relpath(place, posixpath.dirname(page) or ".")
        return f"{found['text']}({relative}{found['anchor'] or ''})"

    return _LINK.sub(lead, text)


def _place(target: str) -> str | None:
    """Return the path in the source tree of the site of a file of the repository; None if it is not there."""
    if target in DOCUMENTS:
        return DOCUMENTS[target]
    for folder, copy in _FOLDERS.items():
        if target.startswith(folder) and target.endswith((".md", ".ipynb", ".png", ".svg")):
            return copy + target.removeprefix(folder)
    return None


def _copy(app: Sphinx, config: Any) -> None:
    source = Path(app.srcdir)
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        name = f"notebooks/{path.name}"
        _write(source / name, led(path.read_text(encoding="utf-8"), name, name))
    for document, copy in DOCUMENTS.items():
        if document != "README.md":
            _write(source / copy, led((ROOT / document).read_text(encoding="utf-8"), document, copy))
    for pictures in ("notebooks/images", "benchmarks/figures"):
        shutil.copytree(ROOT / pictures, source / pictures, dirs_exist_ok=True)


def _write(path: Path, text: str) -> None:
    """Write a file only if its text is new, so that Sphinx reads only what has changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _lead_links_of_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Lead the links of a page that is not a copy."""
    path = os.fspath(app.env.doc2path(docname, base=False))
    if path == "index.md" or (path.endswith(".md") and path not in DOCUMENTS.values()):
        source[0] = led(source[0], f"docs/{path}", path)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("config-inited", _copy)  # before Sphinx looks for pages
    app.connect("source-read", _lead_links_of_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
