"""A cluster on the two nodes of a Slurm job: start, fit, stop, a job that is cancelled, and nothing that is left."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from machines import Network
from mpis import skip_or_fail
from scheduler import HERE, Slurm, scheduler, why_no_scheduler
from strikes import acted_when
from waiting import until, until_none

import xpulab
from xpulab.cluster import KMeans
from xpulab.deploy.launchers import munge
from xpulab.exceptions import ClusterStartError, EngineLostError

pytestmark = pytest.mark.cluster

X = np.concatenate([np.random.RandomState(0).randn(2_000, 4) + 5 * group for group in range(3)])


@pytest.fixture(scope="module")
def slurm(hosts: Network) -> Iterator[Slurm]:
    if reason := why_no_scheduler():
        skip_or_fail(reason)
    with scheduler(hosts) as made:
        yield made


@pytest.fixture(scope="module")
def job(slurm: Slurm) -> Iterator[str]:
    """A job on both nodes, in which this process takes itself to be."""
    found = slurm.run("sbatch", "--parsable", "--nodes=2", "--output=/dev/null", "--wrap=sleep 1000").strip()
    until(lambda: "RUNNING" in slurm.queue(found))
    variables = {"SLURM_CONF": slurm.config, "SLURM_JOB_ID": found, "SLURMD_NODENAME": HERE}
    with pytest.MonkeyPatch.context() as patch:
        # Slurm sets the last two for a job's script, and srun reads them.
        for name, value in {**variables, "SLURM_NTASKS_PER_NODE": "1", "SLURM_NNODES": "2"}.items():
            patch.setenv(name, value)
        patch.setenv("SLURM_JOB_NODELIST", slurm.run("squeue", "--noheader", f"--jobs={found}", "--format=%N").strip())
        yield found
    slurm.run("scancel", found)
    until(lambda: "RUNNING" not in slurm.queue(found) and "COMPLETING" not in slurm.queue(found))


@pytest.fixture(scope="module")
def both(job: str) -> Iterator[xpulab.XPUCluster]:
    with xpulab.XPUCluster(3, display="none", timeout=120, recover=False) as cluster:
        yield cluster


def require_clean(slurm: Slurm, job: str) -> None:
    """Nothing of a cluster is left on the other node, and no step of the job but its script."""
    until_none(lambda: [*xpulabs(slurm), *slurm.there.files()])
    until(lambda: all(step.startswith(f"{job}.batch") for step in slurm.steps(job)))


def xpulabs(slurm: Slurm) -> list[str]:
    return [line for line in slurm.there.processes().values() if "slurm" not in line]


def test_ranks_run_on_the_nodes_of_the_job(both: xpulab.XPUCluster, slurm: Slurm, job: str) -> None:
    def here(task: Any) -> tuple[str, int]:
        import platform

        print(f"line of {task.comm.rank}")
        return platform.node(), task.comm.allreduce(task.rank)

    found = both.activate().run(here)
    assert found[2] == (slurm.there.name, 3)
    assert [name for name, _ in found[:2]] == [os.uname().nodename] * 2
    assert f"nodes of Slurm's job {job}" in str(both.plan(show=True))
    assert f"--jobid={job} --overlap" in both.plan(show=True).command


def test_a_fit_is_that_of_one_host(both: xpulab.XPUCluster) -> None:
    from sklearn.cluster import KMeans as Theirs

    arguments: dict[str, Any] = {"n_clusters": 3, "init": X[::2000], "n_init": 1}
    both.activate()
    ours, theirs = KMeans(**arguments).fit(X), Theirs(**arguments).fit(X)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    np.testing.assert_allclose(ours.inertia_, theirs.inertia_)
    rows = np.random.RandomState(1).rand(654_321, 2).astype(np.float32)  # several messages, there and back
    np.testing.assert_array_equal(both.scatter(rows).gather(), rows)


def test_no_key_is_in_a_command_line_or_in_an_environment(both: xpulab.XPUCluster, slurm: Slurm) -> None:
    assert both.engines.processes is not None
    connection = both.engines.processes.folder / "security" / "ipcontroller-engine.json"
    key = connection.read_text().split('"key": "')[1].split('"')[0]
    assert slurm.there.run("grep", "-c", key, str(connection)).strip() == "1"
    assert slurm.there.run("stat", "-c", "%a", str(connection)).strip() == "600"
    mine = [psutil.Process(pid) for pid in both.engines.processes.pids()]
    texts = [" ".join(process.cmdline()) + str(process.environ()) for process in mine]
    texts.append(slurm.there.run("sh", "-c", "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' ' '"))
    assert "xpulab.engine" in texts[-1]
    assert not any(key in text for text in texts)


def test_what_is_sealed_is_opened_once_and_by_the_same_user(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    socket = munge.socket_in(slurm.run("scontrol", "show", "config"))
    assert socket.endswith("munge.socket")
    text = '{"key": "a\n\nb"}'
    sealed = munge.sealed(text, socket)
    assert "key" not in base64.b64decode(sealed.split(":")[1]).decode(errors="replace")
    assert munge.opened(sealed, socket) == text
    with pytest.raises(munge.MungeError, match="Replayed credential"):
        munge.opened(sealed, socket)
    sealed = munge.sealed(text, socket)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 1)
        with pytest.raises(munge.MungeError, match=r"of another user .*\nUID: +root"):
            munge.opened(sealed, socket)
    with pytest.raises(munge.MungeError, match=r"munge says: .*no socket"):
        munge.sealed(text, "/no socket")


def test_a_stop_leaves_nothing_and_keeps_the_job(both: xpulab.XPUCluster, slurm: Slurm, job: str) -> None:
    """This is the last test of this cluster."""
    both.stop()
    require_clean(slurm, job)
    assert "RUNNING" in slurm.queue(job)


def test_a_node_without_this_python_is_named(job: str, slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xpulab.deploy.remote.asking.program", lambda *words: ["/no/python", *words])
    with pytest.raises(ClusterStartError, match=rf"{slurm.there.name}: it has no /no/python; .*\n.*--launcher local"):
        xpulab.XPUCluster(2, display="none").plan()


def test_a_start_without_munge_sends_no_keys(job: str, slurm: Slurm, environment: Callable[..., None]) -> None:
    """The relay reads munge's socket from a scontrol of the test."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "scontrol")
        real = shutil.which("scontrol")
        program.write_text(f'#!/bin/sh\n[ "$*" = "show config" ] && echo AuthInfo = socket=/no || exec {real} "$@"\n')
        program.chmod(0o755)
        environment(PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")
        with pytest.raises(
            ClusterStartError, match=r"keys .* cannot be sent .* job 1: munge says: .*\n.*--launcher local"
        ):
            xpulab.XPUCluster(2, display="none").start()
    require_clean(slurm, job)


NOTEBOOK = """
import xpulab
cluster = xpulab.XPUCluster(2, display="none").start()
print("started", flush=True)
cluster.run(lambda task: __import__("time").sleep(1000))
"""


def test_a_notebook_that_is_killed_leaves_nothing_and_keeps_the_job(job: str, slurm: Slurm) -> None:
    with subprocess.Popen([sys.executable, "-c", NOTEBOOK], stdout=subprocess.PIPE, text=True) as notebook:
        assert notebook.stdout is not None
        assert notebook.stdout.readline() == "started\n"
        assert any("xpulab.engine" in line for line in xpulabs(slurm))
        children = psutil.Process(notebook.pid).children(recursive=True)
        notebook.kill()
    require_clean(slurm, job)
    assert not psutil.wait_procs(children, 120)[1]
    assert "RUNNING" in slurm.queue(job)


SCRIPT = """#!{python}
#SBATCH --nodes=2
#SBATCH --output={log}
import time, xpulab
cluster = xpulab.XPUCluster(2, display="none").start()
print([fact.host for fact in cluster.facts], flush=True)
cluster.run(lambda task: __import__("time").sleep(1000))
"""


def test_a_job_that_is_cancelled_leaves_nothing(slurm: Slurm, tmp_path: Path) -> None:
    """The notebook is the job's script here, and Slurm sets its variables."""
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(SCRIPT.format(python=sys.executable, log=log))
    number = slurm.run("sbatch", "--parsable", str(script)).strip()
    until(lambda: log.exists() and "]\n" in log.read_text())
    assert log.read_text() == f"{[os.uname().nodename, slurm.there.name]}\n"
    until(lambda: any("xpulab.engine" in line for line in xpulabs(slurm)))
    slurm.run("scancel", number)
    require_clean(slurm, number)
    until(lambda: "CANCELLED" in slurm.queue(number))
    until(lambda: not [each for each in psutil.process_iter() if str(tmp_path) in " ".join(_line(each))])


def _line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_call_says_that_the_job_was_cancelled(job: str, slurm: Slurm) -> None:
    """This is the last test of this job. The notebook stays, as one does that Slurm has not started."""
    with xpulab.XPUCluster(2, display="none", timeout=120, recover=False) as cluster:
        assert cluster.engines.board is not None
        ranks = cluster.engines.board.ranks
        with (
            acted_when(lambda: ranks["hears"].all(), lambda: slurm.run("scancel", job)),
            pytest.raises(EngineLostError) as error,
        ):
            cluster.run(lambda task: task.comm.Barrier() or __import__("time").sleep(600))
        cause, cure = str(error.value).splitlines()  # no log, and not %xpu_cluster restart: there is no job any more
        assert cause == f"Slurm's job {job} was cancelled, so all engines were ended."
        assert cure.startswith("type: %xpu_cluster start --launcher local (for this host only), or start Jupyter in ")
        assert not cluster.running
    require_clean(slurm, job)
