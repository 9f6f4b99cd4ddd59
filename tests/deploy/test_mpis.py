"""Open MPI and MPICH on this host: what engines and scripts do on them, and that a mismatch is found at the start."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leftovers import not_of_others, runs, shared_memory
from mpis import with_mpi
from presses import require_time_after_ctrl_c
from strikes import acted_when, pressed_when
from waiting import until

import xpulab
from xpulab.cluster import KMeans
from xpulab.console.cells import run_cell
from xpulab.deploy.mpi import choice
from xpulab.deploy.mpi.command import LIBMPI
from xpulab.exceptions import ClusterStartError, EngineError, EngineLostError, OversubscribedWarning

pytestmark = pytest.mark.cluster

VERSIONS = {"openmpi": "Open MPI", "mpich": "MPICH"}
JOB = {
    "SLURM_JOBID": "7", "SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NODELIST": "elsewhere1,elsewhere2", "SLURM_JOB_NODELIST": "elsewhere1,elsewhere2",
    "SLURM_TASKS_PER_NODE": "1(x2)", "PBS_JOBID": "7", "PBS_NODEFILE": "/no/file", "PBS_ENVIRONMENT": "PBS_BATCH",
}  # fmt: skip
X = np.concatenate([np.random.RandomState(0).randn(2_000, 4) + 5 * group for group in range(3)])


@pytest.fixture(scope="module", params=VERSIONS)
def mpi(request: pytest.FixtureRequest) -> str:
    return with_mpi(request.param)


@pytest.fixture(scope="module")
def sessions() -> Iterator[Path]:
    """A folder for the sessions of Open MPI and MPICH: elsewhere are those of other tests at the same time."""
    with tempfile.TemporaryDirectory(prefix="xpu") as folder:  # a short path, for sockets
        yield Path(folder)


@pytest.fixture(scope="module")
def engines(mpi: str, sessions: Path) -> Iterator[xpulab.XPUCluster]:
    """A cluster of 2 engines in what looks like a batch job on two hosts; what it leaves is found at its end."""
    before = left(sessions)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**JOB, "TMPDIR": str(sessions)}.items():
            patch.setenv(name, value)
        with xpulab.XPUCluster(
            2, mpi=mpi, launcher="local", display="none", timeout=60, recover=False, env={"1:MINE": "a b"}
        ) as cluster:
            yield cluster
    until(lambda: not not_of_others(left(sessions) - before))


@pytest.fixture
def cluster(engines: xpulab.XPUCluster) -> xpulab.XPUCluster:
    return engines.start().activate()


def left(sessions: Path) -> set[str]:
    """The files that MPI may leave: in /dev/shm, and folders of sessions."""
    return shared_memory() | {str(path) for name in ("ompi.*", "prte*", "hydra_hwloc*") for path in sessions.glob(name)}


def test_the_engines_run_on_the_chosen_library(cluster: xpulab.XPUCluster, mpi: str) -> None:
    assert all(fact.mpi.startswith(VERSIONS[mpi]) for fact in cluster.facts)
    assert cluster.run(lambda task: os.environ.get("MINE")) == [None, "a b"]
    assert not [path for path in shared_memory() if "mpich" in path]  # a killed notebook would leave these files
    # Open MPI sends SIGTERM to the engines that are left if one is lost. They end at once, and print nothing.
    assert cluster.run(lambda task: signal.getsignal(signal.SIGTERM) is signal.SIG_DFL) == [True, True]
    command = cluster.plan(show=True).command
    assert choice.find(mpi).mpiexec in command
    assert f"{LIBMPI}={choice.find(mpi).library}" in command


@pytest.mark.usefixtures("merged_lines")
def test_a_fit_and_a_cell(cluster: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]) -> None:
    from sklearn.cluster import KMeans as Theirs

    arguments: dict[str, Any] = {"n_clusters": 3, "init": X[::2000], "n_init": 1}
    ours, theirs = KMeans(**arguments).fit(X), Theirs(**arguments).fit(X)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    np.testing.assert_allclose(ours.inertia_, theirs.inertia_)
    source = (
        "import numpy as np\n"
        "many = np.full(1_000_000, rank + 1.0)\n"
        "comm.Allreduce(many.copy(), many)\n"
        "print(many[-1], comm.allgather(rank), comm.sendrecv('x' * 100_000, 1 - rank)[:2], comm.Split(rank).size)"
    )
    run_cell(cluster, source)
    assert capsys.readouterr().out == "[0-1] 3.0 [0, 1] xx 1\n"


def test_an_error_on_one_rank_frees_the_other(cluster: xpulab.XPUCluster) -> None:
    def fail(task: Any, wait: str) -> None:
        if task.rank == 1:
            raise ValueError("no such luck")
        task.comm.recv() if wait == "recv" else task.comm.Barrier()

    for wait in ("recv", "Barrier"):
        with pytest.raises(EngineError, match="1 of 2 engines raised ValueError"):
            cluster.run(fail, wait)
    assert cluster.run(lambda task: task.comm.allreduce(1)) == [2, 2]


def test_stop_ends_a_fit_and_a_users_code(cluster: xpulab.XPUCluster) -> None:
    board = cluster.engines.board
    assert board is not None
    rows = np.random.RandomState(0).rand(400_000, 6).astype(np.float32)
    model = KMeans(50, init="random", n_init=1, max_iter=10**6, tol=0, random_state=0)
    with (
        pytest.raises(KeyboardInterrupt),
        pressed_when(lambda: (board.ranks["iteration"] >= 1).all() and board.ranks["task"].all()),
    ):
        model.fit(rows)
    with pytest.raises(KeyboardInterrupt), pressed_when(lambda: board.ranks["hears"].all()):
        cluster.run(lambda task: task.comm.recv())
    assert cluster.run(lambda task: task.comm.allreduce(1)) == [2, 2]


def test_a_rank_that_leaves_is_the_one_that_is_named(mpi: str) -> None:
    """MPICH says status 0 of the ranks that it kills, too, and Open MPI no status at all."""
    shared = pytest.warns(OversubscribedWarning) if len(os.sched_getaffinity(0)) < 3 else contextlib.nullcontext()
    with shared, xpulab.XPUCluster(3, mpi=mpi, launcher="local", timeout=60, recover=False) as cluster:
        for rank, leaves, status in ((0, "os._exit(0)", 0), (2, "os._exit(3)", 3), (1, "comm.Abort(7)", 7)):
            with pytest.raises(EngineLostError) as lost:
                run_cell(cluster.start(), f"import os\nif rank == {rank}:\n    {leaves}\ncomm.barrier()")
            assert lost.value.reason.startswith(f"rank {rank} (pid ")
            assert lost.value.reason.endswith(f") ended: exited with status {status}")


def test_a_killed_engine_is_named_with_its_cause(cluster: xpulab.XPUCluster, tmp_path: Path) -> None:
    pid, there = cluster.facts[1].pid, tmp_path / "there"

    def sleep(task: Any, there: str) -> None:
        task.comm.Barrier()
        Path(there).touch()
        time.sleep(600)

    with acted_when(there.exists, lambda: os.kill(pid, signal.SIGKILL)), pytest.raises(EngineLostError) as lost:
        cluster.run(sleep, str(there))
    assert lost.value.reason.startswith(f"rank 1 (pid {pid} on ")
    assert lost.value.reason.endswith("ended: killed by signal: 9 (killed)")


def test_an_engine_is_named_by_a_process_that_looks_late(cluster: xpulab.XPUCluster) -> None:
    """The process has only mpiexec's log when all engines and mpiexec have ended."""
    pids = [fact.pid for fact in cluster.facts]
    processes = cluster.engines.processes
    assert processes is not None
    os.kill(pids[1], signal.SIGKILL)
    until(lambda: not any(map(runs, pids)))
    processes.await_mpi()
    until(lambda: processes.first_gone)
    processes.first_gone.clear()
    with pytest.raises(EngineLostError, match=rf"rank 1 \(pid {pids[1]} on .* ended: killed by signal: 9"):
        cluster.run(lambda task: task.comm.rank)


