"""Writes llms.txt: the site's title, its summary, and a link with one line for each page, for programs that read it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

#: The heading of a part of the list -> the folders or pages of it, in the order of the list.
PARTS = {
    "Start": ("start/", "assistants"),
    "Guide": ("guide/",),
    "Reference": ("reference/",),
    "About": ("promises", "benchmarks/", "how_it_works", "asked_elsewhere", "project/"),
    "Optional": ("notebooks/",),  # and the estimators for ranks, which repeat those of the reference
}


def _about(tree: nodes.document) -> str:
    """Return the first sentence of a page."""
    for paragraph in tree.findall(nodes.paragraph):
        if isinstance(paragraph.parent, nodes.section | addnodes.desc_content):
            text = " ".join(paragraph.astext().split())
            return re.split(r"(?<=\.) (?=[A-Z])", text)[0]
    return ""


def listed(app: Sphinx) -> str:
    """Return the text of llms.txt."""
    env = app.env
    lines = [f"# {app.config.project}", "", f"> {_about(env.get_doctree('index'))}", ""]
    left = sorted(env.found_docs - {"index"})
    for part, beginnings in PARTS.items():
        optional = part == "Optional"
        pages = [name for start in beginnings for name in left if name.startswith(start)]
        pages = [name for name in pages if optional or "xpulab.spmd" not in name]
        pages += [name for name in left if optional and "xpulab.spmd" in name]
        lines += [f"## {part}", ""]
        for name in dict.fromkeys(pages):
            title = env.titles[name].astext()
            about = _about(env.get_doctree(name))
            lines.append(f"- [{title}]({app.builder.get_target_uri(name)})" + (f": {about}" if about else ""))
        lines.append("")
    return "\n".join(lines)


def _write(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        (Path(app.outdir) / "llms.txt").write_text(listed(app), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
