"""Variables travel between the notebook and the cells of the engines."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import xpulab
from xpulab.console.cells import run_cell
from xpulab.deploy.tasks import variables
from xpulab.exceptions import EngineError, HandleError, UsageError

pytestmark = pytest.mark.cluster

THINGS = {
    "number": 3.5,
    "text": "grün",
    "large": np.arange(300_000.0).reshape(-1, 3),
    "columns_first": np.asfortranarray(np.arange(30_000).reshape(100, -1)),
    "every_third": np.arange(300_000)[::3],
    "empty": np.empty((0, 4)),
    "frame": pd.DataFrame({"a": np.arange(20_000), "b": "x"}),
    "nested": {"deep": [np.ones(20_000, complex), {"tiny": np.arange(3)}]},
    "call": lambda x: x + 1,
}


@pytest.mark.parametrize("name", THINGS)
def test_an_object_is_the_same_on_every_rank_and_after_it_came_back(pair: xpulab.XPUCluster, name: str) -> None:
    pair.push({name: THINGS[name]})
    for value in pair.pull(name):
        if callable(THINGS[name]):
            assert value(1) == 2
        elif isinstance(THINGS[name], pd.DataFrame):
            pd.testing.assert_frame_equal(value, THINGS[name])
        else:
            np.testing.assert_equal(value, THINGS[name])


def _lent(task: Any) -> set[str]:
    """On an engine: return the blocks of results that clients may still be reading."""
    return {f"{numbers}: {block.path}" for numbers, blocks in task.engine.lent.items() for block in blocks}


def test_a_large_array_comes_back_through_shared_memory_which_the_ranks_then_let_go(pair: xpulab.XPUCluster) -> None:
    run_cell(pair, "import numpy as np; large = np.full((1000, 500), rank, float); both = [large, large.T]")
    others = pair.run(_lent)  # to threads of earlier tests, such as those of joblib's pool
    values = pair.pull("large")
    values[0][0, 0] = 7  # the array belongs to the notebook
    assert [value[0, 0] for value in pair.pull("large")] == [0, 1]
    assert values[0][0, 0] == 7
    assert np.all(values[1] == 1)
    assert [now - before for now, before in zip(pair.run(_lent), others, strict=True)] == [set(), set()]
    straight, turned = pair.pull("both")[1]
    assert straight.flags.c_contiguous
    assert turned.flags.f_contiguous
    output = run_cell(pair, "1", out=["large"])
    np.testing.assert_array_equal(output.values["large"][1], values[1])


def test_a_result_is_there_until_its_own_thread_has_read_it_or_has_ended(
    pair: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever other threads of this process ask for meanwhile."""

    others = pair.run(_lent)

    def lent() -> list[int]:
        return [len(now - before) for now, before in zip(pair.run(_lent), others, strict=True)]

    def elsewhere(*calls: Callable[[], Any]) -> None:
        threads = [threading.Thread(target=call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run_cell(pair, "import numpy as np; large = np.full((1000, 500), rank, float)")
    received, seen = variables.received, []

    def later(value: Any) -> Any:
        elsewhere(lambda: seen.extend(lent()), lambda: seen.extend(lent()))
        return received(value)

    monkeypatch.setattr(variables, "received", later)
    assert [value[0, 0] for value in pair.pull("large")] == [0, 1]
    assert len(seen) == 8
    assert set(seen) == {1}
    assert lent() == [0, 0]
    elsewhere(lambda: pair.call("pull", {"name": "large", "ranks": [0, 1]}))
    assert lent() == [0, 0]


def test_each_rank_may_change_its_copy(pair: xpulab.XPUCluster) -> None:
    B = np.zeros(100_000)
    pair.push({"B": B, "few": np.zeros(3)})
    run_cell(pair, "B += rank + 1; few += rank + 1")
    assert [b[0] for b in pair.pull("B")] == [b[0] for b in pair.pull("few")] == [1, 2]
    assert B[0] == 0


@settings(deadline=None, max_examples=15)
@given(
    array=hnp.arrays(
        st.one_of(hnp.integer_dtypes(), hnp.complex_number_dtypes(), hnp.boolean_dtypes(), hnp.unicode_string_dtypes()),
        hnp.array_shapes(max_dims=4, min_side=0, max_side=9),
    )
)
def test_an_array_of_any_shape_and_dtype_is_cut_along_its_first_axis(pair: xpulab.XPUCluster, array: Any) -> None:
    pair.push({"X": array}, scatter=True)
    parts = pair.pull("X")
    assert [len(part) for part in parts] == [len(array) // 2, len(array) - len(array) // 2]
    assert [part.dtype for part in parts] == [array.dtype] * 2
    np.testing.assert_array_equal(np.concatenate(parts), array)


def test_some_ranks_alone(pair: xpulab.XPUCluster) -> None:
    pair.push({"only": np.arange(4)}, ranks=[1], scatter=True)
    assert pair.pull("only", ranks=[1])[0].tolist() == [0, 1, 2, 3]
    with pytest.raises(EngineError, match="there is no variable 'only' on this rank"):
        pair.pull("only")


@pytest.mark.parametrize("cluster", [1], indirect=True, ids=["1-engine"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_handle_becomes_the_rows_of_each_rank(
    pair: xpulab.XPUCluster, cluster: xpulab.XPUCluster, dtype: type
) -> None:
    X: np.ndarray = np.random.default_rng(0).normal(size=(1001, 7)).astype(dtype)
    rows, target = pair.scatter(X, counts=[1, 1000]), pair.scatter(X[:, 0])
    pair.push({"rows": rows, "target": target})
    mine = pair.pull("rows")
    assert [part.shape for part in mine] == [(1, 7), (1000, 7)]
    np.testing.assert_array_equal(np.concatenate(mine), X)
    np.testing.assert_array_equal(np.concatenate(pair.pull("target")), X[:, 0])
    with pytest.raises(HandleError, match="lives on another cluster"):
        cluster.push({"rows": rows})


@pytest.mark.parametrize(
    ("variables", "options", "error", "words"),
    [
        ({"1x": 1}, {}, UsageError, "'1x' was given; expected the name of a variable"),
        ({"x": 1}, {"ranks": [2]}, UsageError, "received 2, expected ranks from 0 to 1"),
        ({"x": 1}, {"scatter": True}, UsageError, "x: int with 0 dimensions"),
        ({"x": [{}, {}]}, {"scatter": True}, UsageError, "dtype object"),
        ({"x": np.zeros(2, "i4, f8")}, {"scatter": True}, UsageError, "expected an array of numbers, text or times"),
        ({"x": threading.Lock()}, {}, TypeError, "x cannot be sent to the engines"),
    ],
)
def test_what_cannot_be_sent(
    pair: xpulab.XPUCluster, variables: dict[str, Any], options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        pair.push(variables, **options)
