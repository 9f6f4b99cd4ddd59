"""An interrupt of any public call ends in one sentence, which names the call and says what to do."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from presses import Presses
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from waiting import until

import xpulab
from xpulab import checks
from xpulab.cluster import KMeans
from xpulab.estimator.proxy import Proxy
from xpulab.exceptions import CallInterrupted
from xpulab.linear_model import Ridge, RidgeCV
from xpulab.metrics import accuracy_score
from xpulab.model_selection import train_test_split
from xpulab.preprocessing import StandardScaler

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
X = RNG.integers(0, 9, (60, 4)) + RNG.integers(0, 2, (60, 1)) * 20.0
Y = (X[:, 0] > 10).astype(int) + (X[:, 1] > 4)
#: Arguments of public calls, by the names of their parameters.
ARGUMENTS = {"X": X, "y": Y, "labels": Y, "y_true": Y, "y_pred": Y[::-1], "variables": {"a": X}, "name": "a"}
#: Parameters with which estimators take these rows without a warning.
PARAMETERS: dict[str, dict[str, Any]] = {"QuantileTransformer": {"n_quantiles": 9}}
#: What they refuse: rows without missing values, and a radius that the class does not have.
REFUSED = {
    "KNeighborsClassifier.radius_neighbors",
    "KNeighborsRegressor.radius_neighbors",
    "SimpleImputer.inverse_transform",
}
AGAIN = "call it again"


@pytest.fixture
def presses(monkeypatch: pytest.MonkeyPatch, on_pair: xpulab.XPUCluster) -> Presses:
    return Presses(monkeypatch)


def public() -> Iterator[tuple[str, Any]]:
    """Find everything that the packages with scikit-learn's names have for users, with the package's name."""
    for package in pkgutil.iter_modules(xpulab.__path__):
        if package.ispkg and package.name not in ("spmd", "torch"):
            module = importlib.import_module(f"xpulab.{package.name}")
            yield from ((package.name, getattr(module, name)) for name in getattr(module, "__all__", ()))


ESTIMATORS = [thing for _, thing in public() if inspect.isclass(thing) and issubclass(thing, Proxy)]
FUNCTIONS = {
    f"{package}.{thing.__name__}": thing
    for package, thing in public()
    if inspect.isfunction(thing) and package in ("metrics", "model_selection")
}


def rows_of(estimator: Any, method: str) -> np.ndarray:
    """Return rows that a method takes."""
    if method != "inverse_transform":
        return X
    made = estimator.transform(X)
    return made.toarray() if hasattr(made, "toarray") else made


@pytest.mark.parametrize("kind", ESTIMATORS, ids=lambda each: each.__name__)
def test_every_method_of_every_estimator_says_what_was_interrupted(presses: Presses, kind: Any) -> None:
    estimator, heard = kind(**PARAMETERS.get(kind.__name__, {})), set()
    methods = [name for name, _ in inspect.getmembers(kind, inspect.isroutine) if not name.startswith("_")]
    for name in sorted(methods, key=lambda name: name != "fit"):
        method = getattr(estimator, name)
        takes = inspect.signature(method).parameters
        if "X" not in takes or f"{kind.__name__}.{name}" in REFUSED:
            continue
        arguments = {"X": rows_of(estimator, name)} | ({"y": Y} if "y" in takes else {})
        with np.errstate(divide="ignore"):
            for said in presses.at_each(lambda: method(**arguments)):  # noqa: B023
                call, _, rest = said.partition(" ")
                whose, _, of = call.partition(".")
                ended = rest.startswith("had ended")  # this is said of the fit, also within another method
                assert (whose, "fit" if ended and of != name else name) == (kind.__name__, of), said
                before = r"( before (an iteration|a step) had ended)?"
                fits = rf"was interrupted{before}; nothing was fitted: {AGAIN}|had ended .*: the estimator is fitted"
                plainly = rf"was interrupted: {AGAIN}"
                counts = rf"was interrupted; its rows do not count: {AGAIN}"
                expected = counts if of == "partial_fit" else fits if "fit" in of else plainly
                if of in ("fit_predict", "fit_transform"):  # the fit may have ended
                    expected = f"{fits}|{plainly}"
                assert re.fullmatch(expected, rest), said
                heard.add(of)
    assert heard >= {"fit", "transform"} & set(methods) or kind.__name__ == "PolynomialFeatures"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_says_what_was_interrupted(presses: Presses, pair: xpulab.XPUCluster, name: str) -> None:
    function = FUNCTIONS[name]
    needed = [each for each in inspect.signature(function).parameters.values() if each.default is each.empty]
    positional = [
        pair.scatter(X) if each.name == "arrays" else ARGUMENTS[each.name] for each in needed if each.name != "kwds"
    ]
    if name == "metrics.log_loss":
        positional.append(np.full((60, 3), 1 / 3))
    said = set(presses.at_each(lambda: function(*positional)))
    assert said == {f"{name} was interrupted: {AGAIN}"}


def ranks_of(task: Any) -> int:
    return int(task.rank)


#: Methods that send no task to running engines, those that end or start engines, and what estimators use of a cluster.
SEND_NOTHING = {
    "activate", "attach", "call", "detach", "devices", "end", "entries", "following", "forked", "last", "logs",
    "made_handle", "outgoing", "plan", "receive", "release_with", "replies", "require_handle", "require_room",
    "restart", "resume", "start", "start_again", "status", "stop", "stop_call", "stopped",
}  # fmt: skip


def test_every_call_of_a_cluster_says_what_was_interrupted(
    presses: Presses, pair: xpulab.XPUCluster, tmp_path: Path
) -> None:
    np.save(tmp_path / "rows.npy", X)
    pair.push({"a": 1})
    known = {**ARGUMENTS, "path": tmp_path / "rows.npy", "array": pair.scatter(X), "function": ranks_of}
    methods = {name for name, _ in inspect.getmembers(xpulab.XPUCluster, inspect.isroutine) if not name.startswith("_")}
    for name in sorted(methods - SEND_NOTHING):
        call = getattr(pair, name)
        needed = [p.name for p in inspect.signature(call).parameters.values() if p.default is p.empty and p.kind < 2]
        said = list(presses.at_each(lambda: call(*(known[each] for each in needed))))  # noqa: B023
        called = {"run": "run(ranks_of)"}.get(name, name)
        sentences = [f"{called} was interrupted: {AGAIN}", f"{called} had ended on all ranks when the interrupt came"]
        assert said
        assert set(said) <= set(sentences)
    handle = pair.scatter(X)
    assert set(presses.at_each(handle.gather)) == {f"gather was interrupted: {AGAIN}"}


NOISE = RNG.normal(size=(100_000, 8))
LONG = {"n_init": 1, "max_iter": 1_000_000, "tol": 0, "random_state": 0}
ON = "import xpulab; model = xpulab.interrupted().resume()"


def strike_in_iteration(cluster: xpulab.XPUCluster) -> None:
    """Press Ctrl-C when the board shows the second iteration of the fit that is about to begin."""
    number = int(cluster._board.ranks["task"][0])  # type: ignore[union-attr]

    def press() -> None:
        ranks = cluster._board.ranks  # type: ignore[union-attr]
        until(lambda: ranks["task"][0] not in (0, number) and ranks["iteration"][0] >= 2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()


@pytest.mark.parametrize(
    ("where", "who", "fit"),
    [
        (
            r"candidate 1, fold 1 of the search",
            "the search",
            lambda: GridSearchCV(KMeans(300, **LONG), {"n_clusters": [300, 200]}, cv=2).fit(NOISE),
        ),
        ("one fold", "cross_val_score", lambda: cross_val_score(KMeans(300, **LONG), NOISE, cv=2)),
        ("Pipeline.fit", "the Pipeline", lambda: make_pipeline(StandardScaler(), KMeans(300, **LONG)).fit(NOISE)),
    ],
    ids=["a search", "a cross-validation", "a pipeline"],
)
def test_a_fit_within_another_call_says_of_what_it_is_a_part(
    on_pair: xpulab.XPUCluster, where: str, who: str, fit: Callable[[], Any]
) -> None:
    strike_in_iteration(on_pair)
    with pytest.raises(CallInterrupted) as raised:
        fit()
    said = re.sub(r"iteration \d+", "iteration N", str(raised.value))
    assert said == (
        f"KMeans.fit was interrupted in iteration N, in {where}; {who} itself starts anew: {AGAIN}. To go on with this "
        f"KMeans alone, type: {ON}"
    )


def test_what_cannot_go_on_says_of_what_it_is_a_part(presses: Presses) -> None:
    search = GridSearchCV(Ridge(), {"alpha": [1.0, 2.0]}, cv=2)
    said = list(presses.at_each(lambda: search.fit(X, Y)))
    assert said[0] == (
        f"Ridge.fit was interrupted, in candidate 1, fold 1 of the search; the search itself starts anew: {AGAIN}"
    )
    folds = [f"candidate {c}, fold {f} of the search; the search" for c in (1, 2) for f in (1, 2)]
    for part in [*folds, "GridSearchCV.fit; the search"]:
        assert any(f"in {part} itself starts anew" in each for each in said), part
    assert not any("to go on" in each.lower() for each in said)


def test_a_method_that_an_estimator_inherits_is_no_other_call(presses: Presses) -> None:
    assert not any("starts anew" in said for said in presses.at_each(lambda: KMeans(2, n_init=1).fit_predict(X)))
    with xpulab.accel(least=0):
        from sklearn.cluster import KMeans as Plain

        said = list(presses.at_each(lambda: Plain(2, n_init=1).fit_predict(X)))
    assert said
    assert not any("starts anew" in each for each in said)


def test_an_interrupted_start_and_a_resume_without_a_fit_show_lines_and_no_traceback(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    shell.run_cell("%xpu_cluster start -n 1")
    timer.join()
    shown = capsys.readouterr().out.strip().splitlines()
    assert shown[-1] == "KeyboardInterrupt: start was interrupted; no engine is left running: run the cell again"
    assert len(shown) <= 4, shown
    shell.run_cell("%xpu_cluster start -n 1")
    capsys.readouterr()
    shell.run_cell("%xpu_cluster resume")
    shown = capsys.readouterr().out.strip().splitlines()
    assert len(shown) == 1
    assert shown[0].startswith("NothingToResumeError: no fit that could go on was interrupted")


def slow(task: Any, seconds: float) -> None:
    """On an engine: let each piece of rows that is read, or moved to another rank, take this many seconds."""
    import time

    from xpulab.engine.algorithms import selection
    from xpulab.sharing.process_memory import ProcessMemory

    def slowly(call: Any) -> Any:
        call = getattr(call, "plain", call)

        def slowed(*arguments: Any) -> Any:
            time.sleep(seconds)
            return call(*arguments)

        slowed.plain = call  # type: ignore[attr-defined]
        return slowed if seconds else call

    ProcessMemory.read = slowly(ProcessMemory.read)  # type: ignore[method-assign]
    selection._exchange = slowly(selection._exchange)
    selection._PIECE = 1 << 16 if seconds else 8 << 20


@pytest.fixture
def slowed(on_pair: xpulab.XPUCluster) -> Iterator[xpulab.XPUCluster]:
    on_pair.run(slow, 0.1)
    yield on_pair
    on_pair.run(slow, 0.0)


def bytes_on(cluster: xpulab.XPUCluster) -> int:
    cluster.run(ranks_of)
    return int(cluster._board.ranks["device_bytes"].sum())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "line", ["rows = pair.scatter(X)", "a, b = train_test_split(handle)", "a, b, c, d = train_test_split(handle, few)"]
)
def test_a_stop_while_rows_move_acts_at_once_and_no_rows_stay(
    slowed: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell: Any = InteractiveShell()
    many = RNG.normal(size=(200_000, 20))  # 32 MB: 32 pieces to read, 500 to move
    before = bytes_on(slowed)
    shell.user_ns |= {"pair": slowed, "X": many, "train_test_split": train_test_split, "few": slowed.scatter(X)}
    if "handle" in line:
        slowed.run(slow, 0.0)
        shell.user_ns |= {"handle": slowed.scatter(many), "few": slowed.scatter(many[:, :1])}
        slowed.run(slow, 0.1)
    pressed = []

    def press() -> None:
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.5, press)
    timer.start()
    shell.run_cell(line)
    took = time.monotonic() - pressed[0]
    timer.join()
    assert f"was interrupted: {AGAIN}" in capsys.readouterr().out
    assert took < 2  # 0.1 s on a quiet machine; without an interrupt it takes many seconds
    for name in ("handle", "few"):
        shell.user_ns.pop(name, None)
    until(lambda: bytes_on(slowed) <= before, 5)


def test_an_estimator_that_uses_another_one_is_named(presses: Presses) -> None:
    said = set(presses.at_each(lambda: RidgeCV(cv=3, scoring="r2").fit(X, Y)))
    assert said == {f"RidgeCV.fit was interrupted; nothing was fitted: {AGAIN}"}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Ridge().fit(X, Y, sample_weight=np.ones(60)), "Ridge.fit was interrupted; nothing was fitted"),
        (lambda: KMeans(2).fit(X), "KMeans.fit was interrupted; nothing was fitted"),
        (lambda: accuracy_score(Y, Y), "metrics.accuracy_score was interrupted"),
    ],
    ids=["Ridge", "KMeans", "accuracy_score"],
)
def test_an_interrupt_in_a_check_of_scikit_learn_names_the_call(
    on_pair: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any], said: str
) -> None:
    check = checks.ONE_AT_A_TIME

    class Pressed:
        """Takes the place of the context of all checks; Ctrl-C is pressed in one of them."""

        def __init__(self, moment: int) -> None:
            self.left = moment

        def __enter__(self) -> None:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGINT)
            check.__enter__()

        def __exit__(self, *error: Any) -> None:
            check.__exit__(*error)

    monkeypatch.setattr(checks, "ONE_AT_A_TIME", counted := Pressed(0))
    call()
    assert counted.left < 0
    for moment in range(1, 1 - counted.left):
        monkeypatch.setattr(checks, "ONE_AT_A_TIME", Pressed(moment))
        with pytest.raises(CallInterrupted, match=re.escape(f"{said}: {AGAIN}")):
            call()
