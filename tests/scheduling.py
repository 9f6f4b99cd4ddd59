"""Which worker runs which file of tests: `pytest -n 3`."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from xdist.scheduler import LoadFileScheduling

__all__ = ["FoldersStayTogether"]


def _folder(file: str) -> str:
    return file.rpartition("/")[0]


class FoldersStayTogether(LoadFileScheduling):
    """Give each worker files of the folders that it has begun, as long as there are any.

    The tests of a folder use the same algorithms. Each worker has clusters of its own, whose engines import what an
    algorithm needs, and load its kernels, at its first use: a folder that one worker runs pays that once. A worker
    that has finished its folders begins another one, and at the end helps with that of which most files are left.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._begun: dict[str, set[Any]] = defaultdict(set)  # the workers of each folder

    def _assign_work_unit(self, node: Any) -> None:
        left: dict[str, list[str]] = defaultdict(list)
        for file in self.workqueue:
            left[_folder(file)].append(file)
        own = [folder for folder in left if node in self._begun[folder]]
        new = [folder for folder in left if not self._begun[folder]]
        folder = (own or new or [max(left, key=lambda folder: len(left[folder]))])[0]
        self._begun[folder].add(node)
        self.workqueue.move_to_end(left[folder][0], last=False)
        super()._assign_work_unit(node)
