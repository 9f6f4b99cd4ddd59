"""What estimators use of a cluster: its ranks, which may also be those of the program in which the estimator is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from xpulab.data import Outgoing, ShardedArray
from xpulab.deploy.tasks.answers import Answer
from xpulab.deploy.tasks.limits import Demand
from xpulab.exceptions import EngineLostError
from xpulab.report.fit import FitReport
from xpulab.report.task import Display
from xpulab.sharing.descriptions import EngineDescription
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.sources import Target

__all__ = ["Ranks"]


class Ranks(Protocol):
    """The ranks on which an estimator runs tasks: `XPUCluster`, or in `xpulab.spmd` those of the program.

    Attributes
    ----------
    interrupted : estimator or None
        The estimator whose fit was interrupted last, and can be resumed.
    """

    interrupted: Any

    @property
    def size(self) -> int:
        """Number of ranks."""

    @property
    def facts(self) -> list[EngineDescription]:
        """Description of each rank."""

    @property
    def unheard(self) -> dict[int, float]:
        """Rank -> seconds without a sign of life."""

    @property
    def silence(self) -> float:
        """Seconds without a sign of life after which a rank counts as lost."""

    @property
    def recovers(self) -> bool:
        """Whether calls continue after ranks are lost."""

    @property
    def display(self) -> Display:
        """How calls are shown."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a report says about the ranks."""

    def keep_interrupted(self, estimator: Any, said: str = "") -> None:
        """Keep an estimator whose fit was interrupted, for `interrupted`, and what was said of it, for the status."""

    def called(self, report: FitReport) -> None:
        """Note a call of an estimator that begins."""

    def call(
        self,
        name: str,
        payload: dict[str, Any],
        watch: Callable[[Any, int], None] | None = None,
        again: Callable[[EngineLostError], dict[str, Any]] | None = None,
    ) -> Answer:
        """Run one task on all ranks; see `xpulab.deploy.tasks.conversation.Conversation.call`."""

    def outgoing(self) -> Outgoing:
        """Return a context in which arrays are sent to the ranks."""

    def receive(
        self,
        outgoing: Outgoing,
        bounds: list[int] | None,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        on_disk: bool = False,
    ) -> tuple[Target, np.ndarray[Any, Any]]:
        """Allocate memory for a result with one entry per row, of which this process gets its `entries`.

        `bounds` are those of a handle; None for rows of this process. With `on_disk` the memory is that of a file.
        """

    def entries(self, X: Any) -> range:
        """Return the rows of X for which results with one entry per row come to this process."""

    def made_handle(
        self,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        bounds: list[int],
        columns: Any = None,
        blocks: Sequence[SharedBlock] = (),
        nan: bool = False,
        stored: Sequence[int] | None = None,
    ) -> ShardedArray:
        """Return a handle for rows that a task is going to compute on the ranks. They are freed when it is deleted.

        `stored` has the numbers of stored values of each rank, if the rows are sparse.
        """

    def release_with(self, owner: Any, handle: str, blocks: Sequence[SharedBlock] = ()) -> Any:
        """Free the rows of `handle` and their blocks of shared memory when this process deletes `owner`."""

    def require_handle(self, array: ShardedArray) -> None:
        """Raise `HandleError` if the array's rows are not on the ranks."""

    def require_room(self, rows: Demand) -> None:
        """Raise `NotEnoughMemoryError` if host or devices have too little memory for the rows and working arrays."""

    def that_fit(self, rows: Demand) -> list[int] | None:
        """Return how many rows each rank keeps of those that it reads from files; None for all."""
