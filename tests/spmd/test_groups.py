"""Ranks in groups of neighbours."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xpulab.spmd._rank.group import groups_of


@given(st.integers(1, 40).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size))))
def test_groups_are_neighbours_of_almost_the_same_number(sizes: tuple[int, int]) -> None:
    size, n = sizes
    groups = groups_of(size, n)
    assert [rank for group in groups for rank in group] == list(range(size))
    assert len(groups) == n
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
