"""Collectives of a process group in the order in which they were called, run by the first thread that waits for them.

A collective is a generator. It starts messages of MPI that do not block, and yields their requests each time it has to
wait for them. A call with ``async_op=True``, such as that of DistributedDataParallel for each bucket of gradients, is
run by a thread of the group, while the rank goes on to compute. If the rank waits for the collective itself, as in
every other call, it runs the collective in its own thread, which saves the time to wake another one.

Both threads wait by `waiting.poll`, so that the exception of another rank ends the wait. Ctrl-C ends it, too: in the
rank's own thread at once. The backward pass waits in PyTorch's C++ code, where Python raises no KeyboardInterrupt. If
the user has asked for the end, the thread of the group therefore leaves after `PATIENCE` seconds.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from xpulab.engine.engine import this_engine
from xpulab.engine.waiting import asked, leave, poll

__all__ = ["PATIENCE", "CollectiveQueue", "Steps", "Work"]

#: Seconds for which a rank still waits for others after the user has asked for the end: a step may take so long.
PATIENCE = 3.0

Steps = Iterator[Sequence[MPI.Request]]


def _is_over() -> bool:
    """Return whether the code that began a collective has ended: the other ranks then never take part in it."""
    engine = this_engine()
    return engine is not None and engine.task is None


class Work(dist.Work):
    """A collective, or a message, that has begun.

    Parameters
    ----------
    steps : iterator of sequences of mpi4py.MPI.Request
        Begins messages, and yields them to wait for their end.
    tensors : list of torch.Tensor
        The tensors that have the result.
    queue : CollectiveQueue, optional
        The queue of collectives to which this one belongs. A message belongs to none.
    """

    def __init__(self, steps: Steps, tensors: list[torch.Tensor], queue: CollectiveQueue | None = None) -> None:
        super().__init__()
        self._steps = steps
        self._tensors = tensors
        self._queue = queue
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._promise: Any = None
        self._future: Any = None
        self._statuses: list[MPI.Status] = []
        self._pending: Sequence[MPI.Request] = () if queue is not None else next(steps, ())

    def run(self) -> None:
        """Run the collective to its end, in this thread. An exception is kept for those who wait."""
        try:
            poll(self._advance(), self)
        except BaseException as error:
            if threading.current_thread() is not threading.main_thread():
                leave(error)
            self.end(error)
        else:
            self.end(None)

    def _advance(self) -> Callable[[], bool]:
        """Return a function that goes on with the collective as far as possible, and returns whether it has ended."""
        since = float("inf")
        in_background = threading.current_thread() is not threading.main_thread()

        def advance() -> bool:
            nonlocal since
            while MPI.Request.Testall(self._pending, self._statuses):
                try:
                    self._pending = next(self._steps)
                except StopIteration:
                    return True
            if in_background and (asked() or _is_over()):
                since = min(since, time.perf_counter())
                if time.perf_counter() - since > PATIENCE:
                    raise KeyboardInterrupt
            return False

        return advance

    def end(self, error: BaseException | None) -> None:
        """Note that the collective has ended, and tell those who wait."""
        with self._lock:
            self._error = error
            self._ended.set()
            promise = self._promise
        if promise is not None:
            promise.set_result(None)

    def is_completed(self) -> bool:
        """Return whether the collective has ended, with or without success."""
        if self._queue is None and not self._ended.is_set():
            self._try()
        return self._ended.is_set()

    def is_success(self) -> bool:
        """Return whether the collective has ended without an exception."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Return the exception with which the collective has ended."""
        return self._error

    def wait(self, timeout: object = None) -> bool:
        """Wait for the end of the collective. Stop or another rank's exception ends the wait, and no `timeout`."""
        if not self._ended.is_set():
            if self._queue is None:
                self.run()
            else:
                self._queue.run_to(self)
        if self._error is not None:
            raise self._error
        return True

    synchronize = wait

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that have the result."""
        return self._tensors

    def source_rank(self) -> int:
        """Return the rank from which a message came."""
        return int(self._statuses[0].Get_source())

    _source_rank = source_rank  # PyTorch's name

    def get_future(self) -> Any:
        """Return a `torch.futures.Future` of the tensors, for which PyTorch's C++ code waits.

        Raises
        ------
        NotImplementedError
            For messages between two ranks.
        """
        if self._queue is None:
            raise NotImplementedError("a message of send or recv has no future; type: work.wait()")
        with self._lock:
            if self._future is None:
                self._promise = torch.futures.Future()
                self._future = self._promise.then(self._outcome)
            ended = self._ended.is_set()
        if ended and not self._promise.done():
            self._promise.set_result(None)
        return self._future

    def _outcome(self, _: object) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors

    def _try(self) -> None:
        try:
            if self._advance()():
                self.end(None)
        except Exception as error:
            self.end(error)


class CollectiveQueue:
    """The collectives of one group, of which one runs at a time, in the order of the calls."""

    def __init__(self) -> None:
        self._waiting: deque[Work] = deque()
        self._turn = threading.Lock()
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._broken: BaseException | None = None
        self._memory = torch.empty(0, dtype=torch.uint8)

    def memory(self, n: int, dtype: torch.dtype) -> torch.Tensor:
        """Return memory for the collective that runs. New memory costs more than the reduction of what is in it."""
        nbytes = n * dtype.itemsize
        if self._memory.numel() < nbytes:
            self._memory = torch.empty(nbytes, dtype=torch.uint8)
        return self._memory[:nbytes].view(dtype)

    def add(self, work: Work, in_background: bool) -> None:
        """Add a collective at the end. Without `in_background` the caller will wait for it at once."""
        with self._news:
            self._waiting.append(work)
            if in_background:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name="xpulab-collectives", daemon=True)
                    self._thread.start()
                self._news.notify()

    def run_to(self, work: Work) -> None:
        """Run the collectives up to this one, or wait while another thread runs them."""
        while not work.is_completed():
            if self._turn.acquire(blocking=False):
                try:
                    self._run_next()
                finally:
                    self._turn.release()
            else:
                poll(lambda: work.is_completed() or not self._turn.locked())

    def _serve(self) -> None:
        """Run the collectives for which nobody waits in Python."""
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting)
            with self._turn:
                self._run_next()

    def _run_next(self) -> None:
        """Run the first collective. After one that was left, the messages of later ones would not match."""
        try:
            work = self._waiting.popleft()
        except IndexError:  # another thread was faster
            return
        if self._broken is not None:
            work.end(RuntimeError(f"an earlier collective of this process group was left: {self._broken!r}"))
            return
        try:
            work.run()
        finally:
            error = work.exception()
            if error is not None and not isinstance(error, ValueError):
                self._broken = error