SCRIPT = """import os, pickle
from mpi4py import MPI
world = MPI.COMM_WORLD
print(MPI.Get_library_version().split(" v")[0].split(" V")[0], world.allreduce(1), os.environ.get("MINE"))
if world.rank == 1:
    assert pickle.loads(pickle.dumps(world)) is world
    world.Abort(5)
world.Barrier()
"""


def test_a_script_runs_and_the_status_is_that_of_the_first_that_fails(mpi: str, sessions: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = ["-m", "xpulab", "run", "--mpi", mpi, "-n", "2", "--env", "1:MINE=a b;c", str(tmp_path / "script.py")]
    before, environment = left(sessions), {**os.environ, "TMPDIR": str(sessions)}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=240, env=environment)
    expected = [f"[0] {VERSIONS[mpi]} 2 None", f"[1] {VERSIONS[mpi]} 2 a b;c"]
    assert sorted(done.stdout.splitlines()) == expected
    assert done.returncode == 5, done.stderr
    assert "xpulab run: rank 1 ended with status 5, and so all ranks were ended" in done.stderr
    assert "Primary job" not in done.stderr
    assert "Exit code" not in done.stderr
    until(lambda: not not_of_others(left(sessions) - before))


def test_ctrl_c_leaves_a_script_the_time_to_save_its_work_and_nothing_behind(
    mpi: str, tmp_path: Path, environment: Callable[..., None]
) -> None:
    with tempfile.TemporaryDirectory(prefix="xpu") as folder:
        before = left(Path(folder))
        environment(TMPDIR=folder)
        require_time_after_ctrl_c(tmp_path, "--mpi", mpi)
        until(lambda: not not_of_others(left(Path(folder)) - before))


