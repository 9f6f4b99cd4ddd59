"""Measures messages with the communicator of a cell, which can be interrupted, and with plain mpi4py under mpiexec.

python benchmarks/messages.py -n 2 --bytes 1024,1048576,16777216
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from typing import Any

import numpy as np

import xpulab
from xpulab.console.cells import run_cell
from xpulab.deploy.mpi import intel
from xpulab.deploy.mpi.command import HERE, RanksOfHost
from xpulab.report.rendering import format_seconds, format_size, table_text

MEASURE = """
import time
import numpy as np

def seconds(call):
    found = []
    for _ in range(repeats):
        comm.Barrier()
        started = time.perf_counter()
        call()
        found.append(time.perf_counter() - started)
    return found

def measure(nbytes):
    values, received = np.ones(nbytes // 8), np.empty(nbytes // 8)
    send = lambda: comm.Send(values, 1) if comm.rank == 0 else comm.Recv(received, 0) if comm.rank == 1 else None
    calls = {
        "Send": send,
        "Bcast": lambda: comm.Bcast(values),
        "Reduce": lambda: comm.Reduce(values, received),
        "Allreduce": lambda: comm.Allreduce(values, received),
    }
    return {name: (call(), seconds(call))[1] for name, call in calls.items()}

times = {nbytes: measure(nbytes) for nbytes in sizes}
"""
PLAIN = "import json; from mpi4py import MPI; comm = MPI.COMM_WORLD"


def plain(n: int, setup: str) -> Any:
    """The seconds of rank 0 under mpiexec, with separate cores for each rank, as engines have."""
    cores = (
        "import os; mine = sorted(os.sched_getaffinity(0)); os.sched_setaffinity(0, mine[comm.rank::comm.size] or mine)"
    )
    source = f"{PLAIN}\n{cores}\n{setup}\n{MEASURE}\nif comm.rank == 0:\n    print(json.dumps(times))"
    start = intel.command([RanksOfHost(HERE, n)])
    command = [*start.words, "-n", str(n), sys.executable, "-c", source]
    environment = {**os.environ, **start.environment, "I_MPI_SHM_CMA": "-1"}  # Intel MPI's own choice
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return {int(nbytes): calls for nbytes, calls in json.loads(done.stdout).items()}


def main() -> None:
    """Measure in turns, and print a table of the median and the minimum of rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, help="engines")
    parser.add_argument("--bytes", default="1024,1048576,16777216")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", xpulab.exceptions.OversubscribedWarning)
    sizes = [int(nbytes) for nbytes in arguments.bytes.split(",")]
    setup = f"sizes, repeats = {sizes}, {arguments.repeats}"
    rounds = []
    with xpulab.XPUCluster(arguments.n, timeout=120) as cluster:
        for _ in range(arguments.rounds):
            cell = run_cell(cluster, f"{setup}\n{MEASURE}", out=["times"]).values["times"][0]
            rounds.append((plain(arguments.n, setup), cell))
    rows = []
    for nbytes in sizes:
        for name in rounds[0][0][nbytes]:
            theirs, ours = (np.concatenate([found[kind][nbytes][name] for found in rounds]) for kind in (0, 1))
            shown = [format_seconds(float(f(times))) for f in (np.median, np.min) for times in (theirs, ours)]
            ratios = [f"{f(ours) / f(theirs):.2f}" for f in (np.median, np.min)]
            rows.append((name, format_size(nbytes), *shown[:2], ratios[0], *shown[2:], ratios[1]))
    header = ("call", "size", "plain, median", "cell", "ratio", "plain, least", "cell", "ratio")
    print(table_text(header, rows, "lrrrrrrr", indent=""))


if __name__ == "__main__":
    main()
