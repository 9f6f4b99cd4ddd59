"""Ranks with equal devices measure different launch shapes."""

from __future__ import annotations

from xpulab.libraries import oneapi

oneapi.load()

from xpulab.engine.algorithms.clustering.tuning import share  # noqa: E402
from xpulab.kernels.kmeans.launch_shapes import LaunchShape  # noqa: E402

A, B, C = LaunchShape(1), LaunchShape(2), LaunchShape(4)


def test_equal_devices_share_the_tiles_and_other_devices_measure_all() -> None:
    offers = [("arc", [A, B, C]), ("xeon", [A, B]), ("arc", [A, B, C])]
    assert [share(offers, rank) for rank in range(3)] == [[A, C], [A, B], [B]]


def test_ranks_that_cannot_measure_get_no_tiles() -> None:
    offers = [("xeon", []), ("xeon", [A, B]), ("xeon", [A, B])]
    assert [share(offers, rank) for rank in range(3)] == [[], [A], [B]]


def test_ranks_that_know_different_things_still_share_one_list() -> None:
    offers = [("xeon", [A, B, C]), ("xeon", [C])]
    assert [share(offers, rank) for rank in range(2)] == [[A, C], [B]]
    assert share([("xeon", [A])] * 3, 2) == []
