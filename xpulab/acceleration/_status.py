"""`AccelerationStatus`: the sizes from which on the engines compute, and what ran where so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xpulab.acceleration._log import Log, about_lacking
from xpulab.acceleration._registry import pairs
from xpulab.acceleration._sizes import Sizes, sizes_of
from xpulab.report.rendering import Displayed, Html, block, counted, escape, format_count, plain, table_html, table_text

__all__ = ["AccelerationStatus", "Row", "status_of"]

_HEADER = ("estimator", "smallest fit", "smallest other call", "on engines", "in scikit-learn", "most frequent reason")
_ALIGN = "lrrrrl"


@dataclass(frozen=True)
class Row:
    """One class of scikit-learn.

    Attributes
    ----------
    estimator : str
        Module and class, ``"cluster.KMeans"``.
    sizes : Sizes
        The numbers of values (rows x columns) from which on the engines compute.
    engines, here : int
        Number of calls on the engines and in scikit-learn.
    reason : str
        Most frequent reason of calls in scikit-learn; empty if there were none.
    """

    estimator: str
    sizes: Sizes
    engines: int
    here: int
    reason: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the row in the table."""
        default = "" if self.sizes.measured else " (default)"
        return (
            self.estimator,
            _size(self.sizes.fit) + default,
            _size(self.sizes.call) + default,
            format_count(self.engines),
            format_count(self.here),
            self.reason,
        )


def _size(least: int | None) -> str:
    return "none" if least is None else format_count(least)


@dataclass(frozen=True)
class AccelerationStatus(Displayed):
    """The table of accel: for each class the sizes, and what ran where so far. A notebook shows it as a table.

    Once accel was turned off, the table has the classes that were used.

    Attributes
    ----------
    on : bool
        Whether accel is on.
    strict : bool
        Whether a call in scikit-learn is an error.
    least : int or None
        The number of values that was given in place of the table's.
    rows : tuple of Row
    lacking : tuple of str
        Classes of scikit-learn that were fitted and that xpulab does not have.
    ended : bool
        Whether accel was on before, and is off now.
    """

    on: bool
    strict: bool
    least: int | None
    rows: tuple[Row, ...]
    lacking: tuple[str, ...] = ()
    ended: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-serialisable values."""
        return {
            "on": self.on,
            "strict": self.strict,
            "least": self.least,
            "lacking": list(self.lacking),
            "estimators": {
                row.estimator: {
                    "fit": row.sizes.fit,
                    "call": row.sizes.call,
                    "measured": row.sizes.measured,
                    "engines": row.engines,
                    "scikit-learn": row.here,
                    "reason": row.reason,
                }
                for row in self.rows
            },
        }

    @property
    def title(self) -> str:
        """Whether accel is on, and how many calls ran where, on one line."""
        if not self.on:
            return "accel is off; to turn it on, type: %xpu_cluster accel on"
        there, here = (sum(getattr(row, name) for row in self.rows) for name in ("engines", "here"))
        strict = ", strict" if self.strict else ""
        calls = f"accel is on{strict}: {counted(there, 'call')} on the engines, {here} in scikit-learn"
        return "; ".join([calls, *about_lacking(self.lacking)])

    @property
    def shown(self) -> tuple[Row, ...]:
        """The rows of the table."""
        return tuple(row for row in self.rows if row.engines or row.here) if self.ended else self.rows

    @property
    def about(self) -> str:
        """What the numbers of the table mean."""
        if not self.shown:
            return "While it was on, none of scikit-learn's classes that xpulab has was used."
        if self.least is not None:
            return f"accel was turned on with least={self.least}, which takes precedence over the sizes of the table."
        return (
            "The smallest fits and calls that the engines compute are numbers of values, rows × columns of X: from "
            "there on the engines were faster. 'none' means at no size that was measured."
        )

    def __str__(self) -> str:
        table = [table_text(_HEADER, [row.cells for row in self.shown], _ALIGN)] if self.shown else []
        return "\n".join([self.title, *table, f"  {plain(self.about)}"])

    def _repr_html_(self) -> Html:
        note = f'<div class="xpu-note">{escape(self.about)}</div>'
        if not self.shown:
            return block("accel", [f'<div class="xpu-note">{escape(self.title)}</div>', note])
        return block(
            "accel", [table_html(_HEADER, [row.cells for row in self.shown], _ALIGN, caption=self.title), note]
        )


def status_of(
    log: Log | None = None, on: bool = False, strict: bool = False, least: int | None = None
) -> AccelerationStatus:
    """Return the status of an acceleration with this log; by default that of a process in which none has been on."""
    if log is None:
        return AccelerationStatus(on, strict, least, tuple(_rows()))
    log.read()
    rows = []
    for row in _rows():
        name = row.estimator.rpartition(".")[2]
        mine = [(n, kind) for (estimator, kind), n in log.kinds.items() if estimator == name]
        reason = max(mine)[1] if mine else ""
        rows.append(Row(row.estimator, row.sizes, log.counts[name, True], log.counts[name, False], reason))
    return AccelerationStatus(on, strict, least, tuple(rows), tuple(sorted(log.lacking)), ended=not on)


def _rows() -> list[Row]:
    return [
        Row(f"{theirs.__module__.split('.')[1]}.{theirs.__name__}", sizes_of(theirs.__name__), 0, 0, "")
        for theirs in pairs()
    ]
