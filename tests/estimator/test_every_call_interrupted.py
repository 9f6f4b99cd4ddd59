"""An interrupt of any public call ends in one sentence, which names the call and says what to do."""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import importlib
import inspect
import linecache
import os
import pkgutil
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
from exported import FEW_TREES, targets_for
from presses import Presses
from sklearn.base import BaseEstimator
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from strikes import pressed_when
from waiting import until

import xpulab
from xpulab import checks
from xpulab.cluster import KMeans
from xpulab.estimator.interrupted import Interruptible
from xpulab.estimator.proxy import Proxy
from xpulab.exceptions import CallInterrupted
from xpulab.linear_model import Ridge, RidgeCV
from xpulab.metrics import accuracy_score
from xpulab.model_selection import train_test_split
from xpulab.preprocessing import StandardScaler
from xpulab.report import progress

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
X = RNG.integers(0, 9, (60, 4)) + RNG.integers(0, 2, (60, 1)) * 20.0
Y = (X[:, 0] > 10).astype(int) + (X[:, 1] > 4)
#: Arguments of public calls, by the names of their parameters.
ARGUMENTS = {"X": X, "y": Y, "labels": Y, "y_true": Y, "y_pred": Y[::-1], "variables": {"a": X}, "name": "a"}
ARGUMENTS["y_score"] = np.full((60, 3), 1 / 3)
#: Metrics of which each asks the engines for other things than the others do.
METRICS = {
    "accuracy_score", "average_precision_score", "calinski_harabasz_score", "confusion_matrix", "davies_bouldin_score",
    "log_loss", "max_error", "median_absolute_error", "r2_score", "silhouette_samples", "silhouette_score",
}  # fmt: skip
#: Parameters with which estimators take these rows without a warning, and with which fits are short.
PARAMETERS: dict[str, dict[str, Any]] = {
    "KBinsDiscretizer": {"strategy": "uniform"},
    "QuantileTransformer": {"n_quantiles": 9},
} | FEW_TREES
#: What they refuse: rows without missing values, and a radius that the class does not have.
REFUSED = {
    "KNeighborsClassifier.radius_neighbors",
    "KNeighborsRegressor.radius_neighbors",
    "SimpleImputer.inverse_transform",
}
AGAIN = "call it again"


@pytest.fixture(autouse=True)
def settings_as_before() -> Iterator[None]:
    """Restore what Ctrl-C leaves changed in scikit-learn's `config_context`, in `catch_warnings`, and in `errstate`."""
    before = sklearn.get_config()
    with warnings.catch_warnings(), np.errstate():
        yield
    sklearn.set_config(**before)


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
    if inspect.isfunction(thing) and (package == "model_selection" or thing.__name__ in METRICS)
}


def rows_of(estimator: Any, method: str) -> np.ndarray:
    """Return rows that a method takes."""
    if method != "inverse_transform":
        return X
    made = estimator.transform(X)
    return made.toarray() if hasattr(made, "toarray") else made


