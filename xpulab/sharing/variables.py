"""The variables of cells: those that every cell has, and what a rank tells of the others, without their values."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GIVEN", "Variable"]

#: The names that every cell has without making them, and the kinds of their values, as completion shows them.
GIVEN = dict.fromkeys(("comm", "device", "queue", "rank", "size"), "instance") | dict.fromkeys(
    ("display", "get_ipython"), "function"
)


@dataclass(frozen=True)
class Variable:
    """One variable of the ``%%xpu`` cells on one rank.

    Attributes
    ----------
    name : str
    type : str
        Name of the class, with its module, and the dtype of an array: ``"numpy.ndarray of float32"``.
    shape : tuple of int
        Shape of an array or a table; empty for other objects.
    nbytes : int
        Bytes of an array's or a table's values. For other objects those of the object itself, without what it refers
        to.
    digest : str
        Text that is the same on two ranks if the values are the same; empty if the values were not compared, because
        they are large or of a class that cannot be compared cheaply.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    nbytes: int
    digest: str
