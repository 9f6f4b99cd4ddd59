"""The last reports of a folder, which another process shows."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from reports import report

from xpulab.report import kept


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: Callable[..., None]) -> Path:
    environment(XPULAB_CACHE=str(tmp_path / "cache"), JPY_SESSION_NAME=None)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "cache" / "reports"


def test_another_process_shows_the_report_of_an_ended_call(folder: Path) -> None:
    assert kept.latest() is None
    kept.keep(report())
    show = "from xpulab.report import kept; print(kept.latest())"
    shown = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True).stdout
    assert shown.startswith("KMeans.fit: finished in 4 s")
    assert f"note: kept by process {os.getpid()} at " in shown
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o077 == 0


def test_a_call_that_its_process_did_not_end_is_interrupted() -> None:
    keep = "from reports import report; from xpulab.report import kept; kept.keep(report(status='running'))"
    path = os.pathsep.join(map(str, sys.path))
    subprocess.run([sys.executable, "-c", keep], env={**os.environ, "PYTHONPATH": path}, check=True)
    found = kept.latest()
    assert found is not None
    assert found.status == "interrupted"
    assert "its process has ended; this is the report of " in str(found)


def test_a_call_of_a_process_that_lives_still_runs() -> None:
    kept.keep(report(status="running"))
    found = kept.latest()
    assert found is not None
    assert found.status == "running"
    assert f"it runs in process {os.getpid()}; this is the report of " in str(found)


def test_a_long_copy_of_a_running_call_does_not_replace_that_of_its_end() -> None:
    slow = threading.Thread(target=kept.keep, args=(report(status="running", iterations=30_000),))
    slow.start()
    time.sleep(0.05)  # the copy of the iterations takes longer
    kept.keep(report())
    slow.join()
    found = kept.latest()
    assert found is not None
    assert found.status == "finished"


def test_each_notebook_has_its_own_and_others_that_of_their_folder(
    environment: Callable[..., None], tmp_path: Path
) -> None:
    environment(JPY_SESSION_NAME="one.ipynb")
    kept.keep(report(estimator="PCA"))
    environment(JPY_SESSION_NAME="two.ipynb")
    kept.keep(report(estimator="DBSCAN"))
    found = []
    for name in ("one.ipynb", "two.ipynb", "three.ipynb"):
        environment(JPY_SESSION_NAME=name)
        found.append(kept.latest())
    assert [each and each.estimator for each in found] == ["PCA", "DBSCAN", "DBSCAN"]
    os.chdir(tmp_path)  # at the end of the test the fixture returns
    assert kept.latest() is None


def test_reports_are_kept_a_day(folder: Path) -> None:
    kept.keep(report())
    (file,) = folder.iterdir()
    old = time.time() - 25 * 3600
    os.utime(file, (old, old))
    assert kept.latest() is None
    kept.keep(report(estimator="PCA"))
    assert len(list(folder.iterdir())) == 1


def test_a_disk_that_is_full_or_a_file_that_is_broken_is_no_error(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("a file where the folder should be")
    kept.keep(report())
    folder.unlink()
    kept.keep(report())
    (file,) = folder.iterdir()
    file.write_text("{")
    assert kept.latest() is None