def methods_with_rows(kind: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the methods of an estimator that take rows, `fit` first, and a call of each."""
    estimator = kind(**PARAMETERS.get(kind.__name__, {}))
    routines = [name for name, _ in inspect.getmembers(kind, inspect.isroutine) if not name.startswith("_")]
    methods = [name for name in routines if hasattr(estimator, name)]  # scikit-learn hides some from an object
    for name in sorted(methods, key=lambda name: name != "fit"):
        method = getattr(estimator, name)
        takes = inspect.signature(method).parameters
        of_sklearn = isinstance(inspect.getattr_static(kind, name), staticmethod)  # such as Lasso.path
        if "X" not in takes or of_sklearn or f"{kind.__name__}.{name}" in REFUSED:
            continue
        arguments = {"X": rows_of(estimator, name)} | ({"y": targets_for(kind, Y)} if "y" in takes else {})
        yield name, functools.partial(method, **arguments)


def method_in(said: str, kind: Any, name: str) -> str:
    """Check what an interrupt says about a method of an estimator, and return the name of the method that it names."""
    call, _, rest = said.partition(" ")
    whose, _, of = call.partition(".")
    ended = rest.startswith("had ended")  # this is said of the fit, also within another method
    assert (whose, "fit" if ended and of != name else name) == (kind.__name__, of), said
    before = r"( before (an iteration|a step) had ended)?"
    goes_on = r"was interrupted in iteration \d+ of \d+(, run \d+ of \d+)?; to go on, type: .*\.interrupted\(\)"
    fits = rf"was interrupted{before}; nothing was fitted: {AGAIN}|{goes_on}|had ended .*: the estimator is fitted"
    plainly = rf"was interrupted: {AGAIN}"
    counts = rf"was interrupted{before}; its rows do not count: {AGAIN}"
    expected = counts if of == "partial_fit" else fits if "fit" in of else plainly
    if of in ("fit_predict", "fit_transform"):  # the fit may have ended
        expected = f"{fits}|{plainly}"
    assert re.fullmatch(expected, rest), said
    return of


def at_each_moment(kind: Any, presses: Presses) -> None:
    heard = set()
    for name, call in methods_with_rows(kind):
        with np.errstate(divide="ignore"):
            heard |= {method_in(said, kind, name) for said in presses.at_each(call)}
    computed_here = ("Binarizer", "Normalizer", "PolynomialFeatures", "TfidfTransformer")
    assert heard >= {"fit", "transform"} & set(dir(kind)) or kind.__name__ in computed_here


def call_of(name: str, pair: xpulab.XPUCluster) -> Callable[[], Any]:
    """Return a call of a public function."""
    function = FUNCTIONS[name]
    needed = [each for each in inspect.signature(function).parameters.values() if each.default is each.empty]
    positional = [
        pair.scatter(X) if each.name == "arrays" else ARGUMENTS[each.name] for each in needed if each.name != "kwds"
    ]
    if name == "metrics.log_loss":
        positional.append(np.full((60, 3), 1 / 3))
    return functools.partial(function, *positional)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_says_what_was_interrupted(presses: Presses, pair: xpulab.XPUCluster, name: str) -> None:
    assert set(presses.at_each(call_of(name, pair))) == {f"{name} was interrupted: {AGAIN}"}


def ranks_of(task: Any) -> int:
    return int(task.rank)


#: Methods that send no task to running engines, those that end or start engines, and what estimators use of a cluster.
SEND_NOTHING = {
    "activate", "attach", "call", "detach", "devices", "end", "entries", "last", "logs", "made_handle", "outgoing",
    "plan", "receive", "release_with", "require_handle", "require_room", "restart", "resume", "start", "status", "stop",
    "stop_call", "stopped",
}  # fmt: skip


def calls_of(pair: xpulab.XPUCluster, folder: Path) -> Iterator[tuple[Callable[[], Any], list[str]]]:
    """Yield calls of the methods of a cluster, and the sentences that an interrupt of each may say."""
    np.save(folder / "rows.npy", X)
    pair.push({"a": 1})
    known = {**ARGUMENTS, "path": folder / "rows.npy", "array": pair.scatter(X), "function": ranks_of}
    methods = {name for name, _ in inspect.getmembers(xpulab.XPUCluster, inspect.isroutine) if not name.startswith("_")}
    for name in sorted(methods - SEND_NOTHING):
        call = getattr(pair, name)
        needed = [p.name for p in inspect.signature(call).parameters.values() if p.default is p.empty and p.kind < 2]
        called = {"run": "run(ranks_of)"}.get(name, name)
        ended = "ran to its end on all ranks: it had ended when the interrupt came, or the code has caught it"
        sentences = [f"{called} was interrupted: {AGAIN}", f"{called} {ended}"]
        yield functools.partial(call, *(known[each] for each in needed)), sentences


def test_every_call_of_a_cluster_says_what_was_interrupted(
    presses: Presses, pair: xpulab.XPUCluster, tmp_path: Path
) -> None:
    for call, sentences in calls_of(pair, tmp_path):
        said = list(presses.at_each(call))
        assert said
        assert set(said) <= set(sentences)
    handle = pair.scatter(X)
    assert set(presses.at_each(handle.gather)) == {f"gather was interrupted: {AGAIN}"}


NOISE = RNG.normal(size=(100_000, 8))
LONG = {"n_init": 1, "max_iter": 1_000_000, "tol": 0, "random_state": 0}
HAVE = "import xpulab; model = xpulab.interrupted()"
ON = f"{HAVE}.resume(); to have it as it is: {HAVE}"


def strike_in_iteration(cluster: xpulab.XPUCluster) -> None:
    """Press Ctrl-C when the board shows the second iteration of the fit that is about to begin."""
    number = int(cluster.engines.board.ranks["task"][0])  # type: ignore[union-attr]

    def press() -> None:
        ranks = cluster.engines.board.ranks  # type: ignore[union-attr]
        until(lambda: ranks["task"][0] not in (0, number) and ranks["iteration"][0] >= 2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()


@pytest.mark.parametrize(
    ("where", "who", "fit"),
    [
        (
            "candidate 1 of 2, fold 1 of 2",
            "the search",
            lambda: GridSearchCV(KMeans(300, **LONG), {"n_clusters": [300, 200]}, cv=2).fit(NOISE),
        ),
        ("fold 1 of 2", "cross_val_score", lambda: cross_val_score(KMeans(300, **LONG), NOISE, cv=2)),
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
        f"KMeans.fit was interrupted in iteration N of 1000000, in {where}; {who} itself starts anew: {AGAIN}. "
        f"To go on with this KMeans alone, type: {ON}"
    )


def test_what_cannot_go_on_says_of_what_it_is_a_part(presses: Presses) -> None:
    search = GridSearchCV(Ridge(), {"alpha": [1.0, 2.0]}, cv=2)
    said = list(presses.at_each(lambda: search.fit(X, Y)))
    assert said[0] == (
        f"Ridge.fit was interrupted, in candidate 1 of 2, fold 1 of 2; the search itself starts anew: {AGAIN}"
    )
    kept = [re.match(r"GridSearchCV.fit was interrupted: (\d) of 4 fits had ended", each) for each in said]
    assert {int(match[1]) for match in kept if match} == {1, 2, 3, 4}
    first = [each for each, match in zip(said, kept, strict=True) if not match]
    assert all("candidate 1 of 2, fold 1 of 2; the search itself starts anew" in each for each in first)
    assert not any("to go on" in each.lower() for each in first)
    assert any("and cv_results_ and best_params_ are those of 1 candidate of 2; to go on" in each for each in said)


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
    starting = threading.Event()

    class View:
        def update(self, report: Any) -> None:
            starting.set()

        def close(self, report: Any) -> None: ...

    unsubscribe = progress.subscribe(lambda report: View())
    try:
        with pressed_when(starting.is_set):
            shell.run_cell("%xpu_cluster start -n 1")
    finally:
        unsubscribe()
    shown = capsys.readouterr().out.strip().splitlines()
    assert shown[-1] == (
        "KeyboardInterrupt: %xpu_cluster start -n 1 was interrupted; no engine is left running: run the cell again"
    )
    assert len(shown) <= 4, shown
    shell.run_cell("%xpu_cluster start -n 1")
    capsys.readouterr()
    shell.run_cell("%xpu_cluster resume")
    shown = capsys.readouterr().out.strip().splitlines()
    assert len(shown) == 1
    assert shown[0].startswith("NothingToResumeError: no fit that could go on was interrupted")


def slow(task: Any, folder: str) -> None:
    """On an engine: let each piece of rows that is read, written, or moved to a rank, wait for the request to stop.

    The first piece makes the file `waits` in the folder. Each one then adds a byte to the file `moved`. Pieces are as
    usual without a folder.
    """
    from xpulab.engine import dataset
    from xpulab.engine.algorithms import selection
    from xpulab.sharing.memory import SharedBlock
    from xpulab.sharing.process_memory import ProcessMemory

    engine: Any = task.engine

    def slowly(call: Any) -> Any:
        call = getattr(call, "plain", call)

        def slowed(*arguments: Any) -> Any:
            Path(folder, "waits").touch()
            while not engine.task.cancelled():
                time.sleep(0.01)
            with Path(folder, "moved").open("a") as moved:
                moved.write(".")
            return call(*arguments)

        slowed.plain = call  # type: ignore[attr-defined]
        return slowed if folder else call

    ProcessMemory.read = slowly(ProcessMemory.read)  # type: ignore[method-assign]
    selection._exchange = slowly(selection._exchange)
    SharedBlock.write = slowly(SharedBlock.write)  # type: ignore[method-assign]
    selection._PIECE, dataset._PIECE = (1 << 16, 1 << 16) if folder else (16 << 20, 4 << 20)


@pytest.fixture
def slowed(on_pair: xpulab.XPUCluster, tmp_path: Path) -> Iterator[xpulab.XPUCluster]:
    on_pair.run(slow, str(tmp_path))
    yield on_pair
    on_pair.run(slow, "")


def bytes_on(cluster: xpulab.XPUCluster) -> int:
    cluster.run(ranks_of)
    return int(cluster.engines.board.ranks["device_bytes"].sum())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "line",
    [
        "rows = pair.scatter(X)",
        "a, b = train_test_split(handle)",
        "a, b, c, d = train_test_split(handle, few)",
        "rows = handle.gather()",
    ],
)
def test_a_stop_while_rows_move_acts_at_the_next_piece_and_no_rows_stay(
    slowed: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str
) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell: Any = InteractiveShell()
    many = RNG.normal(size=(200_000, 20))  # 32 MB: 32 pieces to read, 500 to move
    before = bytes_on(slowed)
    shell.user_ns |= {"pair": slowed, "X": many, "train_test_split": train_test_split, "few": slowed.scatter(X)}
    if "handle" in line:
        slowed.run(slow, "")
        shell.user_ns |= {"handle": slowed.scatter(many), "few": slowed.scatter(many[:, :1])}
        slowed.run(slow, str(tmp_path))
    with pressed_when(tmp_path / "waits"):
        shell.run_cell(line)
    assert f"was interrupted: {AGAIN}" in capsys.readouterr().out
    assert 1 <= (tmp_path / "moved").stat().st_size <= 8  # of 32 pieces or more
    for name in ("handle", "few"):
        shell.user_ns.pop(name, None)
    until(lambda: bytes_on(slowed) <= before)


def test_an_estimator_that_uses_another_one_is_named(presses: Presses) -> None:
    said = set(presses.at_each(lambda: RidgeCV([1.0, 2.0], cv=2, scoring="r2").fit(X, Y)))
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


class Lines:
    """Presses Ctrl-C before one of the lines of Python that a public call runs in this thread, whosever code it is.

    At the end of a ``with`` block, Python traces the line of its ``with`` once more, before `__exit__`. It handles no
    signal there: an interrupt would leave a lock that is never released. Ctrl-C is then pressed before the next line.
    The same holds for the lines with which Python's own modules take and release their locks.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        function = inspect.unwrap(getattr(call, "func", call))
        self._code = getattr(function, "__func__", function).__code__
        self.line = self.seen = 0
        self._within = False

    def _follow(self, frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is self._code and event in ("call", "return"):
            self._within = event == "call"
        if event == "line" and self._within:
            self.seen += 1
            if 0 < self.line <= self.seen and not (_of_pythons_locks(frame) or _leaves_with(frame)):
                sys.settrace(None)
                os.kill(os.getpid(), signal.SIGINT)
        return self._follow

    def press(self, line: int) -> str:
        """Make the call, and press before this line, counted from 1; 0 counts the lines. Return what is said.

        The text is empty if the call has ended, because the line was in code that must not be interrupted.
        """
        self.line, self.seen, self._within = line, 0, False
        sys.settrace(self._follow)
        try:
            self._call()
        except CallInterrupted as interrupt:
            return str(interrupt)
        except KeyboardInterrupt as interrupt:
            raise AssertionError(f"the interrupt before line {line} was not told of") from interrupt
        finally:
            sys.settrace(None)
        return ""


def _of_pythons_locks(frame: Any) -> bool:
    """Return whether a frame is of a module of Python in which a call that is interrupted may keep a lock.

    Such are the lock of a `functools.cached_property` (up to Python 3.11), of a logger, and of an import.
    """
    module = frame.f_globals.get("__name__", "").partition(".")[0]
    return module in {"_weakrefset", "functools", "importlib", "logging", "threading", "weakref"}


def _leaves_with(frame: Any) -> bool:
    """Return whether a frame is about to call `__exit__` of a ``with`` block that has ended without an error."""
    if not linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with "):
        return False
    here = next(each for each in dis.get_instructions(frame.f_code) if each.offset == frame.f_lasti)
    return here.opname in {"LOAD_CONST", "POP_BLOCK", "SWAP", "ROT_TWO", "COPY"}  # and not the context's expression


def test_the_end_of_a_with_block_is_seen() -> None:
    seen = []

    def follow(frame: Any, event: str, _: Any) -> Any:
        if event == "line" and frame.f_code is example.__code__:
            seen.append((frame.f_lineno - frame.f_code.co_firstlineno, _leaves_with(frame)))
        return follow

    def example() -> int:
        with contextlib.nullcontext():
            pass
        with contextlib.nullcontext():
            return len("ab")

    sys.settrace(follow)
    try:
        example()
    finally:
        sys.settrace(None)
    mine = [(line, leaves) for line, leaves in seen if line in (1, 3)]
    assert mine == [(1, False), (1, True), (3, False), (3, True)]


def require_no_lock_held(pair: xpulab.XPUCluster) -> None:
    """Fail if an interrupt has left a lock of this thread: all other threads would wait for it for ever."""
    other = threading.Thread(target=lambda: KMeans(2, n_init=1).fit(pair.scatter(X)), daemon=True)
    other.start()
    other.join(120)
    if (frame := sys._current_frames().get(other.ident or 0)) is not None and other.is_alive():
        where = "".join(traceback.format_stack(frame)[-6:])
        pytest.fail(f"another thread waits for a lock that an interrupted call has not released:\n{where}")


def at_random_lines(call: Callable[[], Any], generator: np.random.Generator, n: int = 4) -> Iterator[str]:
    lines = Lines(call)
    lines.press(0)
    assert lines.seen
    for line in generator.integers(1, lines.seen + 1, n):
        yield lines.press(int(line))


class Nested(Interruptible, BaseEstimator):
    """An estimator whose fit uses another one, whose checks of parameters are off, too."""

    def fit(self, X: Any) -> None:
        with sklearn.config_context(skip_parameter_validation=True), sklearn.config_context(assume_finite=True):
            pass


def test_a_context_whose_end_ctrl_c_has_hit_changes_no_configuration_later() -> None:
    configuration = sklearn.get_config()

    def follow(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is contextlib._GeneratorContextManager.__exit__.__code__:  # first that of the inner context
            sys.settrace(None)
            os.kill(os.getpid(), signal.SIGINT)
        return follow

    sys.settrace(follow)
    try:
        with pytest.raises(CallInterrupted):
            Nested().fit(X)
    finally:
        sys.settrace(None)
    gc.collect()
    assert sklearn.get_config() == configuration


def at_any_line(kind: Any, presses: Presses) -> None:
    generator, configuration = np.random.default_rng(0), sklearn.get_config()
    for name, call in methods_with_rows(kind):
        with np.errstate(divide="ignore"):
            for said in filter(None, at_random_lines(call, generator)):
                method_in(said, kind, name)
                assert sklearn.get_config() == configuration
            call()  # an interrupted fit may have taken away the attributes of the one before


@pytest.mark.fraction(2)  # what most classes do when they are interrupted is code of all
@pytest.mark.parametrize("pressed", [at_each_moment, at_any_line], ids=lambda each: each.__name__)
@pytest.mark.parametrize("kind", ESTIMATORS, ids=lambda each: each.__name__)
def test_every_method_of_every_estimator_says_what_was_interrupted(
    on_pair: xpulab.XPUCluster, presses: Presses, kind: Any, pressed: Callable[[Any, Presses], None]
) -> None:
    pressed(kind, presses)
    assert on_pair.run(ranks_of) == [0, 1]
    require_no_lock_held(on_pair)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_says_so_at_any_line(on_pair: xpulab.XPUCluster, name: str) -> None:
    said = set(at_random_lines(call_of(name, on_pair), np.random.default_rng(0)))
    assert said - {""} == {f"{name} was interrupted: {AGAIN}"}
    require_no_lock_held(on_pair)


def test_every_call_of_a_cluster_says_so_at_any_line(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for call, sentences in calls_of(pair, tmp_path):
        said = set(at_random_lines(call, generator))
        assert said - {""}
        assert said <= {"", *sentences, f"run was interrupted: {AGAIN}"}  # before its function was looked at
    require_no_lock_held(pair)
