"""The command line: its output and its exit statuses."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import xpulab
from xpulab import cli


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "xpulab", *words], capture_output=True, text=True, cwd=folder)


@pytest.mark.cluster
def test_results_that_disagree_end_with_1(
    pair: xpulab.XPUCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair.activate()
    monkeypatch.setattr("xpulab.XPUCluster", lambda *_, **__: contextlib.nullcontext(pair), raising=False)
    monkeypatch.setattr("xpulab.demo.TOLERANCES", {"float64": -1.0})
    page = tmp_path / "page.html"
    assert cli.main(["demo", "-n", "2", "--clusters", "4", "--rows", "999", "--out", str(page)]) == 1
    assert "The results DISAGREE" in capsys.readouterr().out
    assert "DISAGREE" in page.read_text()


def test_status_where_no_cluster_runs_says_what_to_type(
    tmp_path: Path, environment: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    environment(XPULAB_RUNTIME_DIR=str(tmp_path))
    assert cli.main(["status"]) == 0
    assert "%xpu_cluster start" in capsys.readouterr().out


@pytest.mark.cluster
def test_ctrl_c_ends_with_130_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "xpulab", "demo", "-n", "1", "--rows", "1000000"]
    demo = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True
    )
    assert demo.stdout is not None
    while "1 engine on " not in demo.stdout.readline():
        assert demo.poll() is None
    processes = psutil.Process(demo.pid).children(recursive=True)
    assert len(processes) >= 3
    os.killpg(demo.pid, signal.SIGINT)  # as a terminal does: to all processes of its foreground group
    _, said = demo.communicate(timeout=120)
    assert demo.returncode == 130, said
    assert said.endswith("interrupted\n")
    assert "Traceback" not in said
    assert not psutil.wait_procs(processes, timeout=120)[1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "required"),
        (("dmeo",), "did you mean demo"),
        (("demo", "--clusters", "0"), "received '0', expected an integer of at least 1"),
        (("demo", "--rows", "-5"), "received '-5', expected an integer of at least 1"),
        (("demo", "-n", "two"), "received 'two', expected an integer of at least 1"),
        (("demo", "--out", "no/such/folder/x.html"), "expected a file in a folder that exists"),
        (("demo", "--out", "."), "expected a file in a folder that exists"),
        (("demo", "--rows", "10", "--clusters", "11"), "received 11, expected at most 10"),
        (("plan", "--devices", "warp"), "DeviceNotFoundError"),
        (("plan", "-n", "99", "--strict"), "PlanError"),
    ],
)
def test_wrong_words_end_with_2_before_anything_starts(
    words: tuple[str, ...],
    says: str,
    empty_folder: Path,
    environment: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    environment(XPULAB_RUNTIME_DIR="/proc")  # where no cluster can start
    assert cli.main(words) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert not said.out
    assert not list(empty_folder.iterdir())


def test_without_pillow_the_demo_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch, environment: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    environment(XPULAB_RUNTIME_DIR="/proc")  # where no cluster can start
    assert cli.main(["demo"]) == 2
    assert "pip install pillow" in capsys.readouterr().err


def test_help_and_version_end_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--help"]) == 0
    assert "--clusters" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("--help",), ("--version",), ("status",), ("plan", "-n", "1"), ("run", "--show", "-n", "1", "-c", "0")]
)
def test_without_a_reader_a_command_ends_in_silence(words: tuple[str, ...], tmp_path: Path) -> None:
    """As any tool of Unix does in a pipe to ``head``, of whose lines Python may write each or all at the end."""
    assert _without_reader(*words, folder=tmp_path, PYTHONUNBUFFERED="") == (128 + signal.SIGPIPE, "")
    status, said = _without_reader(*words, folder=tmp_path, PYTHONUNBUFFERED="1")
    assert status in (0, 128 + signal.SIGPIPE)  # argparse itself swallows the error of --version
    assert not said


@pytest.mark.cluster
def test_without_a_reader_a_script_on_ranks_ends_in_silence(tmp_path: Path) -> None:
    words = ("run", "-n", "1", "-c", "while True: print('a line')")
    assert _without_reader(*words, folder=tmp_path) == (128 + signal.SIGPIPE, "")


def test_a_broken_pipe_that_is_none_of_the_standard_streams_is_an_error() -> None:
    class Broken(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError("another pipe")

    with contextlib.redirect_stdout(Broken()), pytest.raises(BrokenPipeError, match="another pipe"):
        cli.main(["--help"])


def _without_reader(*words: str, folder: Path, **variables: str) -> tuple[int, str]:
    """Return the exit status of a command whose standard output nobody reads, and what it says as errors."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "xpulab", *words],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, **variables},
        )
    finally:
        os.close(write)
    return done.returncode, done.stderr


@pytest.mark.slow
def test_plan_devices_and_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run("plan", "-n", "2", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Plan: 2 engines" in done.stdout
    for word, says in (("devices", "opencl"), ("doctor", "ready: ")):
        assert cli.main([word]) == 0
        assert says in capsys.readouterr().out


def test_a_machine_that_is_not_ready_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from xpulab.doctor import Check, DoctorReport

    report = DoctorReport((Check("mpi", "fail", "no mpiexec", "install impi-rt"),))
    monkeypatch.setattr("xpulab.doctor.doctor", lambda: report)
    assert cli.main(["doctor"]) == 1
    assert "not ready: " in capsys.readouterr().out
