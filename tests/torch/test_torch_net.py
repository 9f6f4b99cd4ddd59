"""The estimators: skorch's results for any number of engines, callbacks, kinds of rows, and bad input."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpulab
from xpulab.data import Outgoing
from xpulab.exceptions import EngineError, NoClusterError, UsageError
from xpulab.report import progress

skorch: Any = pytest.importorskip("skorch")
torch: Any = pytest.importorskip("torch")

from sklearn.model_selection import GridSearchCV  # noqa: E402
from skorch.callbacks import Checkpoint, EarlyStopping, EpochScoring, LRScheduler  # noqa: E402
from skorch.helper import predefined_split  # noqa: E402

from xpulab.torch import NeuralNetClassifier  # noqa: E402

pytestmark = pytest.mark.cluster

_random = np.random.default_rng(0)
X = _random.normal(size=(331, 8)).astype(np.float32)  # batches of 50: the last ones have few rows
Y = X[:, :3].argmax(1)
SETTINGS: dict[str, Any] = {
    "max_epochs": 4, "lr": 0.5, "batch_size": 50, "iterator_train__shuffle": True, "verbose": 0,
}  # fmt: skip


class Net(torch.nn.Module):
    """A classifier."""

    def __init__(self, n_hidden: int = 12, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, n_hidden), torch.nn.Linear(n_hidden, 3)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        return torch.softmax(self.second(self.dropout(torch.tanh(self.first(x)))), 1)


class Wide(torch.nn.Module):
    """A module for 9 columns."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(9, 3), torch.nn.Softmax(1))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Few(Net):
    """A classifier of 2 of the 3 classes."""

    def forward(self, x: Any) -> Any:
        return super().forward(x)[:, :2]


class Logits(Net):
    """A classifier whose criterion takes logits."""

    def forward(self, x: Any) -> Any:
        return self.second(torch.tanh(self.first(x)))


class Line(torch.nn.Module):
    """A regression."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        return self.linear(x)


@pytest.fixture(params=[1, 2, 3])
def engines(request: pytest.FixtureRequest, clusters: Callable[[int], xpulab.XPUCluster]) -> xpulab.XPUCluster:
    """The active cluster of 1, 2 and 3 engines."""
    found = request.getfixturevalue("pair") if request.param == 2 else clusters(request.param)
    return found.activate()


def both(kind: str, module: Any, y: Any = Y, rows: Any = X, **settings: Any) -> tuple[Any, Any]:
    """Return our net and skorch's after a fit with the same random numbers."""
    nets = []
    for source in (xpulab.torch, skorch):
        torch.manual_seed(0)
        nets.append(getattr(source, kind)(module, **{**SETTINGS, **copy.deepcopy(settings)}).fit(rows, y))
    return nets[0], nets[1]


def compare(ours: Any, theirs: Any, columns: tuple[str, ...]) -> None:
    """Compare parameters and history of two nets."""
    for (name, mine), other in zip(
        ours.module_.state_dict().items(), theirs.module_.state_dict().values(), strict=True
    ):
        assert torch.allclose(mine, other, atol=2e-5), (name, (mine - other).abs().max())
    for column in columns:
        np.testing.assert_allclose(ours.history[:, column], theirs.history[:, column], rtol=1e-4, err_msg=column)
    for column in ("train_batch_size", "train_loss"):
        mine, other = (net.history[:, "batches", :, column] for net in (ours, theirs))
        np.testing.assert_allclose(mine, other, rtol=1e-4, err_msg=column)


SCORED = ("train_loss", "valid_loss", "valid_acc", "train_batch_count", "valid_batch_count")


