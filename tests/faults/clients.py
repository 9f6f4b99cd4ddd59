"""One client of a cluster that other clients use at the same time. It runs random tasks, and checks each result.

``python clients.py NAME SEED TASKS`` attaches to the cluster NAME, and prints the number of right results.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import xpulab
from xpulab.cluster import KMeans

__all__ = ["Client", "several"]


class Client:
    """Tasks on a cluster, with their expected results.

    Parameters
    ----------
    cluster : XPUCluster
    seed : int
        Seed of the rows, which differ between clients, and of the order of the tasks.
    """

    def __init__(self, cluster: xpulab.XPUCluster, seed: int) -> None:
        self._cluster = cluster
        self._seed = seed
        self._chance = random.Random(seed)
        self._X = np.random.default_rng(seed).normal(size=(4000 + 100 * seed, 5)).astype(np.float32)
        self._fitted = self._fit()
        self._held = cluster.scatter(self._X)
        self._tasks: list[Callable[[], bool]] = [
            lambda: self._same(self._fit()),
            lambda: self._same(KMeans(12, random_state=0, max_iter=30).fit(self._held)),
            lambda: bool((self._fitted.predict(self._X) == self._fitted.labels_).all()),
            lambda: bool((self._fitted.transform(self._X).argmin(axis=1) == self._fitted.labels_).mean() > 0.999),
            lambda: bool((cluster.scatter(self._X).gather() == self._X).all()),
            lambda: self._messages(self._chance.randrange(1000)),
        ]

    def run(self, tasks: int) -> int:
        """Run this number of tasks, and return the number of right results."""
        return sum(self._chance.choice(self._tasks)() for _ in range(tasks))

    def _fit(self) -> KMeans:
        return KMeans(12, random_state=0, max_iter=30).fit(self._X)

    def _same(self, other: KMeans) -> bool:
        return other.n_iter_ == self._fitted.n_iter_ and bool((other.labels_ == self._fitted.labels_).all())

    def _messages(self, number: int) -> bool:
        """Run collectives of a user's function, which would give other results if they met those of another task."""
        size = self._cluster.size

        def exchange(task: Any, number: int) -> Any:
            return [task.comm.allgather((number, step)) for step in range(5)]

        right = [[(number, step)] * size for step in range(5)]
        return self._cluster.run(exchange, number) == [right] * size


def several(cluster: xpulab.XPUCluster, clients: int, tasks: int) -> list[int]:
    """Run clients in separate processes, and one in this process, all at the same time.

    Returns
    -------
    list of int
        Number of right results of each client.
    """
    assert cluster.engines.processes is not None
    name = cluster.engines.processes.record.name
    others = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__)), name, str(seed), str(tasks)], stdout=subprocess.PIPE, text=True
        )
        for seed in range(1, clients)
    ]
    mine = Client(cluster, 0).run(tasks)
    return [mine, *(int(other.communicate(timeout=600)[0] or -1) for other in others)]


if __name__ == "__main__":
    with xpulab.XPUCluster.attach(sys.argv[1]) as attached:
        print(Client(attached, int(sys.argv[2])).run(int(sys.argv[3])))
