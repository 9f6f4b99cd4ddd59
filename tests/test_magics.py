"""The magic in a real IPython shell: its words, help, completion and defaults, and the end of the extension."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections import Counter
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter

import xpulab
from xpulab import magics
from xpulab.deploy import cluster as registry
from xpulab.deploy.devices import Devices
from xpulab.deploy.plan.plan import Plan
from xpulab.exceptions import ClusterError, DeviceNotFoundError, NoClusterError, UsageError
from xpulab.report import progress

SUBCOMMANDS = [
    "start", "plan", "attach", "detach", "stop", "restart", "status", "devices", "logs", "resume", "last", "display",
    "doctor", "hosts", "accel", "names", "board",
]  # fmt: skip


def magic(shell: Any, line: str) -> Any:
    return shell.run_line_magic("xpu_cluster", line)


def test_plan_starts_nothing_and_shows_the_place_of_each_engine(shell: Any) -> None:
    plan = magic(shell, "plan -n 2")
    assert isinstance(plan, Plan)
    assert len(plan.ranks) == 2
    assert "2 engines" in str(plan)
    assert not registry.clusters.running


@pytest.mark.slow
def test_devices_and_doctor_return_what_they_found(shell: Any) -> None:
    assert isinstance(magic(shell, "devices"), Devices)
    report = magic(shell, "doctor")
    assert report.ready
    assert str(report).splitlines()[-1].startswith("ready")


@pytest.mark.parametrize("line", ["-h", *(f"{name} -h" for name in SUBCOMMANDS)])
def test_every_subcommand_has_help(shell: Any, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert magic(shell, line) is None
    said = capsys.readouterr().out
    assert said.startswith("usage: %xpu_cluster")
    assert all(name in said for name in (SUBCOMMANDS if line == "-h" else [line.split()[0]]))


@pytest.mark.parametrize(
    ("line", "usage"),
    [
        ("%xpu_cluster start?", "usage: %xpu_cluster start [-h] [-n N]"),
        ("%xpu_cluster start -n 2 ?", "usage: %xpu_cluster start [-h] [-n N]"),
        ("xpu_cluster plan?", "usage: %xpu_cluster plan"),
        ("%xpu_cluster?", "usage: %xpu_cluster [-h] SUBCOMMAND"),
        ("1\n%xpu_cluster ??", "usage: %xpu_cluster [-h] SUBCOMMAND"),
    ],
)
def test_a_question_mark_is_help(shell: Any, capsys: pytest.CaptureFixture[str], line: str, usage: str) -> None:
    shell.run_cell(line).raise_error()
    assert usage in capsys.readouterr().out


def test_comments_and_variables_in_a_line(shell: Any) -> None:
    shell.run_cell("two = 2\nplan = %xpu_cluster plan -n $two    # not -n 3").raise_error()
    assert len(shell.user_ns["plan"].ranks) == 2
    assert len(magic(shell, "plan -n 1    # isn't it?").ranks) == 1


@pytest.mark.parametrize(
    ("line", "error", "words"),
    [
        ("", UsageError, "required"),
        ("plan 'two", UsageError, "No closing quotation in: plan 'two"),
        ("logs --lines 0", UsageError, "received '0', expected an integer of at least 1"),
        ("strat", UsageError, "did you mean start"),
        ("nonsense", UsageError, "'nonsense' is not one of start, plan, hosts, attach, detach, stop"),
        ("start --devcies gpu", UsageError, "did you mean --devices"),
        ("start --enginse 4", UsageError, r"unknown argument: --enginse 4; did you mean -n\?"),
        ("start --gpus=1", UsageError, r"did you mean --devices\?"),
        ("start --queue long", UsageError, r"did you mean --partition\?"),
        ("start --backgroud", UsageError, r"did you mean --detach\?"),
        ("kill", UsageError, r"did you mean stop\?"),
        ("list", UsageError, r"did you mean status\?"),
        ("reprot", UsageError, r"did you mean last\?"),
        ("start -n 0", UsageError, "received '0', expected an integer of at least 1"),
        ("start -n -1", UsageError, "received '-1', expected an integer of at least 1"),
        ("start -n two", UsageError, "received 'two', expected an integer of at least 1"),
        ("start --devices warp", DeviceNotFoundError, "opencl"),
        ("stop", NoClusterError, "%xpu_cluster start"),
        ("detach", NoClusterError, "%xpu_cluster start"),
        ("attach nowhere", NoClusterError, "%xpu_cluster (start|attach)"),
        ("restart", NoClusterError, "%xpu_cluster start"),
        ("logs", NoClusterError, "%xpu_cluster start"),
        ("last", NoClusterError, "%xpu_cluster start"),
        ("accel on", NoClusterError, "%xpu_cluster start"),
        ("accel of", UsageError, "did you mean off"),
        ("accel on --least -1", UsageError, "expected one argument|an integer of at least 0"),
        ("accel off --strict", UsageError, "--strict and --least go with on"),
    ],
)
def test_wrong_words_are_answered_with_right_ones(shell: Any, line: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        magic(shell, line)
    assert not registry.clusters.running


def test_an_error_is_its_message_and_no_traceback(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("%xpu_cluster strat")
    said = capsys.readouterr().out
    assert "UsageError: " in said
    assert "did you mean start" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("cell", ["%xpu_cluster status", "%autoxpu on", "%%xpu --ranks 0\n1", "%%xpu_profile\n1"])
def test_ctrl_c_while_a_line_is_parsed_ends_in_one_sentence(
    shell: Any, capsys: pytest.CaptureFixture[str], cell: str
) -> None:
    def press(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == "parse_known_args":
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(press)
    try:
        shell.run_cell(cell)
    finally:
        sys.setprofile(None)
    line, shown = cell.partition("\n")[0], capsys.readouterr().out.strip().splitlines()
    assert shown[-1] == f"KeyboardInterrupt: {line} was interrupted: run the cell again"
    assert len(shown) <= 2  # before it is the place in the cell


def test_a_detached_cluster_has_a_name(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xpulab.XPUCluster, "start", lambda cluster: cluster)
    lab = magic(shell, "start -n 2 --detach --name lab")
    assert (lab.options.n, lab.options.detach, lab.options.name) == (2, True, "lab")
    alone = magic(shell, "start")
    assert (alone.options.detach, alone.options.name) == (False, None)
    monkeypatch.setattr(xpulab.XPUCluster, "attach", lambda name: SimpleNamespace(name=name))
    assert magic(shell, "attach lab").name == "lab"
    assert magic(shell, "attach").name is None


def test_the_display_of_calls_is_a_setting_of_all_clusters(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xpulab.XPUCluster, "start", lambda cluster: cluster)
    assert (magic(shell, "display"), magic(shell, "start").display) == ("full", "full")
    assert magic(shell, "display none") is None
    assert (magic(shell, "display"), magic(shell, "start").display) == ("none", "none")
    assert magic(shell, "start --display compact").display == "compact"
    running = xpulab.XPUCluster()
    registry.clusters.running.append(running)
    assert magic(shell, "display") == "full"
    magic(shell, "display compact")
    assert (running.display, magic(shell, "display")) == ("compact", "compact")
    with pytest.raises(UsageError, match="'tall' is not one of full, compact, none"):
        magic(shell, "display tall")
    with pytest.raises(UsageError, match="display='tall' was given; expected one of full, compact, none"):
        running.display = "tall"  # type: ignore[assignment]


def test_every_option_of_a_start_is_compared_with_a_running_cluster(shell: Any) -> None:
    parser = magics.XPUMagics(shell).parser()
    running = xpulab.XPUCluster(2)
    start = parser.parse_args(["start"])
    assert magics._changes(start, running) == ""
    for action in start.parser._actions:
        values = {"--strict": True, "--detach": True, "--recover": False, "--env": [("A", "b")], "--silence": 7.5}
        if (option := action.option_strings[-1]) not in ("--help", "--timeout", "--display"):
            changed = argparse.Namespace(**{**vars(start), action.dest: values.get(action.option_strings[0], "7")})
            assert magics._changes(changed, running), option


def test_status_without_a_cluster_says_so(shell: Any) -> None:
    assert magic(shell, "status").state == "stopped"


def completions(shell: Any, line: str) -> set[str]:
    with provisionalcompleter():
        return {found.text for found in shell.Completer.completions(line, len(line))}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%xpu_cluster ", {*SUBCOMMANDS, "-h", "--help"}),
        ("%xpu_cluster st", {"start", "status", "stop"}),
        ("xpu_cluster st", {"start", "status", "stop"}),
        ("c = %xpu_cluster st", {"start", "status", "stop"}),
        ("x = 1\nc = %xpu_cluster start --d", {"--devices", "--detach", "--display"}),
        (
            "%xpu_cluster start ",
            {"-h", "--help", "-n", "--devices", "--strict", "--timeout", "--recover", "--no-recover", "--silence"}
            | {"--no-strict", "--env", "--detach", "--name", "--display", "--mpi", "--mpi-args", "--ports"}
            | {"--nodes", "--time", "--partition", "--job-args"}
            | {"--hosts", "--hostfile", "--ssh-config", "--launcher", "--memory"},
        ),
        ("%xpu_cluster start -n 2 --st", {"--strict"}),
        ("%xpu_cluster start --devices ", {"gpu", "cpu"}),
        ("%xpu_cluster logs --l", {"--lines"}),
        ("%xpu_cluster accel o", {"on", "off"}),
        ("%xpu_cluster accel on --s", {"--strict"}),
    ],
)
def test_words_are_completed_and_nothing_else_is_offered(shell: Any, line: str, words: set[str]) -> None:
    assert completions(shell, line) == words


@pytest.mark.slow
def test_names_of_python_are_still_completed(shell: Any) -> None:
    shell.user_ns["xpu_cluster_of_mine"] = 1
    assert "xpu_cluster_of_mine" in completions(shell, "print(xpu_cluster_o")
    assert "%xpu_cluster" in completions(shell, "%xpu_c")


@pytest.mark.slow
def test_defaults_are_configurable(shell: Any) -> None:
    shell.run_cell("%config XPUMagics.n = 3").raise_error()
    assert len(magic(shell, "plan").ranks) == 3
    assert len(magic(shell, "plan -n 1").ranks) == 1


def test_stop_names_the_stopped_and_the_active_cluster(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = xpulab.XPUCluster(name="lab"), xpulab.XPUCluster(name="other")
    registry.clusters.running += [first, second]
    assert magic(shell, "stop").state == "stopped"
    assert capsys.readouterr().out == (
        "the cluster other (0 engines) was stopped; the active cluster is now lab (0 engines)\n"
    )
    magic(shell, "stop")
    assert capsys.readouterr().out == ""


@pytest.mark.cluster
def test_a_cluster_from_start_to_stop(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("c = %xpu_cluster start -n 2").raise_error()
    cluster = shell.user_ns["c"]
    assert cluster is xpulab.current_cluster()
    assert magic(shell, "status").n == 2
    used = magic(shell, "devices")
    assert used.running
    assert "rank 0-1" in str(used)
    assert magic(shell, "start") is cluster
    assert magic(shell, "start -n 2") is cluster
    assert "a cluster of 2 engines is already running; it was returned" in capsys.readouterr().out
    with pytest.raises(ClusterError, match=r"with --silence 9\.0 --detach, type: .* start --silence 9\.0 --detach"):
        shell.run_line_magic("xpu_cluster", "start --silence 9 --detach")
    with pytest.raises(ClusterError, match=r"type: .* stop, .* start --env '1:A=1 2'"):
        magic(shell, 'start --env "1:A=1 2"')
    with pytest.raises(ClusterError, match=r"2 engines is already running .* with -n 3, type: .* stop, .* start -n 3"):
        magic(shell, "start -n 3")
    assert magic(shell, "last") is None
    shell.run_cell(
        "import numpy as np; from xpulab.cluster import KMeans\n"
        "km = KMeans(3, random_state=0).fit(np.random.RandomState(0).normal(size=(99, 2)))"
    ).raise_error()
    assert magic(shell, "last") is shell.user_ns["km"].report_
    logs = magic(shell, "logs --lines 3")
    assert "ipengine" in logs
    assert shell.display_formatter.format(logs)[0]["text/plain"] == logs
    first = cluster.facts[0].pid
    assert magic(shell, "restart") is cluster
    assert cluster.facts[0].pid != first
    assert magic(shell, "stop").state == "stopped"
    assert not registry.clusters.running
    assert magic(shell, "last") is shell.user_ns["km"].report_


@pytest.mark.cluster
def test_a_lost_cluster_is_reported_and_started_again(shell: Any) -> None:
    lost = magic(shell, "start -n 1")
    os.kill(lost.facts[0].pid, signal.SIGKILL)
    deadline = time.monotonic() + 120
    while magic(shell, "status").state == "running" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "lost, 1 engine" in str(magic(shell, "status"))
    cluster = magic(shell, "start -n 1")
    assert cluster.status().state == "running"
    assert (lost.running, registry.clusters.running) == (False, [cluster])
    with pytest.raises(
        ClusterError, match="1 engine is already running on all devices; to start one with --devices cpu"
    ):
        magic(shell, "start --devices cpu")


@pytest.mark.cluster
def test_accel_computes_and_leaves_a_line_in_the_log_of_its_cell(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    import sklearn.cluster

    theirs = sklearn.cluster.KMeans.fit
    assert not magic(shell, "accel").on
    shell.run_cell("%xpu_cluster start -n 1").raise_error()
    shell.run_cell("a = %xpu_cluster accel on --least 2000").raise_error()
    assert "accel is on" in str(shell.user_ns["a"])
    capsys.readouterr()
    shell.run_cell(
        "import numpy as np; from sklearn.cluster import KMeans; X = np.random.RandomState(0).normal(size=(1000, 2))\n"
        "km = KMeans(3, random_state=0).fit(X); few = km.predict(X[:3])"
    ).raise_error()
    said = capsys.readouterr().err
    assert "accel: 2 calls of scikit-learn's names, 1 on the engines and 1 in scikit-learn" in said
    assert "KMeans.fit, 1,000 × 2: on 1 engine, because 2,000 values are at least 2,000" in said
    assert "KMeans.predict, 3 × 2: in scikit-learn, because 6 values are fewer than 2,000" in said
    shell.run_cell("2 + 2").raise_error()
    assert "accel" not in capsys.readouterr().err
    assert magic(shell, "accel status").to_dict()["estimators"]["cluster.KMeans"]["engines"] == 1
    magic(shell, "accel on --strict")
    with pytest.raises(UsageError, match=r"KMeans.fit would be computed by scikit-learn, because 6 values"):
        shell.user_ns["km"].fit(shell.user_ns["X"][:3])
    assert not magic(shell, "accel off").on
    assert sklearn.cluster.KMeans.fit is theirs
    magic(shell, "accel on")
    shell.extension_manager.unload_extension("xpulab")
    assert sklearn.cluster.KMeans.fit is theirs
    shell.extension_manager.load_extension("xpulab")


@pytest.mark.cluster
def test_unloading_leaves_nothing_behind(shell: Any) -> None:
    def reports_are_shown() -> bool:
        with progress.open(progress.TaskReport("quick")) as handle:
            return handle.told

    def state() -> tuple[Any, ...]:
        return (
            "xpu_cluster" in shell.magics_manager.magics["line"],
            len(shell.input_transformers_cleanup),
            reports_are_shown(),
            len(shell.Completer.custom_matchers),
            sum(type(item).__name__ == "XPUMagics" for item in shell.configurables),
            sorted(t.name for t in threading.enumerate() if t.name.startswith("xpulab")),
        )

    shell.extension_manager.unload_extension("xpulab")
    clean, others = state(), threading.enumerate()
    shell.extension_manager.load_extension("xpulab")
    assert state()[:5] != clean[:5]
    cluster = magic(shell, "start -n 1")
    shell.extension_manager.unload_extension("xpulab")
    for thread in set(threading.enumerate()) - set(others):
        if thread.name.startswith("xpulab"):
            thread.join(120)
    left = state()
    assert left[:5] == clean[:5]
    assert not Counter(left[5]) - Counter(clean[5])  # a thread of another test's cluster may have ended meanwhile
    assert not cluster.running
    shell.extension_manager.load_extension("xpulab")


def test_stop_with_call_ends_the_call_and_keeps_the_cluster(
    shell: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = ["KMeans.fit", ""]
    cluster = SimpleNamespace(stop_call=lambda: calls.pop(0), status=lambda: "running")
    monkeypatch.setattr("xpulab.magics.current_cluster", lambda: cluster)
    assert shell.run_line_magic("xpu_cluster", "stop --call") == "running"
    assert shell.run_line_magic("xpu_cluster", "stop --call") == "running"
    assert capsys.readouterr().out == "ended: KMeans.fit\nno call runs on the engines\n"