def test_a_classifier_is_that_of_skorch(engines: xpulab.XPUCluster) -> None:
    ours, theirs = both("NeuralNetClassifier", Net)
    compare(ours, theirs, SCORED)
    assert ours.history[-1]["valid_acc"] > 0.8
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    assert ours.score(X, Y) == pytest.approx(theirs.score(X, Y), abs=0.01)
    report = ours.report_
    assert [engine.rows > 0 for engine in report.engines] == [True] * engines.size
    assert sum(engine.rows for engine in report.engines) == 264
    assert [iteration.number for iteration in report.iterations] == [1, 2, 3, 4]
    assert report.iterations[-1].metrics["valid_acc"] == pytest.approx(ours.history[-1]["valid_acc"])
    assert "with the process group xpulab" in str(report)
    assert type(ours.module_) is Net


def test_a_view_shows_the_seconds_of_forward_and_backward_passes_while_they_grow(engines: xpulab.XPUCluster) -> None:
    seen: list[list[dict[str, float]]] = []

    class View:
        def update(self, report: Any) -> None:
            seen.append([dict(engine.passes) for engine in report.engines])

        def close(self, report: Any) -> None:
            pass

    unsubscribe = progress.subscribe(lambda report: View())
    try:
        net = xpulab.torch.NeuralNetClassifier(Net, max_epochs=60, batch_size=16, verbose=0).fit(X, Y)
    finally:
        unsubscribe()
    # At first the engines import PyTorch, and have no passes.
    shown = [passes for passes in seen if all(engine and engine["backward"] for engine in passes)]
    for rank, engine in enumerate(net.report_.engines):
        for name in ("forward", "backward"):
            seconds = [passes[rank][name] for passes in shown]
            assert 0 < seconds[0] < seconds[-1] <= engine.passes[name]
        assert engine.seconds["kernel"] == pytest.approx(sum(engine.passes.values()), rel=0.05)
        assert sum(engine.phases.values()) == pytest.approx(engine.total, rel=0.05)


@pytest.mark.parametrize(
    "settings",
    [
        {"criterion": torch.nn.CrossEntropyLoss, "criterion__weight": torch.tensor([1.0, 5.0, 0.2])},
        {"criterion": torch.nn.CrossEntropyLoss, "criterion__reduction": "sum", "lr": 0.005},
        {"criterion": torch.nn.CrossEntropyLoss, "criterion__ignore_index": 1},
        {"criterion": torch.nn.CrossEntropyLoss, "optimizer": torch.optim.Adam, "lr": 0.01, "train_split": None},
        {"criterion": torch.nn.CrossEntropyLoss, "batch_size": 133},  # 264 rows: the second batch has one row less
        {"criterion": torch.nn.CrossEntropyLoss, "batch_size": 263},  # one row in the last batch
        {"criterion": torch.nn.CrossEntropyLoss, "iterator_train__drop_last": True, "iterator_train__shuffle": False},
    ],
    ids=lambda settings: ",".join(list(settings)[1:]),
)
def test_other_losses_optimizers_and_batches(
    clusters: Callable[[int], xpulab.XPUCluster], settings: dict[str, Any]
) -> None:
    clusters(3).activate()
    ours, theirs = both("NeuralNetClassifier", Logits, **settings)
    compare(ours, theirs, ("train_loss",) if "train_split" in settings else ("train_loss", "valid_loss", "valid_acc"))


def test_a_regressor_is_that_of_skorch(on_pair: xpulab.XPUCluster) -> None:
    y = (X @ np.arange(8, dtype=np.float32))[:, None]
    ours, theirs = both("NeuralNetRegressor", Line, y, lr=0.05)
    compare(ours, theirs, ("train_loss", "valid_loss"))
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-4)
    assert ours.score(X, y) > 0.9


class Saying(skorch.callbacks.Callback):
    """Prints a line for each epoch."""

    def on_epoch_end(self, net: Any, **_: Any) -> None:
        print("epoch", len(net.history))


