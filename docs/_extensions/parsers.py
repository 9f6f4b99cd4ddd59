"""The directive `parser`: the options of a magic or a command, from the parser that also prints its ``-h``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from xpulab import cli, magics
from xpulab.console import cell_options, every_cell
from xpulab.console.commands import Parser

_WIDTH = 76  # of a line of usage, in characters

#: What readers type -> the parser that explains it.
PARSERS: dict[str, Callable[[], Parser]] = {
    "%xpu_cluster": lambda: magics.XPUMagics(None).parser(),
    "%%xpu": cell_options.cell_parser,
    "%autoxpu": every_cell.auto_parser,
    "%%xpu_profile": cell_options.profile_parser,
    "xpulab": cli._parser,
}


def subcommands(parser: Parser) -> dict[str, Parser]:
    """Return the subcommands of a parser, in the order in which they were added."""
    found = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(next(found, {}))


def options(parser: Parser) -> Iterator[tuple[list[str], str]]:
    """Yield, for each argument of a parser, how it is typed, and its explanation with its default."""
    formatter = parser._get_formatter()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
            continue
        value = formatter._format_args(action, formatter._get_default_metavar_for_optional(action)).strip()
        if action.option_strings:
            typed = [" ".join(filter(None, (option, value))) for option in action.option_strings]
        else:
            typed = [value]
        yield typed, formatter._expand_help(action) if action.help else ""


def usage(parser: Parser) -> str:
    """Return the usage of a parser, in lines that end between two arguments."""
    text = " ".join(parser.format_usage().removeprefix("usage: ").split())
    lines = [""]
    for argument in re.findall(r"\[[^\]]*\]|\S+", text):
        if len(lines[-1]) + len(argument) >= _WIDTH:
            lines.append("   ")
        lines[-1] += f" {argument}"
    return "\n".join(lines)[1:]


class ParserDirective(SphinxDirective):
    """``.. parser:: %xpu_cluster``: a section for each subcommand, with its usage and its options."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {"traits": directives.flag}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the parser and of its subcommands."""
        parser = PARSERS[self.arguments[0]]()
        found: list[nodes.Node] = list(self._described(parser))
        for name, each in subcommands(parser).items():
            section = nodes.section(ids=[nodes.make_id(f"{each.prog}")])
            section += nodes.title(text=name)
            section += list(self._described(each))
            self.state.document.note_explicit_target(section)
            found.append(section)
        if "traits" in self.options:
            found += self._traits()
        return found

    def _described(self, parser: Parser) -> Iterator[nodes.Node]:
        if parser.description:
            yield nodes.paragraph(text=parser.description)
        yield nodes.container("", nodes.literal_block(text=usage(parser), language="text"), classes=["usage"])
        yield self._table([(typed, text) for typed, text in options(parser) if "-h" not in typed])

    def _table(self, rows: list[tuple[list[str], str]]) -> nodes.Node:
        listed = nodes.definition_list(classes=["options"])
        for typed, text in rows:
            item = nodes.definition_list_item()
            term = nodes.term()
            for index, each in enumerate(typed):
                term += [nodes.Text(", ")] * bool(index) + [nodes.literal(text=each)]
            item += [term, nodes.definition("", nodes.paragraph(text=text))]
            listed += item
        return listed if rows else nodes.comment()

    def _traits(self) -> list[nodes.Node]:
        traits = magics.XPUMagics.class_own_traits(config=True)
        rows = [
            ([f"XPUMagics.{name}"], f"{trait.help} (default: {trait.default_value})") for name, trait in traits.items()
        ]
        section = nodes.section(ids=["defaults-of-the-magic"])
        section += nodes.title(text="Defaults")
        section += nodes.paragraph(
            text="The magic's defaults can be set with %config, such as %config XPUMagics.n = 4."
        )
        section += self._table(rows)
        return [section]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("parser", ParserDirective)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
