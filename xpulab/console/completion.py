"""What Tab and Shift-Tab show of the magics' words, and in ``%%xpu`` cells of the names that the ranks have."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from IPython.core.completer import SimpleCompletion
from IPython.utils.tokenutil import token_at_cursor

from xpulab.console.commands import Parser
from xpulab.deploy.cluster import XPUCluster

__all__ = ["Offered", "TypedCell", "explaining", "names_in_cell", "offered", "words_in_line"]

#: A dotted name, of which the parts before the last dot may have subscripts, at the end of a line.
_TYPED = re.compile(r"((?:[^\W\d]\w*(?:\[[^\[\]]*\])*\.)*)([^\W\d]\w*|)$")
_IMPORT = re.compile(r"^\s*(from|import)\s")


class Offered(TypedDict, total=False):
    """What a matcher of IPython's completer returns."""

    completions: list[SimpleCompletion]
    matched_fragment: str
    suppress: bool


class TypedCell:
    """The lines of a ``%%xpu`` cell, without those of magics at its beginning.

    Parameters
    ----------
    text : str
        The whole cell.
    always : bool
        Whether the cell runs on the ranks also without ``%%xpu``.

    Attributes
    ----------
    magics : list of str
        The lines at the beginning with ``%%xpu`` and ``%%xpu_profile``.
    source : str
        The other lines.
    on_ranks : bool
        Whether they run on the ranks.
    """

    def __init__(self, text: str, always: bool = False) -> None:
        lines = text.split("\n")
        n = next((n for n, line in enumerate(lines) if not line.startswith("%%xpu")), len(lines))
        self.magics, self.source = lines[:n], "\n".join(lines[n:])
        self.on_ranks = any(line.split()[0] == "%%xpu" for line in self.magics) or (
            always and not n and not text.lstrip().startswith("%")
        )


def offered(fragment: str, found: Mapping[str, str]) -> Offered:
    """Return what a matcher of IPython's completer returns: the names that begin with a fragment, and their kinds."""
    private = fragment.startswith("_")
    names = [name for name in found if name.startswith(fragment) and (private or not name.startswith("_"))]
    # Suppress the suggestions of other matchers: the notebook's names have no meaning there.
    return {
        "completions": [SimpleCompletion(name, type=found[name]) for name in names],
        "matched_fragment": fragment,
        "suppress": bool(names),
    }


def words_in_line(parser: Parser, typed: str) -> Offered:
    """Return what completes the last word of a magic's line, of which `typed` is what comes after its name."""
    *before, last = re.split(r"[\s=]+", typed.lstrip())
    return offered(last.rpartition(",")[2], parser.follow(before))


def names_in_cell(cluster: XPUCluster | None, source: str, line: int, column: int) -> Offered:
    """Return what completes a name in a cell: the names that rank 0 has, and those of the cell itself."""
    text = source.split("\n")[line][:column]
    typed = _TYPED.search(text)
    if typed is None or text.lstrip().startswith(("%", "!")):
        return {"completions": []}
    expression, fragment = typed[1][:-1], typed[2]
    found = _names_of_source(source, line, column)
    before = text[: typed.start()]
    if cluster is not None and not before.endswith(".") and not _IMPORT.match(text):
        found |= cluster.variables.completion.after(expression)
    return offered(fragment, found)


def _names_of_source(source: str, line: int, column: int) -> dict[str, str]:
    """Return what jedi reads out of a cell that has not run: its imports and assignments, and Python's own names."""
    try:
        import jedi  # IPython's, which a user may have removed

        return {each.name: each.type for each in jedi.Script(source).complete(line + 1, column)}
    except Exception:  # of an expression that jedi does not understand
        return {}


def explaining(
    inspect: Callable[..., Any],
    explained: Callable[[str, int, str, int], Mapping[str, str] | None],
) -> Callable[..., Any]:
    """Return a method `do_inspect` of a kernel that asks first for what is not the notebook's.

    Parameters
    ----------
    inspect : callable
        The kernel's method.
    explained : callable
        Takes a cell, the position in it, the name there, and the level of detail. Returns texts by MIME type: empty if
        nothing is known of a name that is not the notebook's, None of one that is.
    """

    @functools.wraps(inspect)
    def do_inspect(code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Any = ()) -> Any:
        found = explained(code, cursor_pos, token_at_cursor(code, cursor_pos), detail_level)
        if found is None:
            return inspect(code, cursor_pos, detail_level, omit_sections)
        return {"status": "ok", "found": bool(found), "data": found, "metadata": {}}

    return do_inspect
