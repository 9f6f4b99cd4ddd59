"""Broken arguments to all public calls raise a documented exception, nothing is sent, and the next good call works.

The suite tries 60 cases, or as many as the variable ``XPULAB_EXAMPLES`` says. Arguments that scikit-learn rejects must
raise the same type of exception in xpulab.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.cluster
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scipy import sparse

import xpulab
from xpulab.cluster import KMeans
from xpulab.exceptions import EngineError, PlanError, UsageError, XpulabError
from xpulab.explorer.session import Explorer

pytestmark = pytest.mark.cluster

EXAMPLES = int(os.environ.get("XPULAB_EXAMPLES", "60"))
N, D = 40, 3
BAD: dict[str, list[Any]] = {
    **{name: ["a", -1, 0, np.nan, None, True] for name in ("timeout", "silence")},
    "recover": ["a", 1, None],
    "strict": ["a", 1],
    "devices": [1, [], b"cpu"],
    "env": ["A=1", 1, [("A", "1")]],
}
BAD_SETTINGS = [({name: value}, UsageError) for name, values in BAD.items() for value in values]
GOOD = np.random.default_rng(0).normal(size=(N, D))
WRONG: list[Any] = ["a", "", None, -1, 0, 1.5, np.nan, np.inf, [], {}, object, b"x", 10**30, (1, 2), np.ones((2, 2))]


class Sent(Exception):
    """Something was sent to the engines, although the arguments are broken."""


@pytest.fixture(scope="module")
def engines(pair: xpulab.XPUCluster) -> xpulab.XPUCluster:
    return pair.activate()


@pytest.fixture(scope="module")
def right(engines: xpulab.XPUCluster) -> np.ndarray:
    return KMeans(4, random_state=0).fit(GOOD).labels_


def refusal(call: Callable[[], Any]) -> Exception | None:
    """Return the exception of a call; None if the call sends something to the engines or ends without an exception."""

    def exchange(*_: Any) -> None:
        raise Sent

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr("xpulab.deploy.tasks.conversation.Conversation.exchange", exchange)
        try:
            call()
        except Sent:
            return None
        except Exception as error:
            return error
    return None


def raised(call: Callable[[], Any]) -> Exception | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except Exception as error:
            return error
    return None


# -- arrays -----------------------------------------------------------------------------------------------------------


def _with(value: float, kind: Any, row: int, column: int) -> Any:
    X = GOOD.copy()
    X[row, column] = value
    return kind(X)


KINDS = [np.array, np.asfortranarray, sparse.csr_matrix, sparse.csc_matrix, lambda X: X.astype(np.float32), list]
not_finite = st.builds(
    _with,
    st.sampled_from([np.nan, np.inf, -np.inf]),
    st.sampled_from(KINDS),
    st.integers(0, N - 1),
    st.integers(0, D - 1),
)
misshapen = st.sampled_from(
    [
        GOOD[:, 0], GOOD[None], GOOD[:0], GOOD[:, :0], GOOD[:2], GOOD[:, :2], np.hstack([GOOD, GOOD]), np.float64(3),
        GOOD.tolist()[0], [[1, 2], [3]], sparse.csr_matrix((0, D)), sparse.csr_matrix((N, 0)), [], [[]],
    ]
)  # fmt: skip
mistyped = st.sampled_from(
    [
        np.full((N, D), "a"), np.full((N, D), "a", object), GOOD * 1j, np.full((N, D), None),
        sparse.csr_matrix(GOOD).astype(complex),
        np.zeros(N, [("a", "f8")]), "abc", None, 7, {"a": 1}, object(), iter([1]), np.zeros((N, D), "V4"), b"bytes",
    ]
)  # fmt: skip
rows = st.one_of(not_finite, misshapen, mistyped)
weights = st.one_of(
    st.sampled_from(
        [
            np.ones(N - 1), np.ones(N + 1), np.ones((N, 1)), np.full(N, np.nan), np.full(N, np.inf), "a", ["a"] * N,
            np.ones(N) * 1j, [], {}, [None] * N, object(),
        ]
    ),
)  # fmt: skip
inits = st.sampled_from(
    [
        "kmeans", "", 3, None, GOOD[:3], GOOD[:4, :2], GOOD[0], np.full((4, D), np.nan), np.full((4, D), "a"), [], [[]],
        lambda X, k, random_state: X[:1], lambda X, k, random_state: np.full((k, D), np.nan),
        lambda X, k, random_state: "a", GOOD[:4] * 1j, sparse.csr_matrix(GOOD[:4]),
    ]
)  # fmt: skip
parameters = st.one_of(
    st.tuples(
        st.sampled_from(["n_clusters", "n_init", "max_iter", "tol", "random_state", "verbose", "copy_x", "algorithm"]),
        st.sampled_from(WRONG),
    ).filter(lambda pair: repr(pair) != repr(("n_init", 10**30))),  # scikit-learn would run all of them
    st.tuples(st.just("init"), inits),
)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["fit", "predict", "transform", "score", "fit_predict", "fit_transform"]),
    st.one_of(
        st.fixed_dictionaries({"X": rows}),
        st.fixed_dictionaries({"sample_weight": weights}),
        st.fixed_dictionaries({"parameter": parameters}),
    ),
)
@example("fit", {"X": np.full((N, D), "a", object)})
@example("predict", {"X": GOOD[:, :2]})
def test_arguments_that_scikit_learn_rejects_are_rejected(
    engines: xpulab.XPUCluster, right: np.ndarray, method: str, broken: dict[str, Any]
) -> None:
    name, value = broken.get("parameter", ("verbose", 0))
    X = broken.get("X", GOOD)
    if hasattr(X, "__next__"):
        X = [X]
    weighted = {"sample_weight": broken["sample_weight"]} if "sample_weight" in broken else {}
    if method in ("predict", "transform"):
        weighted = {}

    def call(kind: Any) -> Any:
        estimator = kind(**{"n_clusters": 4, "random_state": 0, name: value})
        if method in ("predict", "transform", "score"):
            estimator.cluster_centers_ = GOOD[:4].copy()
            estimator.n_features_in_, estimator._n_threads, estimator._n_features_out = D, 1, 4
        return getattr(estimator, method)(X, **weighted)

    theirs, ours = raised(lambda: call(sklearn.cluster.KMeans)), refusal(lambda: call(KMeans))
    if theirs is not None:
        assert ours is not None, f"scikit-learn says {theirs!r}"
        assert isinstance(ours, (type(theirs), XpulabError)), f"{ours!r}; scikit-learn says {theirs!r}"
        assert str(ours)
    elif ours is not None:
        assert isinstance(ours, ValueError), f"{ours!r}; scikit-learn says nothing"
    np.testing.assert_array_equal(KMeans(4, random_state=0).fit(GOOD).labels_, right)


# -- calls that only xpulab has ---------------------------------------------------------------------------------------

numbers = st.sampled_from([*WRONG[:2], *WRONG[3:], N + 1])  # without None, which is a default


def _is_of_records(X: Any) -> bool:
    return isinstance(X, np.ndarray) and X.dtype.names is not None


explorer = st.one_of(
    st.fixed_dictionaries({"k": numbers}),
    st.fixed_dictionaries({"points": numbers}),
    st.fixed_dictionaries({"random_state": st.sampled_from(["a", None, -1, 1.5, 2**32, []])}),
    st.fixed_dictionaries(
        {"features": st.sampled_from([0, "a", (0,), (0, 1, 2), (0, D), (-1, 0), ("b", 0), (0.5, 1), None, ([0], [1])])}
    ),
    st.fixed_dictionaries({"shape": st.sampled_from([5, (1,), (0, 5), (-1, 5), ("a", 5), (5.5, 5), None, "ab"])}),
    st.fixed_dictionaries({"X": st.one_of(not_finite, mistyped)}),
)
# scatter also takes rows of one number, and NumPy reads a record of one number as this number.
not_targets = [GOOD[:0, 0], GOOD[:, 0] * np.nan, np.full(N, "a"), GOOD[:, 0] * 1j, [None] * N, np.zeros(N, "f8, f8")]
scattered = st.one_of(
    st.fixed_dictionaries({"X": st.one_of(not_finite, mistyped.filter(lambda X: not _is_of_records(X)))}),
    st.fixed_dictionaries(
        {"X": st.sampled_from([GOOD[None], GOOD[:0], GOOD[:, :0], 3.0, [[1, 2], [3]], [], *not_targets])}
    ),
    st.fixed_dictionaries(
        {"counts": st.sampled_from([[], [N], [N, 0, 0], [-1, N + 1], [1, 1], "ab", 5, [20.0, 20.0], ["a", "b"], {}])}
    ),
)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(st.tuples(st.just("explore"), explorer), st.tuples(st.just("scatter"), scattered)))
def test_broken_arguments_of_calls_that_only_xpulab_has_are_rejected(
    engines: xpulab.XPUCluster, right: np.ndarray, broken: tuple[str, dict[str, Any]]
) -> None:
    name, arguments = broken
    call = engines.scatter if name == "scatter" else Explorer
    given_rows = {"X": GOOD if name == "scatter" or "X" in arguments else engines.scatter(GOOD)}
    ours = refusal(lambda: call(**{**given_rows, **arguments}))
    assert isinstance(ours, (ValueError, TypeError, XpulabError)), f"{ours!r}"
    assert str(ours)
    np.testing.assert_array_equal(KMeans(4, random_state=0).fit(GOOD).labels_, right)


def _written(path: Path, content: Any) -> Path:
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content, allow_pickle=True)
    return path


@pytest.mark.parametrize(
    "content",
    [
        None, b"", b"\x93NUMPY", b"no array", GOOD[0], GOOD[:0], GOOD.astype(int), GOOD * 1j,
        np.array([[object()]]), np.array([["a"]]), _with(np.nan, np.array, N - 1, 0),
    ],
)  # fmt: skip
def test_a_file_without_good_rows_is_refused(engines: xpulab.XPUCluster, tmp_path: Path, content: Any) -> None:
    path = _written(tmp_path / "x.npy", content)
    with pytest.raises((ValueError, FileNotFoundError), match=r"."):
        engines.load_npy(path)
    np.testing.assert_array_equal(engines.load_npy(_written(tmp_path / "good.npy", GOOD)).gather(), GOOD)


def test_a_file_cut_short_is_refused(engines: xpulab.XPUCluster, tmp_path: Path) -> None:
    path = _written(tmp_path / "x.npy", GOOD)
    os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(ValueError, match=r"."):
        engines.load_npy(path)


@pytest.mark.parametrize(
    ("function", "arguments", "error", "words"),
    [
        ("a", (), TypeError, "'a' was given; expected a function"),
        (None, (), TypeError, "None was given; expected a function"),
        (lambda: 1, (), EngineError, r"2 of 2 engines raised TypeError(?s:.*)rank 0, 1 on"),
        (lambda task: undefined, (), EngineError, "NameError"),  # type: ignore[name-defined]  # noqa: F821
        (lambda task, lock: 1, (threading.Lock(),), TypeError, "cannot be sent to the engines"),
        (lambda task: __import__("threading").Lock(), (), EngineError, "cannot be sent to the notebook"),
        (lambda task: __import__("sys").exit(3), (), EngineError, "2 of 2 engines raised SystemExit"),
    ],
)
def test_functions_that_cannot_run(
    engines: xpulab.XPUCluster, function: Any, arguments: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        engines.run(function, *arguments)
    assert engines.run(lambda task, x: task.comm.rank + x, 1) == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"n": 1.5}, PlanError),
        *BAD_SETTINGS,
        *(({"n": 2, "env": env}, PlanError) for env in ({"A": 1}, {1: "x"}, {"A B": "x"}, {"2:A": "x"}, {"A": "\0"})),
    ],
)
def test_settings_of_a_cluster_are_refused_before_anything_starts(
    arguments: dict[str, Any], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xpulab.deploy.life.Launched", None)
    with pytest.raises(error, match=r"."):
        xpulab.XPUCluster(**arguments).start()


@pytest.mark.parametrize("kind", KINDS[:5])
def test_nan_in_the_last_shard_is_named_by_its_row(engines: xpulab.XPUCluster, kind: Any, tmp_path: Path) -> None:
    X = _with(np.nan, kind, N - 2, 1)
    error = refusal(lambda: KMeans(4).fit(X))
    assert isinstance(error, ValueError)
    assert str(error).endswith(f"The first such value is in row {N - 2}, column 1.")
    if not sparse.issparse(X):
        np.save(tmp_path / "x.npy", X)
        with pytest.raises(ValueError, match=rf"NaN or infinity; the first such row is row {N - 2}\."):
            KMeans(4).fit(np.load(tmp_path / "x.npy", mmap_mode="r"))


def test_nan_in_a_data_frame_is_named_by_its_labels(engines: xpulab.XPUCluster) -> None:
    table = pd.DataFrame(GOOD, columns=[f"column {j}" for j in range(D)], index=[f"day {i}" for i in range(N)])
    table.loc["day 3", "column 1"] = np.nan
    words = "The first such value is in row 3 (index 'day 3'), column 'column 1'."
    assert str(refusal(lambda: KMeans(4).fit(table))).endswith(words)
    assert words in str(refusal(lambda: engines.scatter(table)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_in_many_rows_for_which_the_engines_look_gives_the_same_message(
    engines: xpulab.XPUCluster, right: np.ndarray, value: float
) -> None:
    X = np.random.default_rng(0).random((300_000, 14), dtype=np.float32)
    init = X[:4].copy()
    km, plain = KMeans(4, init=init, n_init=1, max_iter=1), sklearn.cluster.KMeans(4, init=init, n_init=1, max_iter=1)
    km.fit(X), plain.fit(X)
    X[299_999, 13] = value
    calls: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (lambda: km.fit(X), lambda: plain.fit(X)),
        (lambda: km.predict(X), lambda: plain.predict(X)),
        (lambda: km.score(X), lambda: plain.score(X)),
        (lambda: engines.scatter(X), lambda: sklearn.utils.check_array(X, input_name="X")),
    ]
    for ours, theirs in calls:
        error, expected = raised(ours), raised(theirs)
        assert type(error) is type(expected) is ValueError
        said = str(error).partition("\nTo send missing values")[0]  # as `scatter` adds
        assert said == f"{expected}\nThe first such value is in row 299999, column 13."
    np.testing.assert_array_equal(KMeans(4, random_state=0).fit(GOOD).labels_, right)
    asked: list[Any] = []
    callable_init = KMeans(4, init=lambda *_, **__: asked.append(1), n_init=1)
    assert isinstance(refusal(lambda: callable_init.fit(X)), ValueError)
    assert not asked
