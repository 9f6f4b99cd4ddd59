"""What lives on the ranks: the variables of ``%%xpu`` cells, and the rows that all processes may use, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from xpulab.deploy.plan.probe import core_ranges
from xpulab.report.rendering import Displayed, Html, block, counted, format_size, plain, table_html, table_text
from xpulab.sharing.sources import Description
from xpulab.sharing.variables import Variable

__all__ = ["Names", "Variable"]

_HEADER = ("name", "type", "shape", "bytes", "ranks", "value")
_ALIGN = "llrrll"
_SAME, _DIFFERS, _UNKNOWN = "the same", "per rank", "not compared"


@dataclass(frozen=True, repr=False)
class Names(Displayed):
    """The variables of ``%%xpu`` cells on the ranks, and the rows that all processes may use.

    A notebook shows it as a table, and `str` makes text of it. Ranks whose variables of one name have the same type,
    shape and bytes share a row of the table. Its last column says whether their values are the same, too.

    Attributes
    ----------
    ranks : dict of int to list of Variable
        The variables of each rank, in the order of their names. Names that begin with an underscore, modules, and what
        every cell has (``comm``, ``rank``, ``size``, ``device``, ``queue``) are left out.
    rows : list of Description
        The rows of `XPUCluster.handles`.
    """

    ranks: Mapping[int, Sequence[Variable]]
    rows: Sequence[Description] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the names as JSON-serialisable values."""
        return {
            "ranks": {rank: [asdict(each) for each in variables] for rank, variables in self.ranks.items()},
            "rows": [{"name": each.name, "shape": list(each.shape), "dtype": str(each.dtype)} for each in self.rows],
        }

    def __str__(self) -> str:
        table = self._table()
        return "\n".join([self._title, *([table_text(_HEADER, table, _ALIGN)] if table else [])])

    __repr__ = __str__

    def _repr_html_(self) -> Html:
        table = self._table()
        title = Html(f"<div>{self._title}</div>")
        return block("Names on the ranks", [table_html(_HEADER, table, _ALIGN, self._title) if table else title])

    @property
    def _title(self) -> str:
        known = {each.name for variables in self.ranks.values() for each in variables}
        size = format_size(sum(each.nbytes for variables in self.ranks.values() for each in variables))
        rows = f", and {counted(len(self.rows), 'handle')} of rows" if self.rows else ""
        return f"{counted(len(known), 'name')} on {counted(len(self.ranks), 'rank')}, {size}{rows}"

    def _table(self) -> list[list[str]]:
        groups: dict[tuple[str, str, tuple[int, ...], int], dict[int, str]] = {}
        for rank, variables in self.ranks.items():
            for each in variables:
                groups.setdefault((each.name, each.type, each.shape, each.nbytes), {})[rank] = each.digest
        return [
            [plain(name), plain(kind), _shape(shape), format_size(nbytes), core_ranges(list(digests)), _value(digests)]
            for (name, kind, shape, nbytes), digests in sorted(groups.items(), key=lambda item: item[0][0])
        ] + [
            [
                plain(each.name or "–"),
                f"rows of {each.dtype}",
                _shape(each.shape),
                format_size(int(np.prod(each.shape)) * each.dtype.itemsize),
                core_ranges(list(self.ranks)),
                _DIFFERS,
            ]
            for each in self.rows
        ]


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(f"{n:,}" for n in shape)


def _value(digests: Mapping[int, str]) -> str:
    """Say whether the values of several ranks are the same."""
    if len(digests) < 2:
        return ""
    if len(set(digests.values())) > 1:
        return _DIFFERS
    return _SAME if all(digests.values()) else _UNKNOWN
