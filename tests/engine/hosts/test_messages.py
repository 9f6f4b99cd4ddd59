"""Arrays between two ranks in pieces: their sizes, rows in any order of memory, and parts that are joined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xpulab

pytestmark = pytest.mark.cluster


def travelled(here: Any, rest: int) -> tuple[list[int], bool, bool]:
    """On two engines: send rows of a little more than two pieces to the other rank, with whole rows in a piece."""
    from mpi4py import MPI

    from xpulab.engine.hosts.messages import PIECE, Messages, piece_sizes, pieces_of, rows_of_a_piece

    messages, other = Messages(MPI.COMM_WORLD.Dup()), 1 - here.rank
    rows = np.arange((2 * PIECE + rest) // 8 // 5 * 5, dtype=np.float64).reshape(-1, 5)
    step = rows_of_a_piece(40)
    sizes = list(piece_sizes(rows.nbytes, step * 40))
    found = np.empty(rows.nbytes, np.uint8)
    if here.rank == 0:
        pieces = [rows[first : first + step] for first in range(0, len(rows), step)]
        messages.in_turn(messages.begin_send(piece, other) for piece in pieces)
        joined = np.concatenate([piece.copy() for piece in messages.joined([rows[:7], rows[7:]], rows.nbytes)])
        return (
            sizes,
            [len(piece) for piece in pieces_of(found)] == list(piece_sizes(rows.nbytes)),
            bool((joined == rows.view(np.uint8).ravel()).all()),
        )
    at = 0
    for piece in messages.incoming(other, sizes):
        found[at : at + len(piece)] = piece
        at += len(piece)
    return sizes, bool((found.view(np.float64).reshape(rows.shape) == rows).all()), at == rows.nbytes


@pytest.mark.parametrize("rest", [0, 4_000])
def test_rows_travel_in_pieces(pair: xpulab.XPUCluster, rest: int) -> None:
    for sizes, *right in pair.run(travelled, rest):
        assert len(sizes) in (2, 3)
        assert all(size % 40 == 0 for size in sizes)
        assert len(set(sizes[:-1])) == 1
        assert right == [True, True]
