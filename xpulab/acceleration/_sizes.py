"""From which size on the engines compute a call: a table that ``benchmarks/accel.py`` measured."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DEFAULT", "FILE", "Sizes", "sizes_of"]

#: The table: estimator -> smallest numbers of values (rows x columns) of a fit and of any other call.
FILE = Path(__file__).parent / "sizes.json"


@dataclass(frozen=True)
class Sizes:
    """The smallest numbers of values (rows x columns) of X with which calls of an estimator run on the engines.

    Attributes
    ----------
    fit : int or None
        For methods that fit. None if the engines were not faster at any size that was measured.
    call : int or None
        For all other methods.
    measured : bool
        Whether the numbers were measured, or are those for estimators that were not.
    """

    fit: int | None
    call: int | None
    measured: bool = True

    def least(self, fits: bool) -> int | None:
        """Return the smallest number of values of a fit, or of another call."""
        return self.fit if fits else self.call


#: The sizes of estimators that the table does not have.
DEFAULT = Sizes(200_000, 2_000_000, measured=False)


def sizes_of(name: str) -> Sizes:
    """Return the sizes of the estimator with this name."""
    return _table().get(name, DEFAULT)


@functools.cache
def _table() -> dict[str, Sizes]:
    written: dict[str, dict[str, int | None]] = json.loads(FILE.read_text())["sizes"]
    return {name: Sizes(each["fit"], each["call"]) for name, each in written.items()}
