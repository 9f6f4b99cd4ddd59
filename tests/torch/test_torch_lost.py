"""A fit of a net goes on after an interrupt, and after the loss of an engine, and then equals an undisturbed one."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import xpulab
from xpulab.exceptions import EngineLostError

skorch: Any = pytest.importorskip("skorch")
torch: Any = pytest.importorskip("torch")

from xpulab.torch import NeuralNetClassifier, _net  # noqa: E402

pytestmark = pytest.mark.cluster

_random = np.random.default_rng(0)
X = _random.normal(size=(331, 8)).astype(np.float32)
Y = X[:, :3].argmax(1)


class Struck(torch.nn.Module):
    """A module to which something happens at one of its training steps, once: a file says that it has."""

    def __init__(self, at: int = -1, what: str = "", once: str = "") -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(12, 3), torch.nn.Softmax(1)
        )
        self.at, self.what, self.once, self.steps = at, what, once, 0

    def forward(self, x: Any) -> Any:
        import torch.distributed as dist

        from xpulab.engine.engine import this_engine

        self.steps += self.training
        if self.steps == self.at and self.training and not os.path.exists(self.once):
            dist.barrier()
            if self.what == "die" and dist.get_rank() == 1:
                Path(self.once).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            engine = this_engine()
            assert engine is not None
            assert engine.task is not None
            Path(self.once).touch()
            until = time.monotonic() + 120
            while self.what == "stop" and not engine.task.cancelled():
                assert time.monotonic() < until
                time.sleep(0.01)
            time.sleep(0.05 * dist.get_rank())
        return self.layers(x)


def net(**module: Any) -> Any:
    """Return a net with a module, a state of its optimizer and random numbers in each step, and 7 steps an epoch."""
    torch.manual_seed(0)
    return NeuralNetClassifier(
        Struck,
        max_epochs=3,
        lr=0.02,
        batch_size=40,
        optimizer=torch.optim.Adam,
        iterator_train__shuffle=True,
        **{f"module__{name}": value for name, value in module.items()},
    )


def numbers(fitted: Any) -> list[Any]:
    """Return what two fits must have in common, to the bit."""
    return [
        *(value.tolist() for value in fitted.module_.state_dict().values()),
        *fitted.history[:, ("train_loss", "valid_loss", "valid_acc")],
        fitted.history[:, "batches", :, "train_loss"],
    ]


@pytest.fixture(scope="module")
def cluster() -> Iterator[xpulab.XPUCluster]:
    with xpulab.XPUCluster(2, silence=10.0) as cluster:
        yield cluster


@pytest.fixture
def running(cluster: xpulab.XPUCluster) -> xpulab.XPUCluster:
    """The active cluster; a test may lose its engines."""
    if not cluster.running:
        cluster.restart()
    return cluster.activate()


@pytest.fixture
def undisturbed(running: xpulab.XPUCluster) -> list[Any]:
    return numbers(net().fit(X, Y))


def stopped(fitting: Any, once: Path) -> str:
    """Press Stop in a fit when its module says so, and return the message."""

    def press() -> None:
        until = time.monotonic() + 120
        while not once.exists() and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            fitting()
    finally:
        thread.join()
    return str(caught.value)


@pytest.mark.parametrize("at", [1, 7])
def test_stop_keeps_the_weights_of_a_step_and_resume_goes_on(
    running: xpulab.XPUCluster, undisturbed: list[Any], tmp_path: Path, at: int
) -> None:
    ours = net(at=at, what="stop", once=str(tmp_path / "once"))
    pids = [fact.pid for fact in running.facts]
    said = stopped(lambda: ours.fit(X, Y), tmp_path / "once")
    epoch, step = divmod(at - 1, 7)
    assert f"interrupted in epoch {epoch + 1} after {step + 1} steps of it" in said
    assert ours.report_.status == "interrupted"
    assert ours.module_.steps == at
    assert ours.predict(X).shape == (331,)
    copied = pickle.loads(pickle.dumps(ours))
    with pytest.raises(NotFittedError):
        copied.resume()
    assert xpulab.interrupted() is ours
    assert ours.resume() is ours
    assert numbers(ours) == undisturbed
    assert [fact.pid for fact in running.facts] == pids
    with pytest.raises(NotFittedError):
        ours.resume()


def test_what_is_set_before_resume_counts(running: xpulab.XPUCluster, tmp_path: Path) -> None:
    """The number of epochs, the rate and a part of the module, without losing what was trained."""
    ours = net(at=5, what="stop", once=str(tmp_path / "once"))
    stopped(lambda: ours.fit(X, Y), tmp_path / "once")
    weights = [each.detach().clone() for each in ours.module_.parameters()]
    ours.set_params(max_epochs=5, lr=0.0)
    ours.module_.at = -7
    ours.resume()
    assert len(ours.history) == 5
    assert ours.report_.parameters["max_epochs"] == 5
    assert [group["lr"] for group in ours.optimizer_.param_groups] == [0.0]
    assert (ours.module_.steps, ours.module_.at) == (5 * 7, -7)
    assert all(torch.equal(*pair) for pair in zip(weights, ours.module_.parameters(), strict=True))


def test_fewer_epochs_before_resume_end_the_fit(running: xpulab.XPUCluster, tmp_path: Path) -> None:
    ours = net(at=9, what="stop", once=str(tmp_path / "once"))
    stopped(lambda: ours.fit(X, Y), tmp_path / "once")
    steps = ours.set_params(max_epochs=1).resume().module_.steps
    assert steps == 9
    with pytest.raises(NotFittedError):
        ours.resume()


@pytest.mark.parametrize("at", [1, 9])
def test_a_killed_engine_costs_a_restart_from_the_last_state(
    running: xpulab.XPUCluster,
    undisturbed: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: int,
) -> None:
    monkeypatch.setattr(_net, "_EVERY", 0.0)
    ours = net(at=at, what="die", once=str(tmp_path / "once")).fit(X, Y)
    assert (tmp_path / "once").exists()
    assert numbers(ours) == undisturbed
    assert any("the cluster started new engines" in note for note in ours.report_.notes)
    seen = [iteration.number for iteration in ours.report_.iterations]  # an epoch just before the loss may be missing
    assert seen in ([1, 2, 3], [2, 3])


def test_a_stop_after_a_loss_can_go_on(
    running: xpulab.XPUCluster, undisturbed: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines are lost, and none are started: the net has the weights of the last state, and resume goes on."""
    monkeypatch.setattr(_net, "_EVERY", 0.0)
    ours = net(at=9, what="die", once=str(tmp_path / "once"))
    running.recover = False
    try:
        with pytest.raises(EngineLostError):
            ours.fit(X, Y)
    finally:
        running.recover = True
    running.restart()
    ours.resume()
    assert numbers(ours) == undisturbed
