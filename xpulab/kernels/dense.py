"""The functions of k-means for dense rows on a device; `xpulab.kernels.sparse` has the same functions for CSR."""

from xpulab.kernels.distances import transform
from xpulab.kernels.lloyd import (
    assign,
    distance_rounding,
    first_kernels,
    inertia,
    labels_to_host,
    lloyd_step,
    new_labels,
    own_distances,
)
from xpulab.kernels.plusplus import accept, candidate_potentials, search, start
from xpulab.kernels.rows import column_sums, find_nonfinite, shift_for, take, weighted

__all__ = [
    "accept",
    "assign",
    "candidate_potentials",
    "column_sums",
    "distance_rounding",
    "find_nonfinite",
    "first_kernels",
    "inertia",
    "labels_to_host",
    "lloyd_step",
    "new_labels",
    "own_distances",
    "search",
    "shift_for",
    "start",
    "take",
    "transform",
    "weighted",
]