def test_what_callbacks_print_is_shown(on_pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]) -> None:
    stopping = EarlyStopping(patience=1, threshold=0.9)
    NeuralNetClassifier(Net, callbacks=[Saying(), stopping], **{**SETTINGS, "max_epochs": 3, "verbose": 1}).fit(X, Y)
    said = capsys.readouterr().out
    assert [line.partition("] ")[2] for line in said.splitlines() if "epoch" in line][:2] == ["epoch 1", "epoch 2"]
    assert "Stopping since valid_loss has not improved" in said


def test_callbacks_see_global_numbers_and_write_once(
    clusters: Callable[[int], xpulab.XPUCluster], tmp_path: Path
) -> None:
    clusters(3).activate()
    callbacks = [
        ("stop", EarlyStopping("valid_loss", patience=2, threshold=0.03)),
        ("rate", LRScheduler("StepLR", step_size=2, gamma=0.5)),
        ("balanced", EpochScoring("balanced_accuracy", lower_is_better=False)),
        ("training", EpochScoring("accuracy", on_train=True, name="train_acc", lower_is_better=False)),
        ("slow", EpochScoring("neg_log_loss", use_caching=False, lower_is_better=False)),
    ]
    ours, theirs = both("NeuralNetClassifier", Net, callbacks=callbacks, max_epochs=40, lr=1.0)
    assert len(ours.history) == len(theirs.history) < 40
    compare(ours, theirs, (*SCORED, "balanced_accuracy", "train_acc", "neg_log_loss"))
    assert ours.optimizer_.param_groups[0]["lr"] == theirs.optimizer_.param_groups[0]["lr"] < 1
    saving = Checkpoint(monitor="valid_loss_best", dirname=str(tmp_path), load_best=True)
    net = NeuralNetClassifier(Net, callbacks=[saving], **SETTINGS).fit(X, Y)
    kept = torch.load(tmp_path / "params.pt")
    assert all(torch.equal(kept[name], value) for name, value in net.module_.state_dict().items())


class Noting(skorch.callbacks.Callback):
    """A callback that notes losses, in a list of the user's and in its own attributes."""

    def __init__(self, notes: list[float]) -> None:
        self.notes = notes

    def on_train_begin(self, net: Any, **_: Any) -> None:
        self.seen: dict[str, int] = {"epochs": 0, "batches": 0}

    def on_batch_end(self, net: Any, training: bool = False, **_: Any) -> None:
        self.seen["batches"] += training

    def on_epoch_end(self, net: Any, **_: Any) -> None:
        self.seen["epochs"] += 1
        self.notes.append(net.history[-1, "train_loss"])


@pytest.mark.parametrize("kind", [NeuralNetClassifier, skorch.NeuralNetClassifier])
def test_the_users_objects_have_their_state_after_a_fit(on_pair: xpulab.XPUCluster, kind: Any) -> None:
    """Callbacks, what is in them, and a module that was given as an object: as after a fit by skorch."""
    notes: list[float] = []
    noting, stopping = Noting(notes), EarlyStopping("valid_loss", patience=9)
    rate = LRScheduler("StepLR", step_size=2, gamma=0.5)
    torch.manual_seed(0)
    module = Net()
    before = module.first.weight.detach().clone()
    callbacks = [("noting", noting), stopping, ("rate", rate)]
    net = kind(module, callbacks=callbacks, **SETTINGS).fit(X, Y)
    assert noting.notes is notes
    assert notes == net.history[:, "train_loss"]
    assert noting.seen == {"epochs": 4, "batches": 4 * len(net.history[0, "batches"]) - 4 * _of_validation(net)}
    assert stopping.dynamic_threshold_ <= net.history[-1, "valid_loss"]
    assert rate.lr_scheduler_.last_epoch == 4
    assert net.callbacks is callbacks
    assert [dict(net.callbacks_)["noting"], callbacks[0][1], callbacks[1]] == [noting, noting, stopping]
    assert net.module_ is module
    assert net.module_.first is module.first
    assert not torch.equal(module.first.weight, before)
    assert net.optimizer_.param_groups[0]["params"][0] is module.first.weight
    net.partial_fit(X, Y)
    assert len(notes) == 8