def test_a_rank_of_a_script_that_leaves_with_status_0_is_named(mpi: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.replace("world.Abort(5)", "os._exit(0)"))
    command = [sys.executable, "-m", "xpulab", "run", "--mpi", mpi, "-n", "2", str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode != 0
    assert "xpulab run: rank 1 ended with status 0 before its script did (os._exit), and so all" in done.stderr


@pytest.mark.parametrize(("mpi", "other"), [("openmpi", "intel"), ("mpich", "openmpi"), ("intel", "openmpi")])
def test_another_mpis_library_is_refused_at_the_start_in_words(
    mpi: str, other: str, environment: Callable[..., None]
) -> None:
    with_mpi(mpi)
    environment(**{LIBMPI: choice.find(with_mpi(other)).library})
    with pytest.raises(ClusterStartError) as refused:
        xpulab.XPUCluster(2, mpi=mpi, launcher="local", timeout=60).start()
    said = str(refused.value)
    assert said.startswith(f"the 2 ranks cannot find each other: mpiexec is {choice.module(mpi).LABEL}'s")
    assert f"type: del os.environ['{LIBMPI}'] (in a shell: unset {LIBMPI}), or choose --mpi {other}" in said


def test_a_script_with_another_mpis_library_is_refused_in_words(
    environment: Callable[..., None], tmp_path: Path
) -> None:
    environment(**{LIBMPI: choice.find(with_mpi("openmpi")).library})
    (tmp_path / "script.py").write_text("from mpi4py import MPI\nprint('never')\n")
    words = ["-m", "xpulab", "run", "-n", "2", str(tmp_path / "script.py")]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert "the 2 ranks cannot find each other: mpiexec is Intel MPI's" in done.stderr
    assert "never" not in done.stdout


def test_ranks_that_are_alone_are_refused_although_the_library_is_right(
    environment: Callable[..., None], tmp_path: Path
) -> None:
    """The program that takes the place of mpiexec starts the ranks without telling them of each other."""
    library = choice.find(with_mpi("mpich")).library
    program = tmp_path / "mpiexec.mpich"
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && printf "HYDRA build details:\\n Version: 4.0\\n" && exit\n'
        f'until [ "$1" = {sys.executable} ]; do shift; done\n"$@" & "$@" & wait\n'
    )
    program.chmod(0o755)
    environment(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}", **{LIBMPI: library})
    words = rf"the 2 ranks cannot find each other: mpiexec is MPICH's \({program}\), and the library is MPICH"
    with pytest.raises(ClusterStartError, match=words):
        xpulab.XPUCluster(2, mpi="mpich", launcher="local", timeout=60).start()


def test_an_mpi_that_is_missing_says_what_to_type(environment: Callable[..., None], tmp_path: Path) -> None:
    environment(PATH=str(tmp_path))
    for name, words in (
        ("openmpi", "Open MPI was not found: .*openmpi-bin"),
        ("mpich", "MPICH was not found: .*mpich"),
    ):
        with pytest.raises(ClusterStartError, match=words):
            xpulab.XPUCluster(2, mpi=name).start()
    assert choice.find("intel").mpiexec.startswith(sys.prefix)
