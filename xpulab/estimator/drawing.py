"""Says that a call may draw some rows, where all rows do not fit into memory at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from xpulab.exceptions import NotEnoughMemoryError

__all__ = ["or_drawn"]


@contextmanager
def or_drawn(parameter: str | None) -> Iterator[None]:
    """Add to an error of too little memory what draws rows, such as "subsample=10_000"; nothing for None."""
    try:
        yield
    except NotEnoughMemoryError as error:
        if parameter is None:
            raise
        raise NotEnoughMemoryError(f"{error}; or have some rows drawn: {parameter}") from None
