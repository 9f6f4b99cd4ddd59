"""Processes that are forked from one that uses a cluster: whatever they do, it goes on, and they can attach."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import xpulab
from xpulab.cluster import KMeans
from xpulab.console.cells import run_cell

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]

X = np.arange(40.0).reshape(20, 2)
FORKS = multiprocessing.get_context("fork")

#: What a forked process may do with the cluster of its parent, and with handles.
CALLS: dict[str, Callable[[xpulab.XPUCluster, xpulab.ShardedArray], object]] = {
    "stop": lambda cluster, _: cluster.stop(),
    "restart": lambda cluster, _: cluster.restart(),
    "detach": lambda cluster, _: cluster.detach(),
    "start": lambda cluster, _: cluster.start(),
    "with": lambda cluster, _: cluster.__enter__(),
    "activate": lambda cluster, _: cluster.activate(),
    "run": lambda cluster, _: cluster.run(lambda here: 0),
    "a cell": lambda cluster, _: run_cell(cluster, "1"),
    "push": lambda cluster, _: cluster.push({"one": 1}),
    "scatter": lambda cluster, _: cluster.scatter(X),
    "gather": lambda _, handle: handle.gather(),
    "fit": lambda *_: KMeans(2, n_init=1).fit(X),
    "fit of a handle": lambda _, handle: KMeans(2, n_init=1).fit(handle),
    "current_cluster": lambda *_: xpulab.current_cluster(),
}


def _said(call: Callable[[], object], answers: Any) -> None:
    try:
        answers.put(repr(call()))
    except BaseException as error:
        answers.put(f"{type(error).__name__}: {error}")


def in_child(call: Callable[[], object]) -> str:
    """Return the value, or the error, of a call in a forked process."""
    answers = FORKS.SimpleQueue()
    child = FORKS.Process(target=_said, args=(call, answers))
    child.start()
    said = str(answers.get())
    child.join()
    return said


@pytest.mark.parametrize("name", CALLS)
def test_a_forked_process_that_calls_learns_how_to_attach(name: str, on_pair: xpulab.XPUCluster) -> None:
    handle = on_pair.scatter(X)
    said = in_child(lambda: CALLS[name](on_pair, handle))
    assert said.startswith("NoClusterError: ")
    assert f"was forked from process {os.getpid()}, and only that one can use or end its cluster" in said
    assert f"type: xpulab.XPUCluster.attach({on_pair.known_as!r})" in said
    np.testing.assert_array_equal(handle.gather(), X)


def test_the_end_of_a_context_in_a_forked_process_does_nothing(on_pair: xpulab.XPUCluster) -> None:
    def leave() -> None:
        on_pair.__exit__()
        on_pair.end()

    assert in_child(leave) == "None"
    assert on_pair.run(lambda here: here.comm.allreduce(1)) == [2, 2]


def _attach(name: str) -> None:
    xpulab.XPUCluster.attach(name)


def _fitted(seed: int) -> tuple[int, list[float], bool]:
    centers = KMeans(2, n_init=1, random_state=seed).fit(X).cluster_centers_
    return os.getpid(), sorted(centers[:, 0].tolist()), xpulab.current_cluster().attached


def test_workers_of_a_pool_can_attach(on_pair: xpulab.XPUCluster) -> None:
    with FORKS.Pool(2, _attach, (on_pair.known_as,)) as pool:
        found = pool.map(_fitted, range(4), chunksize=1)
    assert os.getpid() not in {pid for pid, _, _ in found}
    assert [centers for _, centers, _ in found] == [_fitted(seed)[1] for seed in range(4)]
    assert all(attached for _, _, attached in found)
    assert on_pair.running


def test_a_forked_process_may_have_a_cluster_of_its_own(on_pair: xpulab.XPUCluster) -> None:
    def own() -> list[int]:
        with xpulab.XPUCluster(1, display="none") as cluster:
            return cluster.run(lambda here: here.size)

    assert in_child(own) == "[1]"
    assert on_pair.run(lambda here: here.size) == [2, 2]


SCRIPT = """
import atexit, os, sys, numpy as np, xpulab
X = np.arange(40.0).reshape(20, 2)
def end(how):
    if how == "an exception": raise ValueError("of the child")
    sys.exit(0)
with xpulab.XPUCluster(1, display="none") as cluster:
    handle = cluster.scatter(X)
    for how in "exit", "an exception", "a handler":
        if (child := os.fork()) == 0:
            if how == "a handler": atexit.register(cluster.end)
            del handle
            end(how)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(how, status, handle.gather().shape[1], flush=True)
print(cluster.running)
"""


def test_the_exit_of_a_forked_process_ends_no_cluster() -> None:
    words = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", SCRIPT]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["exit 0 2", "an exception 1 2", "a handler 0 2", "False"]
    assert done.stderr.splitlines()[-1] == "ValueError: of the child"
    assert done.stderr.count("Traceback") == 1
