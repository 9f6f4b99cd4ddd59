"""What a class sees of each other's clusters: names of notebooks, one line, and the teacher's list."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from descriptions import described

import xpulab
from xpulab.deploy.all_clusters import all_clusters
from xpulab.deploy.processes.record import Record, find, identity
from xpulab.sharing.board import Board
from xpulab.sharing.memory import SharedBlock

#: A kernel of a notebook: it starts a cluster of one engine, and stops it when it is told to end.
_KERNEL = """
import sys, warnings
import xpulab
warnings.simplefilter("ignore")
with xpulab.XPUCluster(1) as cluster:
    print(cluster.known_as, flush=True)
    sys.stdin.readline()
"""


def kernel(notebook: str, folder: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "JPY_SESSION_NAME": f"/home/someone/course/{notebook}", "XPULAB_RUNTIME_DIR": folder}
    return subprocess.Popen(
        [sys.executable, "-c", _KERNEL], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.cluster
def test_a_class_sees_names_of_notebooks_and_no_word_about_ending_them(
    shell: Any, environment: Callable[..., None]
) -> None:
    with tempfile.TemporaryDirectory(prefix="class-", dir="/tmp") as folder:
        environment(XPULAB_RUNTIME_DIR=folder)
        kernels = []
        try:
            for notebook, name in (("03 my timings.ipynb", "03-my-timings"), ("02_islands.ipynb", "02_islands")):
                kernels.append(kernel(notebook, folder))
                assert kernels[-1].stdout is not None
                assert kernels[-1].stdout.readline().strip() == name
            environment(JPY_SESSION_NAME="/home/someone/course/03 my timings.ipynb")
            another = Record.create(None, os.getpid(), xpulab.__version__)  # which starts no engines
            assert another.name == "03-my-timings-2"
            shutil.rmtree(another.folder)
            plan = shell.run_line_magic("xpu_cluster", "plan -n 1")
            (said,) = plan.others
            assert "\n" not in said
            assert re.match(r"2 other clusters use the cores? [\d, -]+, idle: the notebook ", said)
            for notebook in ("02_islands", "03 my timings"):
                assert re.search(rf"the notebook {notebook}\.ipynb \(1 engine, since \d\d:\d\d\)", said)
            assert "stop" not in str(plan) + plan._repr_html_()
            listed = shell.run_line_magic("xpu_cluster", "status --all")
            text = str(listed)
            assert text.startswith("2 clusters on this host, with 2 engines, of 1 user")
            assert [each.name for each in listed.clusters] == ["02_islands", "03-my-timings"]
            for each in listed.clusters:
                assert each.runs == "idle"
                assert each.memory > 2**20
                assert each.devices
                assert 0 < each.seconds < 120
                assert each.notebook in text
                assert each.notebook in listed._repr_html_()
            attached = shell.run_line_magic("xpu_cluster", "attach 02_islands")
            try:
                assert attached.known_as == "02_islands"
                attached.run(_wait_until_listed)
            finally:
                attached.detach()
        finally:
            for each in kernels:
                each.communicate("\n", timeout=120)


def _wait_until_listed(task: Any) -> None:
    """On the engine: what runs is in the list."""
    from xpulab.deploy.all_clusters import all_clusters

    (mine,) = [each.runs for each in all_clusters().clusters if each.name == "02_islands"]
    assert mine.startswith("run for "), mine


def test_a_board_is_read_only_if_its_fields_are_known(environment: Callable[..., None], tmp_path: Path) -> None:
    environment(XPULAB_RUNTIME_DIR=str(tmp_path))
    board, other, changed = Board.create(1), SharedBlock.create(1), Board.create(1)
    block = SharedBlock.open(changed.path, writable=True)
    block.array((16,), np.uint8)[8:] += 1  # what says which fields it has
    running = {"processes": {"controller": identity(os.getpid())}, "size": 1}
    mine = xpulab.__version__
    boards = (("a", mine, board), ("b", "0", board), ("c", mine, other), ("d", mine, changed))
    for name, version, block_of in boards:
        Record.create(name, os.getpid(), version).write(facts=[described(board=block_of.path)], **running)
    assert [each.runs for each in all_clusters().clusters] == ["idle", "", "", ""]
    with pytest.raises(ValueError, match="of another version of xpulab"):
        Board.open(changed.path)
    for each in (board, other, changed, block):
        each.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root sees clusters of other users")
def test_root_sees_the_clusters_of_all_users(
    monkeypatch: pytest.MonkeyPatch, environment: Callable[..., None], tmp_path: Path
) -> None:
    environment(XPULAB_RUNTIME_DIR=str(tmp_path), JPY_SESSION_NAME="/home/ann/ann.ipynb")
    me = identity(os.getpid())
    record = Record.create(None, os.getpid(), xpulab.__version__).write(processes={"controller": me}, size=2)
    for path in (Path(record.folder), Path(record.folder, "cluster.json")):
        os.chown(path, 65534, 65534)
    assert find() == []
    (one,) = all_clusters().clusters
    assert (one.notebook, one.user, one.engines, one.runs) == ("ann.ipynb", "nobody", 2, "")
    monkeypatch.setattr(os, "getuid", lambda: 4711)  # a colleague sees nothing of it
    assert all_clusters().clusters == ()
