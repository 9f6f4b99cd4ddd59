"""The functions of k-means for CSR rows on a device; `kmeans.dense` has the same functions for dense rows."""

from xpulab.kernels.kmeans.sparse_gather import Batches, subset
from xpulab.kernels.kmeans.sparse_lloyd import (
    assign,
    distance_rounding,
    first_kernels,
    fresh_step,
    inertia,
    labels_on_cpu,
    lloyd_step,
    new_labels,
    own_distances,
    transform,
)
from xpulab.kernels.kmeans.sparse_plusplus import accept, candidate_potentials, go_on, search, start
from xpulab.kernels.kmeans.sparse_rows import (
    SparseRows,
    column_sums,
    consecutive,
    divided,
    find_nonfinite,
    reach,
    shift_for,
    take,
    weighted,
)

__all__ = [
    "Batches",
    "SparseRows",
    "accept",
    "assign",
    "candidate_potentials",
    "column_sums",
    "consecutive",
    "distance_rounding",
    "divided",
    "find_nonfinite",
    "first_kernels",
    "fresh_step",
    "go_on",
    "inertia",
    "labels_on_cpu",
    "lloyd_step",
    "new_labels",
    "own_distances",
    "reach",
    "search",
    "shift_for",
    "start",
    "subset",
    "take",
    "transform",
    "weighted",
]
