"""The magic in a real IPython shell: words, help, completion, defaults, and what unloading takes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import xpulab
from xpulab import progress
from xpulab.deploy import cluster as registry
from xpulab.deploy.plan import Plan
from xpulab.deploy.probe import Probe
from xpulab.exceptions import ClusterError, DeviceNotFoundError, NoClusterError, UsageError

SUBCOMMANDS = ["start", "plan", "stop", "restart", "status", "devices", "logs", "last", "doctor"]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A shell with the extension, as if no cluster of another test were running."""
    monkeypatch.setattr(registry, "_clusters", [])
    config = Config()
    config.HistoryManager.enabled = False
    shell: Any = InteractiveShell(config=config)
    shell.extension_manager.load_extension("xpulab")
    yield shell
    shell.extension_manager.unload_extension("xpulab")


def magic(shell: Any, line: str) -> Any:
    return shell.run_line_magic("xpu_cluster", line)


def test_plan_starts_nothing_and_shows_where_each_engine_goes(shell: Any) -> None:
    plan = magic(shell, "plan -n 2")
    assert isinstance(plan, Plan)
    assert len(plan.ranks) == 2
    assert "2 engines" in str(plan)
    assert not registry._clusters


def test_devices_and_doctor_return_what_they_found(shell: Any) -> None:
    assert isinstance(magic(shell, "devices"), Probe)
    report = magic(shell, "doctor")
    assert report.ready
    assert str(report).splitlines()[-1].startswith("ready")


@pytest.mark.parametrize("line", ["-h", *(f"{name} -h" for name in SUBCOMMANDS)])
def test_every_subcommand_has_help(shell: Any, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert magic(shell, line) is None
    said = capsys.readouterr().out
    assert said.startswith("usage: %xpu_cluster")
    assert all(name in said for name in (SUBCOMMANDS if line == "-h" else [line.split()[0]]))


def test_a_question_mark_is_help(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("%xpu_cluster start?").raise_error()
    assert "usage: %xpu_cluster start" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "error", "words"),
    [
        ("", UsageError, "required"),
        ("strat", UsageError, "did you mean start"),
        ("nonsense", UsageError, "none of start, plan, stop"),
        ("start --devcies gpu", UsageError, "did you mean --devices"),
        ("start -n 0", UsageError, "received '0', expected a whole number"),
        ("start -n -1", UsageError, "received '-1', expected a whole number"),
        ("start -n two", UsageError, "received 'two', expected a whole number"),
        ("start --devices warp", DeviceNotFoundError, "opencl"),
        ("stop", NoClusterError, "%xpu_cluster start"),
        ("restart", NoClusterError, "%xpu_cluster start"),
        ("logs", NoClusterError, "%xpu_cluster start"),
        ("last", NoClusterError, "%xpu_cluster start"),
    ],
)
def test_wrong_words_are_answered_with_right_ones(shell: Any, line: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        magic(shell, line)
    assert not registry._clusters


def test_an_error_is_its_message_and_no_traceback(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("%xpu_cluster strat")
    said = capsys.readouterr().out
    assert "UsageError: " in said
    assert "did you mean start" in said
    assert "Traceback" not in said


def test_status_without_a_cluster_says_so(shell: Any) -> None:
    assert magic(shell, "status").state == "stopped"


def completions(shell: Any, line: str) -> set[str]:
    with provisionalcompleter():
        return {found.text for found in shell.Completer.completions(line, len(line))}


def test_words_are_completed(shell: Any) -> None:
    assert set(SUBCOMMANDS) <= completions(shell, "%xpu_cluster ")
    assert completions(shell, "%xpu_cluster st") == {"start", "status", "stop"}
    assert {"-n", "--devices", "--strict"} <= completions(shell, "%xpu_cluster start ")
    assert "--devices" in completions(shell, "%xpu_cluster start --d")
    assert "--lines" in completions(shell, "%xpu_cluster logs --l")


def test_defaults_are_configurable(shell: Any) -> None:
    shell.run_cell("%config XPUMagics.n = 3").raise_error()
    assert len(magic(shell, "plan").ranks) == 3
    assert len(magic(shell, "plan -n 1").ranks) == 1


@pytest.mark.cluster
def test_the_story_of_a_cluster(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("c = %xpu_cluster start -n 2").raise_error()
    cluster = shell.user_ns["c"]
    assert cluster is xpulab.current_cluster()
    assert magic(shell, "status").n == 2
    assert magic(shell, "start") is cluster
    assert magic(shell, "start -n 2") is cluster
    assert "running already" in capsys.readouterr().out
    with pytest.raises(ClusterError, match=r"2 engines is running, and 3 were.*stop.*start -n 3"):
        magic(shell, "start -n 3")
    assert magic(shell, "last") is None
    shell.run_cell(
        "import numpy as np; from xpulab.cluster import KMeans\n"
        "km = KMeans(3, random_state=0).fit(np.random.RandomState(0).normal(size=(99, 2)))"
    ).raise_error()
    assert magic(shell, "last") is shell.user_ns["km"].report_
    magic(shell, "logs --lines 3")
    assert "ipengine" in capsys.readouterr().out
    first = cluster.facts[0]["pid"]
    assert magic(shell, "restart") is cluster
    assert cluster.facts[0]["pid"] != first
    assert magic(shell, "stop").state == "stopped"
    assert not registry._clusters


@pytest.mark.cluster
def test_unloading_leaves_nothing_behind(shell: Any) -> None:
    def state() -> tuple[Any, ...]:
        return (
            "xpu_cluster" in shell.magics_manager.magics["line"],
            len(shell.input_transformers_cleanup),
            len(progress._factories),
            sum("xpu" in pattern.pattern for pattern in shell.strdispatchers["complete_command"].regexs),
            sum(type(item).__name__ == "XPUMagics" for item in shell.configurables),
            sorted(t.name for t in threading.enumerate() if t.name.startswith("xpulab")),
        )

    shell.extension_manager.unload_extension("xpulab")
    clean = state()
    shell.extension_manager.load_extension("xpulab")
    assert state()[:5] != clean[:5]
    cluster = magic(shell, "start -n 1")
    shell.extension_manager.unload_extension("xpulab")
    for thread in threading.enumerate():
        if thread.name.startswith("xpulab"):
            thread.join(5)
    assert state() == clean
    assert not cluster.running
    shell.extension_manager.load_extension("xpulab")
