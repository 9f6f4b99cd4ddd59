"""What the notebook and the engines agree on about the explorer's pictures, which the engines count and never draw."""

from __future__ import annotations

from typing import TypedDict

__all__ = ["LARGEST", "MOST_CELLS", "View"]

#: Largest number of counters of a picture, one for each cluster and pixel, because kernels use indices of 32 bits.
MOST_CELLS = (1 << 31) - 32

#: Clusters of DBSCAN with counters, and a colour, of their own; all smaller ones share theirs.
LARGEST = 11


class View(TypedDict):
    """What the picture shows: the features of its axes, their lower and upper limits, and its lines and columns."""

    features: tuple[int, int]
    low: tuple[float, float]
    high: tuple[float, float]
    shape: tuple[int, int]
