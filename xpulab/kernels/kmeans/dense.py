"""The functions of k-means for dense rows on a device; `kmeans.sparse` has the same functions for CSR."""

from xpulab.kernels.kmeans.gather import Batches, subset
from xpulab.kernels.kmeans.lloyd import (
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
from xpulab.kernels.kmeans.plusplus import accept, candidate_potentials, go_on, search, start
from xpulab.kernels.row_passes import column_sums, consecutive, find_nonfinite, take
from xpulab.kernels.rows import shift_for, weighted
from xpulab.kernels.scaling import divided, reach

__all__ = [
    "Batches",
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
