"""The batches of all ranks: the same ones for any number of ranks, of which each rank computes its part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from skorch.dataset import Dataset
from torch.utils.data import DataLoader, Subset, default_collate

from xpulab.exceptions import UsageError

__all__ = ["Batches"]


class Batches:
    """The batches of one epoch after the other.

    Parameters
    ----------
    loader : torch.utils.data.DataLoader
        As one process would use it: its sampler, its size of batches, its function that makes batches.
    """

    def __init__(self, loader: object) -> None:
        if not isinstance(loader, DataLoader) or loader.batch_sampler is None:
            raise UsageError(
                f"received a {type(loader).__name__} as iterator; expected a torch.utils.data.DataLoader that makes "
                "batches, of which each engine computes a part"
            )
        self.loader = loader

    def drawn(self) -> list[list[int]]:
        """Return the rows of each batch of an epoch. Rank 0 draws them, for all ranks."""
        batches: list[list[int]] = []
        if dist.get_rank() == 0:
            # DataLoader draws a number for its workers first. With it, the order is that of skorch in one process.
            torch.empty((), dtype=torch.int64).random_(generator=self.loader.generator)
            batches = [list(rows) for rows in self.loader.batch_sampler]
        sizes = torch.tensor([len(rows) for rows in batches])
        n = torch.tensor([len(sizes)])
        dist.broadcast(n, 0)
        sizes = sizes if dist.get_rank() == 0 else torch.empty(int(n), dtype=torch.int64)
        dist.broadcast(sizes, 0)
        joined = torch.tensor([row for rows in batches for row in rows], dtype=torch.int64)
        joined = joined if dist.get_rank() == 0 else torch.empty(int(sizes.sum()), dtype=torch.int64)
        dist.broadcast(joined, 0)
        return [part.tolist() for part in joined.split(sizes.tolist())]

    def part(self, rows: Sequence[int]) -> Sequence[int]:
        """Return the rows of a batch that this rank computes. There may be none."""
        rank, size = dist.get_rank(), dist.get_world_size()
        return rows[len(rows) * rank // size : len(rows) * (rank + 1) // size]

    def made(self, rows: Sequence[int]) -> Any:
        """Return the batch of these rows."""
        dataset = self.loader.dataset
        fast = self._at_once(dataset, rows) if self.loader.collate_fn is default_collate else None
        if fast is not None:
            return fast
        if hasattr(dataset, "__getitems__"):
            return self.loader.collate_fn(dataset.__getitems__(list(rows)))
        return self.loader.collate_fn([dataset[row] for row in rows])

    def _at_once(self, dataset: torch.utils.data.Dataset, rows: Sequence[int]) -> Any:
        """Return the batch of rows of arrays; None for any other dataset. Row by row takes ten times as long."""
        places = np.asarray(rows)
        while type(dataset) is Subset:
            places = np.asarray(dataset.indices)[places]
            dataset = dataset.dataset
        if type(dataset) is not Dataset or not (_numbers(dataset.X) and _numbers(dataset.y)):
            return None
        return [torch.from_numpy(np.asarray(part[places])) for part in (dataset.X, dataset.y)]


def _numbers(array: object) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind in "biuf" and array.ndim > 0
