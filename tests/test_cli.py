"""The command line: what it prints, and its exit statuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from xpulab import cli, demo


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "xpulab", *words], capture_output=True, text=True, cwd=folder)


@pytest.mark.cluster
def test_the_demo_agrees_with_scikit_learn_and_writes_its_report(tmp_path: Path) -> None:
    done = run("demo", "-n", "2", "--clusters", "8", "--rows", "20000", "--out", "found.html", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("Plan: 2 engines", "running, 2 engines", "20,000 × 3 float64 on 2 engines", "scikit-learn", "agree"):
        assert words in done.stdout
    assert "start 2 engines" in done.stderr  # progress
    page = (tmp_path / "found.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "the same in 8 colours" in page


def test_the_demo_says_so_when_the_results_disagree() -> None:
    from xpulab.report import FitReport

    image = np.zeros((2, 2, 3))
    report = FitReport("KMeans", "fit", {}, 4, 3, "float64")
    found = demo.Demo(report, image, image, 2, (1.0, 1.0 + 1e-4), (1.0, 1.0), (3, 3), 1.0)
    assert not found.agrees
    assert "DISAGREE" in str(found)


def test_disagreement_is_the_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        def __enter__(self) -> Nothing:
            return self

        def __exit__(self, *_: object) -> None: ...

        plan = status = str

    class Found:
        agrees = False

        def write(self, path: Path) -> None:
            path.write_text("")

    monkeypatch.setattr("xpulab.XPUCluster", lambda *_, **__: Nothing(), raising=False)
    monkeypatch.setattr(demo, "quantise", lambda *_: Found())
    monkeypatch.setattr("xpulab.widgets.install", lambda: None)
    assert cli.main(["demo", "--out", str(tmp_path / "x.html")]) == 1
    Found.agrees = True
    assert cli.main(["demo", "--out", str(tmp_path / "x.html")]) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "required"),
        (("dmeo",), "did you mean demo"),
        (("demo", "--clusters", "0"), "received '0', expected a whole number"),
        (("demo", "--rows", "-5"), "received '-5', expected a whole number"),
        (("demo", "-n", "two"), "received 'two', expected a whole number"),
        (("demo", "--out", "no/such/folder/x.html"), "expected a file in a folder that exists"),
        (("plan", "--devices", "warp"), "DeviceNotFoundError"),
    ],
)
def test_wrong_words_end_with_2_before_anything_starts(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = run(*words, folder=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_help_and_version_end_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--help"]) == 0
    assert "--clusters" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0


def test_plan_devices_and_doctor(tmp_path: Path) -> None:
    for words, says in ((("plan", "-n", "2"), "Plan: 2 engines"), (("devices",), "opencl"), (("doctor",), "ready: ")):
        done = run(*words, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert says in done.stdout


def test_a_machine_that_is_not_ready_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from xpulab.doctor import Check, DoctorReport

    report = DoctorReport((Check("mpi", "fail", "no mpiexec", "install impi-rt"),))
    monkeypatch.setattr("xpulab.doctor.doctor", lambda: report)
    assert cli.main(["doctor"]) == 1
    assert "not ready: " in capsys.readouterr().out
