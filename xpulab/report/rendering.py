"""Functions that turn values into text and HTML: numbers, sizes, times, tables. Every layer may use them.

They are pure, except for `written`, which also writes a text to a file.

All text from data is escaped here, once: `escape` returns `Html`, and no function escapes `Html` again.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import html
import io
import math
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "WIDGET_VIEW",
    "Displayed",
    "Html",
    "Text",
    "as_of",
    "block",
    "counted",
    "drawn",
    "escape",
    "format_count",
    "format_number",
    "format_seconds",
    "format_size",
    "in_notebook",
    "pairs",
    "plain",
    "shorten",
    "style",
    "summaries",
    "table_csv",
    "table_html",
    "table_text",
    "this_client",
    "widget_view",
    "written",
]

_MISSING = "–"

# Widths in pixels in a table's cell, with the sizes in the style sheets: a letter, the padding, and a colour key.
_LETTER, _PADDING, _KEY = 6.5, 14, 20


class Html(str):
    """Text that is HTML already, and must not be escaped again."""

    __slots__ = ()


#: MIME type under which a cell's output names the widget that a front end shows.
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def widget_view(widget: Any) -> dict[str, Any]:
    """Return the part of a cell's output that shows this widget of ipywidgets."""
    return {WIDGET_VIEW: {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}}


class Text(str):
    """Text that IPython shows as lines, not as a quoted string."""

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


class Displayed:
    """Gives front ends both the HTML (`_repr_html_`) and the text (`__str__`) of an object."""

    def _repr_html_(self) -> str:
        raise NotImplementedError

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": str(self)}


def as_of(how: str) -> str:
    """Say when a view was last updated, and `how` to see the present state, for readers of a saved notebook."""
    return f"as of {time.strftime('%Y-%m-%d %H:%M:%S')}; {how}"


def plain(value: object) -> str:
    """Return the text of a value on one line, without control characters: a device's name must not move the cursor."""
    return "".join(c if c.isprintable() else " " for c in str(value)).strip()


def shorten(value: object, width: int) -> str:
    """Return `plain` text without its middle if it is too wide. Device names differ at their beginnings and ends."""
    text = plain(value)
    if len(text) <= width:
        return text
    tail = (width - 1) // 3
    return f"{text[: width - 1 - tail]}…{text[-tail:]}"


def in_notebook(shell: Any) -> bool:
    """Return whether this shell of IPython (or None) belongs to a notebook, whose front end shows HTML and widgets."""
    # The class is compared by name, because a terminal need not have ipykernel. Shells of other front ends, such as
    # Colab's, derive from this class.
    return any(parent.__name__ == "ZMQInteractiveShell" for parent in type(shell).__mro__)


def this_client() -> str:
    """Return the words for this process, as a client of a cluster: "this notebook" if it is a notebook's kernel."""
    shell = sys.modules["IPython"].get_ipython() if hasattr(sys.modules.get("IPython"), "get_ipython") else None
    return "this notebook" if in_notebook(shell) else "this process"


def escape(value: object) -> Html:
    """Return HTML that shows ``value``. `Html` is returned unchanged."""
    if isinstance(value, Html):
        return value
    text = "".join(c if c.isprintable() or c == "\n" else " " for c in str(value))
    return Html(html.escape(text, quote=True))


def format_count(value: int | None) -> str:
    """Return a whole number with separated thousands, ``"2,000,000"``."""
    return _MISSING if value is None else f"{value:,}"


