"""Copies the notebooks into the source tree of the site, where MyST-NB finds them. Git ignores the copies."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

#: A link of a notebook to a file of the repository -> the page that has it.
_LINKS = {"../README.md#commands": "../guide/commands.md"}


def _copy(app: Sphinx, config: Any) -> None:
    source = Path(app.srcdir).parent / "notebooks"
    target = Path(app.srcdir) / "notebooks"
    target.mkdir(exist_ok=True)
    for path in source.glob("*.ipynb"):
        text = path.read_text(encoding="utf-8")
        for link, page in _LINKS.items():
            text = text.replace(f"]({link})", f"]({page})")
        _write(target / path.name, text)
    shutil.copytree(source / "images", target / "images", dirs_exist_ok=True)


def _write(path: Path, text: str) -> None:
    """Write a file only if its text is new, so that Sphinx reads only what has changed."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("config-inited", _copy)  # before Sphinx looks for pages
    return {"parallel_read_safe": True, "parallel_write_safe": True}
