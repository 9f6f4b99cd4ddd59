"""A rank alone in this process, whose functions the tests call. The runtime must be loaded before dpctl is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from xpulab.libraries import oneapi

oneapi.load()

from xpulab.engine.dataset import Data, data_of  # noqa: E402
from xpulab.engine.engine import Engine, Task  # noqa: E402
from xpulab.engine.registry import TASKS  # noqa: E402
from xpulab.kernels.rows import Rows  # noqa: E402
from xpulab.sharing.board import new_task_number  # noqa: E402
from xpulab.sharing.memory import SharedBlock  # noqa: E402
from xpulab.sharing.sources import HandleRows, SharedArray, Target  # noqa: E402


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The engine of this process, which is the only rank."""
    return Engine({})


@pytest.fixture
def task(engine: Engine) -> Iterator[Task]:
    """A task of the rank."""
    yield Task(engine, "a test", new_task_number(), 0)
    engine.handles.clear()


@pytest.fixture
def sent(task: Task) -> Callable[[np.ndarray], HandleRows]:
    """A function that has the rank keep rows, and returns them as a task gets them."""

    def keep(X: np.ndarray) -> HandleRows:
        name = f"rows {len(task.engine.handles)}"
        task.engine.handles[name] = Rows.upload(task.device, X.reshape(len(X), -1))
        return HandleRows(X.shape, X.dtype, [0, len(X)], name)

    return keep


@pytest.fixture
def given(task: Task, sent: Callable[[np.ndarray], HandleRows]) -> Callable[..., Data]:
    """A function that returns rows, with weights and targets, as the algorithms get them."""

    def data(X: np.ndarray, weights: np.ndarray | None = None, targets: np.ndarray | None = None) -> Data:
        return data_of(task, sent(X), _shared(weights), None if targets is None else sent(targets))

    return data


@pytest.fixture
def ask(task: Task, sent: Callable[[np.ndarray], HandleRows]) -> Callable[..., Any]:
    """A function that runs a task on rows, and returns its answer; with `shape`, also the result that it writes."""

    def run(
        name: str,
        X: np.ndarray,
        *,
        weights: np.ndarray | None = None,
        targets: np.ndarray | None = None,
        shape: tuple[int, ...] | None = None,
        dtype: Any = np.float64,
        **payload: Any,
    ) -> Any:
        if targets is not None:
            payload["targets"] = sent(targets)
        if shape is None:
            return TASKS[name](task, source=sent(X), weights=_shared(weights), **payload)
        with SharedBlock.create(max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize)) as block:
            target = Target(block.path, shape, np.dtype(dtype))
            answer = TASKS[name](task, source=sent(X), weights=_shared(weights), target=target, **payload)
            return answer, block.array(shape, dtype).copy()

    return run


_lent: list[SharedBlock] = []


def _shared(values: np.ndarray | None) -> SharedArray | None:
    """Return weights in shared memory, which stays until the next ones."""
    if values is None:
        return None
    _lent[:] = [SharedBlock.create(values.nbytes)]
    _lent[0].write(values, 0)
    return SharedArray(_lent[0].path, values.shape, values.dtype)