def counted(n: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, ``"1 engine"`` or ``"3 engines"``. By default the plural is the noun with an s."""
    return f"{n} {noun if n == 1 else plural or noun + 's'}"


def format_number(value: float | None, digits: int = 6) -> str:
    """Return a number with ``digits`` significant digits."""
    return _MISSING if value is None else f"{value:.{digits}g}"


def format_size(value: float | None) -> str:
    """Return a number of bytes in binary units, ``"1.5 GiB"``."""
    if value is None:
        return _MISSING
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, max(0, int(value).bit_length() - 1) // 10)
    scaled = value / 1024**power
    return f"{scaled:.{0 if power == 0 or scaled >= 100 else 1}f} {units[power]}"


def format_seconds(value: float | None) -> str:
    """Return a time in seconds as text in a suitable unit: ``"0.42 ms"``, ``"3.4 s"``, ``"2 min 05 s"``."""
    if value is None:
        return _MISSING
    if value < 0.9995:
        return f"{value * 1e3:.3g} ms"
    if value < 59.95:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def table_text(header: Sequence[str], rows: Iterable[Sequence[object]], align: str, indent: str = "  ") -> str:
    """Return a table in plain text.

    Parameters
    ----------
    header : sequence of str
        Names of the columns.
    rows : iterable of sequences
        The cells; `str` is applied to each.
    align : str
        One letter per column, ``"l"`` for left and ``"r"`` for right.
    indent : str
        Text at the start of each line.
    """
    lines = [[plain(cell) for cell in line] for line in (header, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    turned = (
        "  ".join(c.rjust(w) if a == "r" else c.ljust(w) for c, w, a in zip(line, widths, align, strict=True))
        for line in lines
    )
    return "\n".join((indent + line).rstrip() for line in turned)


def table_csv(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV, with a line for the header."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def written(text: str, path: str | os.PathLike[str] | None) -> str:
    """Write a text to a file in UTF-8, if there is a path, and return it."""
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def table_html(
    header: Sequence[object],
    rows: Iterable[Sequence[object]],
    align: str,
    caption: object = "",
) -> Html:
    """Return a table in HTML, with a scope attribute in each header for screen readers.

    If the screen is narrower than the table, each row is folded into a list of named values. On paper it is not folded.

    Parameters
    ----------
    header : sequence of str or Html
        Names of the columns.
    rows : iterable of sequences of str or Html
        The cells; the first of each row is its header. Cells that are not `Html` are escaped.
    align : str
        One letter per column, ``"l"`` for left and ``"r"`` for right.
    caption : str or Html
        What the table shows; no caption if empty.
    """
    classes = [' class="xpu-r"' if letter == "r" else "" for letter in align]
    names = [escape(_words(name)) for name in header]

    def line(cells: Sequence[object]) -> str:
        first, *others = (
            f'{c} data-column="{name}">{escape(cell)}' for cell, c, name in zip(cells, classes, names, strict=True)
        )
        return f'<tr><th scope="row"{first}</th>' + "".join(f"<td{cell}</td>" for cell in others) + "</tr>"

    lines = list(rows)
    head = "".join(f'<th scope="col"{c}>{escape(name)}</th>' for name, c in zip(header, classes, strict=True))
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "".join(map(line, lines))
    width = _least_width(header, lines, align)
    return Html(
        f'<div class="xpu-scroll xpu-fold-{width}"><style>@media screen{{@container (max-width:{width}px)'
        f"{{{style('folded').replace('WIDTH', str(width))}}}}}</style>"
        f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _least_width(header: Sequence[object], rows: Sequence[Sequence[object]], align: str) -> int:
    """Return the width in pixels below which a table is folded.

    Left-aligned text may take three lines, all other cells one.
    """

    def letters(cell: object, letter: str) -> float:
        text = _words(cell)
        return max(map(len, text.split("\n"))) if letter == "r" else max([len(text) / 3, *map(len, text.split())])

    columns = zip(header, align, *rows, strict=True)
    widths = (max(len(_words(name)) + 1, *(letters(cell, a) for cell in cells), 0) for name, a, *cells in columns)
    keys = sum("<" in str(name) for name in header)
    return 40 * math.ceil((sum(_LETTER * width + _PADDING for width in widths) + _KEY * keys) / 40)


def _words(cell: object) -> str:
    """Return the text of a cell without its tags."""
    return html.unescape(re.sub("<[^>]*>", "", cell.replace("<br>", "\n"))) if isinstance(cell, Html) else str(cell)


def drawn(picture: str, words: str) -> Html:
    """Return HTML that needs a style sheet or SVG, with a replacement for front ends that remove these.

    JupyterLab and others remove style sheets and SVG from the outputs of a notebook that is not trusted, such as one
    that another person made. They keep the attribute ``hidden`` if it has a value, and so hide the picture. The style
    sheet of all blocks, where it is kept, shows the picture and hides the words.

    Parameters
    ----------
    picture, words : str
        HTML. ``words`` is the replacement, and may contain tables and images, but no style and no SVG.
    """
    return Html(f'<div class="xpu-drawn" hidden="hidden">{picture}</div><div class="xpu-undrawn">{words}</div>')


@functools.cache
def style(name: str) -> str:
    """Return one of the style sheets in ``xpulab/styles``, on one line and without its comments."""
    text = (Path(__file__).parents[1] / "styles" / f"{name}.css").read_text()
    return re.sub(r"/\*.*?\*/|\n", "", text, flags=re.DOTALL)


def block(label: str, body: Iterable[str], css: str = "") -> Html:
    """Return one self-contained piece of HTML, for a page or a notebook's output.

    Parameters
    ----------
    label : str
        The name that a screen reader says.
    body : iterable of str
        Pieces of HTML, in order.
    css : str
        Style of this kind of block, in addition to the style of all blocks.
    """
    css = style("base") + css
    return Html(f'<div class="xpu" role="group" aria-label="{escape(label)}"><style>{css}</style>{"".join(body)}</div>')


def pairs(parameters: Mapping[str, object]) -> str:
    """Return parameters on one line, ``"n_clusters=8, tol=0.01"``."""
    return ", ".join(f"{name}={plain(value)}" for name, value in parameters.items())


def summaries(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values that describe the parameters, without those that cannot be described.

    A parameter may be any object of the user, whose attributes and texts may raise any exception. A call must not fail
    because of its report.
    """
    found = {}
    for name, value in parameters.items():
        with contextlib.suppress(Exception):
            found[str(name)] = _summary(value)
    return found


def _summary(value: Any) -> Any:
    """Return a plain value that describes ``value``, without a reference to it or to its class.

    The engines get the report. They cannot import the class of a user's string or number, such as an enumeration.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    for number in (int, float):
        if isinstance(value, number):
            return number(value)
    if isinstance(value, type):
        return value.__name__
    shape = getattr(value, "shape", ())
    if shape != ():
        return f"{type(value).__name__} of shape {tuple(shape)}"
    if hasattr(value, "item"):
        scalar = value.item()
        return _summary(scalar) if type(scalar) is not type(value) else _text(scalar)
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return _text(value)


def _text(value: Any) -> str:
    text = str.__str__(repr(value))
    return text if len(text) <= 80 else text[:77] + "..."
