"""Tasks are found by their names, and each has an algorithm that says what its iterations show."""

from __future__ import annotations

from typing import Any

import pytest

import xpulab
from xpulab.engine.registry import METRIC_NAMES, TASKS, task

pytestmark = pytest.mark.cluster


def test_a_task_is_registered_with_the_names_of_its_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(task: Any) -> dict[str, Any]:
        return {"task": task}

    try:
        assert task("a test.fit", metrics=("loss",))(fit) is fit
        assert TASKS["a test.fit"](7) == {"task": 7}
        assert METRIC_NAMES["a test.fit"] == ("loss",)
    finally:
        del TASKS["a test.fit"], METRIC_NAMES["a test.fit"]


def known(here: Any) -> tuple[set[str], set[str]]:
    """On an engine: the names of all tasks, and those with metrics."""
    from xpulab.engine.registry import METRIC_NAMES, TASKS, register

    register()
    return set(TASKS), {name for name, metrics in METRIC_NAMES.items() if metrics}


def test_an_engine_knows_the_tasks_of_all_algorithms(pair: xpulab.XPUCluster) -> None:
    for tasks, with_metrics in pair.run(known):
        assert {"run", "scatter", "gather", "moments", "products", "quantiles"} <= tasks
        assert with_metrics >= {f"{name}.fit" for name in ("KMeans", "MiniBatchKMeans", "GaussianMixture", "NeuralNet")}
