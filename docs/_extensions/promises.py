"""The role `test`: a link from a promise to the source of the test that holds it.

A page that uses the role ends with the directive `tests`, which shows these tests.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

ROOT = Path(__file__).parents[2]
_ROLE = re.compile(r"\{test\}`([^`]+)`")


def named(text: str) -> list[str]:
    """Return the tests that a page names, each once, such as ``tests/test_data.py::test_name``."""
    return list(dict.fromkeys(_ROLE.findall(text)))


def source(test: str) -> str:
    """Return the source of a test.

    Raises
    ------
    LookupError
        If there is no such test.
    """
    file, _, name = test.partition("::")
    path = ROOT / file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    raise LookupError(f"there is no test {test}")


class TestRole(SphinxRole):
    """A link to the source of a test, at the end of the page."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the link, or a message that the test does not exist."""
        try:
            source(self.text)
        except LookupError as error:
            message = self.inliner.reporter.error(str(error), line=self.lineno)
            return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [message]
        words = self.text.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        link = nodes.reference(refid=nodes.make_id(self.text), classes=["test"])
        link += nodes.Text(words)
        return [link], []


class TestsDirective(SphinxDirective):
    """The sources of all tests that the page names."""

    def run(self) -> list[nodes.Node]:
        """Return a section for each test."""
        text = Path(self.env.doc2path(self.env.docname)).read_text(encoding="utf-8")
        found: list[nodes.Node] = []
        for test in named(text):
            box = nodes.container(ids=[nodes.make_id(test)], classes=["held"])
            box += nodes.paragraph("", "", nodes.literal(text=test))
            block = nodes.literal_block(text=source(test), language="python")
            box += block
            self.env.note_dependency(str(ROOT / test.partition("::")[0]))
            found.append(box)
        return found


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the role and the directive."""
    app.add_role("test", TestRole())
    app.add_directive("tests", TestsDirective)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