def _of_validation(net: Any) -> int:
    """Return the number of batches of an epoch that were not for training."""
    return sum("train_loss" not in batch for batch in net.history[0, "batches"])


def test_more_epochs_and_a_warm_start(on_pair: xpulab.XPUCluster) -> None:
    nets = []
    for kind in (NeuralNetClassifier, skorch.NeuralNetClassifier):
        torch.manual_seed(0)
        net = kind(Net, warm_start=True, optimizer__momentum=0.9, **{**SETTINGS, "max_epochs": 2}).fit(X, Y)
        nets.append(net.fit(X, Y).partial_fit(X, Y))
    assert len(nets[0].history) == 6
    compare(nets[0], nets[1], SCORED)


def test_dropout_draws_other_masks_on_each_engine_and_trains(on_pair: xpulab.XPUCluster) -> None:
    torch.manual_seed(0)
    net = NeuralNetClassifier(Net, module__dropout=0.3, **{**SETTINGS, "max_epochs": 12}).fit(X, Y)
    assert net.history[-1]["valid_acc"] > 0.8


def test_grid_search(on_pair: xpulab.XPUCluster) -> None:
    net = NeuralNetClassifier(Net, **SETTINGS)
    search = GridSearchCV(net, {"lr": [1e-6, 0.5], "module__n_hidden": [5, 12]}, cv=2, scoring="accuracy").fit(X, Y)
    assert search.best_params_["lr"] == 0.5
    assert search.best_score_ > 0.7
    assert search.predict(X[:3]).shape == (3,)


class Rows(torch.utils.data.Dataset):
    """A dataset that reads its rows from a file, where it is used."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        rows = np.load(self.path, mmap_mode="r")
        return torch.from_numpy(rows[index].copy()), int(Y[index])


def test_rows_in_other_forms(on_pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", X)
    forms = {
        "array": X,
        "handle": on_pair.scatter(X),
        "mapped": np.load(tmp_path / "rows.npy", mmap_mode="r"),
        "tensor": torch.from_numpy(X),
        "dict": {"x": X},
        "dataset": Rows(str(tmp_path / "rows.npy")),
    }
    found = {}
    for name, rows in forms.items():
        torch.manual_seed(0)
        split = None if name == "dataset" else skorch.dataset.ValidSplit(5, stratified=True)
        net = NeuralNetClassifier(Net, **{**SETTINGS, "max_epochs": 2, "train_split": split})
        found[name] = net.fit(rows, None if name == "dataset" else Y)
        assert found[name].predict(X).shape == (len(X),)
    for name in ("handle", "mapped", "tensor", "dict"):
        compare(found[name], found["array"], ("train_loss",))
    held_out = predefined_split(skorch.dataset.Dataset(X[:50], Y[:50]))
    torch.manual_seed(0)
    net = NeuralNetClassifier(Net, train_split=held_out, **SETTINGS).fit(X, Y)
    assert net.history[-1]["valid_acc"] > 0.7


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of the arrays that this process sends and receives."""
    counted: list[int] = []
    send, receive = Outgoing.send, Outgoing.receive

    def sending(outgoing: Outgoing, array: np.ndarray) -> Any:
        counted.append(array.nbytes)
        return send(outgoing, array)

    def receiving(outgoing: Outgoing, shape: Any, dtype: Any, on_disk: bool = False) -> Any:
        counted.append(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        return receive(outgoing, shape, dtype, on_disk)

    monkeypatch.setattr(Outgoing, "send", sending)
    monkeypatch.setattr(Outgoing, "receive", receiving)
    return counted


@pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])
def test_the_rows_of_a_handle_stay_on_the_engines(current: xpulab.XPUCluster, moved: list[int]) -> None:
    rows = current.scatter(X, counts=[0] * (current.size - 1) + [len(X)])
    del moved[:]
    found = {}
    for name, form in ("handle", rows), ("array", X):
        torch.manual_seed(0)
        found[name] = NeuralNetClassifier(Net, **{**SETTINGS, "max_epochs": 2}).fit(form, Y)
        found[f"predictions of {name}"] = found[name].predict_proba(form)
        if name == "handle":
            assert moved == []
    compare(found["handle"], found["array"], ("train_loss",))
    np.testing.assert_array_equal(found["predictions of handle"], found["predictions of array"])


@pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])
def test_the_targets_of_a_handle_stay_on_the_engines(current: xpulab.XPUCluster, moved: list[int]) -> None:
    y = X[:, :1] - X[:, 1:2]
    rows, targets = current.scatter(X), current.scatter(y)
    del moved[:]
    found = {}
    for name, form in ("handle", (rows, targets)), ("array", (X, y)):
        torch.manual_seed(0)
        found[name] = xpulab.torch.NeuralNetRegressor(Line, **{**SETTINGS, "max_epochs": 2}).fit(*form)
        if name == "handle":
            assert moved == []
    compare(found["handle"], found["array"], ("train_loss",))


def test_the_fitted_net_without_a_cluster(on_pair: xpulab.XPUCluster) -> None:
    net = NeuralNetClassifier(Net, **SETTINGS).fit(X, Y)
    again = pickle.loads(pickle.dumps(net))
    assert (again.predict(X) == net.predict(X)).all()
    plain = net.to_skorch()
    assert type(plain) is skorch.NeuralNetClassifier
    assert (plain.predict(X) == net.predict(X)).all()
    assert not hasattr(plain, "report_")


def test_without_a_cluster(no_cluster: None) -> None:
    with pytest.raises(NoClusterError):
        NeuralNetClassifier(Net, **SETTINGS).fit(X, Y)
    net = NeuralNetClassifier(Net, **SETTINGS).initialize()
    with pytest.raises(NoClusterError, match=r"net\.to_skorch\(\)\.predict\(X\)"):
        net.predict(X)


class Locked(Net):
    """A module that cannot be sent."""

    def __init__(self) -> None:
        super().__init__()
        import threading

        self.lock = threading.Lock()


class Uneven(Net):
    """A module that uses its second layer on rank 0 only."""

    def forward(self, x: Any) -> Any:
        import torch.distributed as dist

        hidden = torch.tanh(self.first(x))
        return torch.softmax(self.second(hidden) if dist.get_rank() == 0 else hidden[:, :3], 1)


class Failing(Net):
    """A module that fails on one rank, at its third step."""

    steps = 0

    def forward(self, x: Any) -> Any:
        import torch.distributed as dist

        self.steps += 1
        if dist.get_rank() == 1 and self.steps == 3:
            raise LookupError("no row for me")
        return super().forward(x)


def test_a_module_that_cannot_be_sent(on_pair: xpulab.XPUCluster) -> None:
    with pytest.raises(
        TypeError, match=r"module cannot be sent to the engines: TypeError: cannot pickle '_thread\.lock'"
    ):
        NeuralNetClassifier(Locked, **SETTINGS).fit(X, Y)


def test_a_parameter_without_a_gradient_on_one_rank_is_named(on_pair: xpulab.XPUCluster) -> None:
    with pytest.raises(UsageError, match=r"rank 1 has no gradient of second\.weight, second\.bias; .* \[rank 1 on"):
        NeuralNetClassifier(Uneven, **SETTINGS).fit(X, Y)


def test_an_exception_on_one_rank_is_one_error(on_pair: xpulab.XPUCluster) -> None:
    with pytest.raises(EngineError, match="LookupError: no row for me") as caught:
        NeuralNetClassifier(Failing, **SETTINGS).fit(X, Y)
    assert str(caught.value).startswith("1 of 2 engines raised LookupError")
    assert NeuralNetClassifier(Net, **SETTINGS).fit(X, Y).history[-1]["valid_acc"] > 0.5


