"""How values become text and HTML: numbers, sizes, times, tables. Pure functions, of use to every layer.

Whatever comes from data is escaped here, once: `escape` returns `Html`, and only `Html` is passed through as it is.
"""

from __future__ import annotations

import functools
import html
import math
import re
import time
from collections.abc import Iterable, Sequence
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
    "plain",
    "shorten",
    "style",
    "table_html",
    "table_text",
    "widget_view",
]

_MISSING = "–"

# Of a table's cell, in pixels: a letter, the padding, and the key of a colour, at the sizes that the styles give them.
_LETTER, _PADDING, _KEY = 6.5, 14, 20


class Html(str):
    """Text that is HTML already, and is not escaped again."""

    __slots__ = ()


#: How a cell's output names the widget that a front end shows in its place.
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def widget_view(widget: Any) -> dict[str, Any]:
    """The part of an output that shows this widget of ipywidgets."""
    return {WIDGET_VIEW: {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}}


class Text(str):
    """Text that a shell shows as it stands, with its lines, and not as a quoted string."""

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


class Displayed:
    """What a front end needs to show an object that has `_repr_html_` and `__str__`: both forms, always."""

    def _repr_html_(self) -> str:
        raise NotImplementedError

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": str(self)}


def as_of(how: str) -> str:
    """When a view was last true, and `how` to see more, for whoever finds it without its kernel or cluster."""
    return f"as of {time.strftime('%Y-%m-%d %H:%M:%S')}; {how}"


def plain(value: object) -> str:
    """Text on one line without control characters: a device's name must not move a terminal's cursor."""
    return "".join(c if c.isprintable() else " " for c in str(value)).strip()


def shorten(value: object, width: int) -> str:
    """`plain`, without its middle if it is too wide: device names differ at their beginning and their end."""
    text = plain(value)
    if len(text) <= width:
        return text
    tail = (width - 1) // 3
    return f"{text[: width - 1 - tail]}…{text[-tail:]}"


def in_notebook(shell: Any) -> bool:
    """Whether this shell of IPython (or None) belongs to a notebook, whose front end shows HTML and widgets."""
    # By name: a terminal does not need ipykernel, and the shells of other front ends (Colab) derive from this class.
    return any(parent.__name__ == "ZMQInteractiveShell" for parent in type(shell).__mro__)


def escape(value: object) -> Html:
    """HTML that shows ``value``; `Html` comes back as it is."""
    if isinstance(value, Html):
        return value
    text = "".join(c if c.isprintable() or c == "\n" else " " for c in str(value))
    return Html(html.escape(text, quote=True))


def format_count(value: int | None) -> str:
    """A whole number with its thousands set apart, ``"2,000,000"``."""
    return _MISSING if value is None else f"{value:,}"


def counted(n: int, noun: str, plural: str = "") -> str:
    """A number of things, ``"1 engine"`` or ``"3 engines"``; the plural is the noun and an s by default."""
    return f"{n} {noun if n == 1 else plural or noun + 's'}"


def format_number(value: float | None, digits: int = 6) -> str:
    """A measured number to ``digits`` significant digits."""
    return _MISSING if value is None else f"{value:.{digits}g}"


def format_size(value: float | None) -> str:
    """A number of bytes in binary units, ``"1.5 GiB"``."""
    if value is None:
        return _MISSING
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, max(0, int(value).bit_length() - 1) // 10)
    scaled = value / 1024**power
    return f"{scaled:.{0 if power == 0 or scaled >= 100 else 1}f} {units[power]}"


def format_seconds(value: float | None) -> str:
    """A time in the unit that reads best: ``"0.42 ms"``, ``"3.4 s"``, ``"2 min 05 s"``, ``"1 h 02 min"``."""
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
    """A table in plain text.

    Parameters
    ----------
    header : sequence of str
        Names of the columns.
    rows : iterable of sequences
        The cells; `str` is applied to each.
    align : str
        One letter per column, ``"l"`` for left and ``"r"`` for right.
    indent : str
        What each line starts with.
    """
    lines = [[plain(cell) for cell in line] for line in (header, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    turned = (
        "  ".join(c.rjust(w) if a == "r" else c.ljust(w) for c, w, a in zip(line, widths, align, strict=True))
        for line in lines
    )
    return "\n".join((indent + line).rstrip() for line in turned)


def table_html(
    header: Sequence[object],
    rows: Iterable[Sequence[object]],
    align: str,
    caption: object = "",
) -> Html:
    """A table in HTML, whose headers say which column or row they belong to.

    Where it has less room than its cells need, each row is folded into a list of named values.

    Parameters
    ----------
    header : sequence of str or Html
        Names of the columns.
    rows : iterable of sequences of str or Html
        The cells; the first of each row names the row. All but `Html` are escaped.
    align : str
        One letter per column, ``"l"`` for left and ``"r"`` for right.
    caption : str or Html
        What the table shows; the empty text for none.
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
        f'<div class="xpu-scroll xpu-fold-{width}"><style>@container (max-width:{width}px)'
        f"{{{style('folded').replace('WIDTH', str(width))}}}</style>"
        f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _least_width(header: Sequence[object], rows: Sequence[Sequence[object]], align: str) -> int:
    """Pixels below which a table is folded: texts on the left may take three lines; numbers and the header have one."""

    def letters(cell: object, letter: str) -> float:
        text = _words(cell)
        return max(map(len, text.split("\n"))) if letter == "r" else max([len(text) / 3, *map(len, text.split())])

    columns = zip(header, align, *rows, strict=True)
    widths = (max(len(_words(name)) + 1, *(letters(cell, a) for cell in cells), 0) for name, a, *cells in columns)
    keys = sum("<" in str(name) for name in header)
    return 40 * math.ceil((sum(_LETTER * width + _PADDING for width in widths) + _KEY * keys) / 40)


def _words(cell: object) -> str:
    """The text of a cell without its tags."""
    return html.unescape(re.sub("<[^>]*>", "", cell.replace("<br>", "\n"))) if isinstance(cell, Html) else str(cell)


def drawn(picture: str, words: str) -> Html:
    """HTML that needs a style sheet or SVG, and what stands in its place where the front end removes these.

    JupyterLab and others remove both from the outputs of a notebook that is not trusted, such as a copy of another
    person's. They keep the attribute ``hidden`` if it has a value; the style of all blocks overrides it.

    Parameters
    ----------
    picture, words : str
        HTML. ``words`` can contain tables and images, but no style and no SVG.
    """
    return Html(f'<div class="xpu-drawn" hidden="hidden">{picture}</div><div class="xpu-undrawn">{words}</div>')


@functools.cache
def style(name: str) -> str:
    """One of the style sheets in ``xpulab/styles``, on one line and without its comments."""
    text = (Path(__file__).parent / "styles" / f"{name}.css").read_text()
    return re.sub(r"/\*.*?\*/|\n", "", text, flags=re.DOTALL)


def block(label: str, body: Iterable[str], css: str = "") -> Html:
    """One self-contained piece of a page or a notebook's output.

    Parameters
    ----------
    label : str
        What a screen reader calls it.
    body : iterable of str
        Pieces of HTML, in order.
    css : str
        Style of this kind of block, besides the style of all blocks.
    """
    css = style("base") + css
    return Html(f'<div class="xpu" role="group" aria-label="{escape(label)}"><style>{css}</style>{"".join(body)}</div>')
