"""`xpulab.spmd` in scripts and cells: scikit-learn's results for the joined rows, and errors on all ranks.

Its estimators take the arguments of `sklearnex.spmd` 2026, of which signatures.txt is the table.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import sklearn
from strikes import interrupt_rank_0, strike

import xpulab
from xpulab import cli
from xpulab.console.cells import CellInterrupted, run_cell
from xpulab.exceptions import EngineError

HERE = Path(__file__).parent
SCRIPT = (HERE / "ranks.py").read_text()
CHECKS = re.findall(r"^@(?:check|check_on_several)\ndef (\w+)", SCRIPT, re.MULTILINE)
ON_ONE = re.findall(r"^@check\ndef (\w+)", SCRIPT, re.MULTILINE)

pytestmark = pytest.mark.cluster


def passed(said: str, size: int) -> list[list[str]]:
    """Return, for each rank, the checks that it says it has passed: ranks that are late have lines of their own."""
    by_rank: list[list[str]] = [[] for _ in range(size)]
    for ranks, name in re.findall(r"^\[([-,\d]+)\] passed (\w+)$", said, re.MULTILINE):
        for part in ranks.split(","):
            first, _, last = part.partition("-")
            for rank in range(int(first), int(last or first) + 1):
                by_rank[rank].append(name)
    return by_rank


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """The run of both scripts by one rank: the process of these tests must not load the runtime."""
    script = tmp_path_factory.mktemp("spmd") / "script.py"
    script.write_text(f"{SCRIPT}\n{(HERE / 'signatures.py').read_text()}")
    words = [sys.executable, "-m", "xpulab", "run", "-n", "1", str(script), str(HERE / "signatures.txt")]
    return subprocess.run(words, capture_output=True, text=True)


@pytest.mark.slow
def test_a_script_computes_what_scikit_learn_does_for_the_joined_rows(ran: subprocess.CompletedProcess[str]) -> None:
    """One rank and some estimators are enough: the cell below has all, and several ranks.

    Scripts on several ranks have the same way to the engine.
    """
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert passed(ran.stdout, 1) == [ON_ONE]


@pytest.mark.slow
def test_every_public_method_takes_the_arguments_of_sklearnex(ran: subprocess.CompletedProcess[str]) -> None:
    classes = (HERE / "signatures.txt").read_text().count("class ")
    assert f"[0] compared {classes}\n" in ran.stdout
    differences = [line for line in ran.stdout.splitlines() if line.startswith("[0] differs: ")]
    if sklearn.__version__.startswith(("1.6.", "1.7.", "1.8.")):  # the table has the constructors of scikit-learn 1.9
        differences = [line for line in differences if "__init__" not in line]
    assert not differences


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [3], indirect=True, ids=["3-engines"])
def test_a_cell_computes_the_same_and_the_cluster_works_afterwards(
    current: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cell(current, SCRIPT)
    assert passed(capsys.readouterr().out, current.size) == [CHECKS] * current.size
    rows = [[1.0, 2.0], [1.0, 4.0], [10.0, 2.0], [10.0, 4.0]]
    assert xpulab.cluster.KMeans(2, random_state=0).fit(rows).inertia_ == 4.0
    assert current.run(lambda task: task.comm.allreduce(1)) == [current.size] * current.size


FIT = """
import numpy as np
from xpulab.spmd.cluster import KMeans
rows = np.random.default_rng(rank).normal(size=(1000, 3))
"""


def test_a_cell_on_some_ranks_is_refused(on_pair: xpulab.XPUCluster) -> None:
    with pytest.raises(EngineError, match="this cell runs on 1 of 2 ranks"):
        run_cell(on_pair, f"{FIT}\nKMeans(2).fit(rows)", ranks=[1])


def test_a_rank_that_raises_in_a_cell_frees_the_others(on_pair: xpulab.XPUCluster) -> None:
    source = f"{FIT}\nif rank == 1:\n    raise RuntimeError('mine')\nKMeans(2).fit(rows)"
    with pytest.raises(EngineError, match="RuntimeError: mine"):
        run_cell(on_pair, source)
    run_cell(on_pair, f"{FIT}\nassert KMeans(2, random_state=0).fit(rows).n_iter_ > 0")


@pytest.mark.usefixtures("merged_lines")
def test_a_cell_that_is_stopped_in_a_fit_stops_on_all_ranks_at_the_same_iteration(
    on_pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 asks for the stop, as Ctrl-C in the notebook does, while both ranks compute."""
    source = f"""{FIT}
model = KMeans(400, init="random", n_init=100000, max_iter=100000, tol=0, random_state=0)
model.fit(rows)
"""
    on_pair.run(strike, 40, interrupt_rank_0)  # the ranks have met some times before the first iteration
    with pytest.raises(CellInterrupted):
        run_cell(on_pair, source)
    capsys.readouterr()
    run_cell(on_pair, "print(len({each.tobytes() for each in comm.allgather(model.cluster_centers_)}))")
    assert capsys.readouterr().out == "[0-1] 1\n"
    run_cell(on_pair, f"{FIT}\nassert KMeans(2, random_state=0).fit(rows).n_iter_ > 0")


EXAMPLE = """
import dpnp
from dpctl import SyclQueue
from mpi4py import MPI
from sklearn.datasets import load_iris

from xpulab import config_context
from xpulab.spmd.cluster import KMeans

comm = MPI.COMM_WORLD
rows = load_iris().data[comm.Get_rank() :: comm.Get_size()]
queue = SyclQueue("cpu")
on_device = dpnp.asarray(rows, usm_type="device", sycl_queue=queue)
with config_context(array_api_dispatch=True):
    model = KMeans(n_clusters=3, random_state=0).fit(on_device)
    print("iterations", model.n_iter_, "inertia", round(float(model.inertia_), 4))
    predicted = model.predict(on_device[:5])
    print("kept", isinstance(predicted, dpnp.ndarray), model.cluster_centers_[:2].shape, len(model.labels_))
"""


def test_a_script_written_for_sklearnex_runs_with_the_command_that_show_prints(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (empty_folder / "example.py").write_text(EXAMPLE)
    assert cli.main(["run", "-n", "2", "--show", "example.py"]) == 0
    command = capsys.readouterr().out.partition("\n\n")[2]
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = sorted(done.stdout.strip().splitlines())
    assert len([line for line in said if line.startswith("iterations")]) == 2
    assert len({line for line in said if line.startswith("iterations")}) == 1
    assert [line for line in said if line.startswith("kept")] == ["kept True (2, 4) 75"] * 2


def test_settings_that_scikit_learn_does_not_have_are_refused() -> None:
    with pytest.raises(TypeError), xpulab.config_context(array_api=True):
        pass