def test_a_loss_that_is_nan_is_told_at_its_step(on_pair: xpulab.XPUCluster) -> None:
    rows = X.copy()
    rows[120] = np.nan
    with pytest.raises(ValueError, match="the loss is nan at step 3 of epoch 1; expected a finite number"):
        NeuralNetClassifier(Net, **{**SETTINGS, "iterator_train__shuffle": False, "train_split": None}).fit(rows, Y)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"module": Wide},
            r"the module cannot compute an output for its rows: RuntimeError: mat1 and mat2 shapes .*\n"
            r"  in layers\.0: Linear\(in_features=9, out_features=3, bias=True\)\n"
            r"  called in forward, line \d+.*\n  received: float32 of shape \(\d+, 8\)\nexpected: layers that fit .*",
        ),
        (
            {"module": Few},
            r"the criterion cannot compute a loss .*: IndexError: Target \d is out of bounds\.\n  in NLLLoss\(\)\n"
            r"  received: an output, float32 of shape \(\d+, 2\)\n            and y, int64 of shape \(\d+,\)\n"
            r"expected: for a classifier, an output with a column for each class.*",
        ),
    ],
)
@pytest.mark.parametrize("n", [2, 3])
def test_a_module_of_a_wrong_shape_is_an_error_of_five_lines(
    pair: xpulab.XPUCluster,
    clusters: Callable[[int], xpulab.XPUCluster],
    n: int,
    change: dict[str, Any],
    said: str,
) -> None:
    """Also if the ranks' parts of a batch, which the messages name, have different numbers of rows."""
    (pair if n == 2 else clusters(3)).activate()
    with pytest.raises(UsageError) as caught:
        NeuralNetClassifier(**{"module": Net, **SETTINGS, **change}).fit(X, Y)
    assert re.fullmatch(said, str(caught.value))
    assert len(str(caught.value).splitlines()) == 5


def test_rows_of_a_wrong_shape_or_dtype_are_the_same_error(on_pair: xpulab.XPUCluster) -> None:
    net = NeuralNetClassifier(Net, **SETTINGS).fit(X, Y)
    for rows, received in ((X[:, :7], r"float32 of shape \(\d+, 7\)"), (X.astype("f8"), r"float64 of shape")):
        with pytest.raises(UsageError, match=f"(?s)cannot compute an output for its rows.*received: {received}"):
            net.predict(rows)


def test_the_import_of_pytorch_is_a_phase_of_the_first_report() -> None:
    with xpulab.XPUCluster(1, timeout=60):
        net = NeuralNetClassifier(Net, **SETTINGS).fit(X, Y)
        (first,) = net.report_.engines
        (again,) = net.fit(X, Y).report_.engines
    assert first.phases["import"] > 0.2
    assert again.phases["import"] < 0.1
    assert sum(first.phases.values()) == pytest.approx(first.total, abs=0.01)


def test_a_device_that_torch_lacks(on_pair: xpulab.XPUCluster) -> None:
    net = NeuralNetClassifier(Net, device="cpu", **SETTINGS).initialize()
    net.device = "xpu"
    with pytest.raises(
        (xpulab.exceptions.DeviceError, EngineError), match=r"received device='xpu', and torch .* has cpu"
    ):
        net.partial_fit(X, Y)


def test_an_iterator_without_batches_is_refused(on_pair: xpulab.XPUCluster) -> None:
    with pytest.raises((UsageError, EngineError), match="DataLoader that makes batches"):
        NeuralNetClassifier(Net, iterator_train=lambda dataset, **_: [dataset], **SETTINGS).fit(X, Y)


def test_a_missing_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else find(name))
    with pytest.raises(ImportError, match=r"(?s)torch not found.*xpulab\[torch\].*Get Started"):
        xpulab.torch.NeuralNetClassifier  # noqa: B018
