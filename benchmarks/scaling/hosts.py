"""Measures the transfer of rows from this process to another host, in turns with MPI's own messages to that host.

python benchmarks/scaling/hosts.py --hosts node1 --mebibytes 512 --repeats 5

Without --hosts it makes a host of network namespaces on this machine, as the tests do, which needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import xpulab
from xpulab.report.rendering import table_text

FEATURES = 14
WARM, NEW = "MPI's messages, the same memory again", "MPI's messages, new memory"


def timed(call: Callable[[], Any]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def messages(task: Any, nbytes: int, new: bool) -> float:
    """Seconds in which MPI sends so many bytes from rank 0 here to rank 1 there, in pieces of 4 MiB, eight at a time.

    The pieces are in 32 MiB that both ranks use again and again, or, with `new`, in memory of this size, which the
    receiver has not used before, as that of rows. The ranks wait for each other at both ends. The communicator is
    mpi4py's own.
    """
    import time

    import numpy as np

    from xpulab.engine.users_mpi.interruptible import WORLD

    piece, under_way = 4 << 20, 8
    sends, number = WORLD.rank == 0, nbytes // piece
    call = WORLD.Isend if sends else WORLD.Irecv
    pieces = number if new else under_way
    memory = (np.ones if sends or not new else np.empty)((pieces, piece), np.uint8)
    WORLD.Barrier()
    started = time.perf_counter()
    pending: list[Any] = []
    for each in range(number):
        if len(pending) == under_way:
            pending.pop(0).Wait()
        pending.append(call(memory[each % pieces], 1 - WORLD.rank))
    for message in pending:
        message.Wait()
    WORLD.Barrier()
    return time.perf_counter() - started


@contextlib.contextmanager
def reached(hosts: str | None, ssh_config: str | None) -> Iterator[tuple[str, str, str | None]]:
    """Names of this host and of another one, and ssh's configuration."""
    if hosts is not None:
        yield "localhost", hosts, ssh_config
        return
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "hosts"))
    from machines import network

    with network(1) as made:
        yield made.address, "node1", made.ssh_config


def measure(clusters: dict[str, xpulab.XPUCluster], X: np.ndarray, repeats: int) -> dict[str, list[float]]:
    """Seconds of each kind of transfer, in turns; all rows are those of the last rank."""
    seconds: dict[str, list[float]] = {}

    def note(name: str, took: float) -> None:
        seconds.setdefault(name, []).append(took)

    for _ in range(repeats):
        for name, cluster in clusters.items():
            if cluster.size == 2:
                note(WARM, cluster.run(messages, X.nbytes, False)[0])
                note(NEW, cluster.run(messages, X.nbytes, True)[0])
            before = time.perf_counter()
            handle = cluster.scatter(X, counts=[0] * (cluster.size - 1) + [len(X)])
            note(f"scatter, {name}", time.perf_counter() - before)
            before = time.perf_counter()
            whole = handle.gather()
            note(f"gather, {name}", time.perf_counter() - before)
            assert (whole[-1] == X[-1]).all()
            del handle, whole
            time.sleep(0.2)  # the thread that frees the rows then returns their shared memory
    return seconds


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", metavar="NAME", help="the other host, as ssh knows it")
    parser.add_argument("--ssh-config", metavar="FILE", help="file with ssh's configuration")
    parser.add_argument("--mebibytes", type=int, default=512, help="size of the array that is sent")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()

    shape = (arguments.mebibytes << 20) // (4 * FEATURES), FEATURES
    X = np.random.default_rng(0).random(shape, dtype=np.float32)
    with reached(arguments.hosts, arguments.ssh_config) as (here, there, config), contextlib.ExitStack() as stack:
        clusters = {
            name: stack.enter_context(xpulab.XPUCluster(hosts=hosts, ssh_config=config, display="none"))
            for name, hosts in (("an engine here", f"{here}:1,{there}:1"), ("helper rank", f"{there}:1"))
        }
        for cluster in clusters.values():
            cluster.scatter(X[:100_000])  # compiles
        seconds = measure(clusters, X, arguments.repeats)

    def row(name: str) -> tuple[str, ...]:
        took = np.median(seconds[name])
        shares = (f"{np.median(np.array(seconds[beside]) / seconds[name]):.2f}" for beside in (NEW, WARM))
        return name, f"{took:.3f} s", f"{X.nbytes / took / 1e9:.2f}", *shares

    header = (f"{arguments.mebibytes} MiB", "median", "GB/s", "of MPI, new memory", "of MPI, same memory")
    print(table_text(header, map(row, seconds), "lrrrr", indent=""))


if __name__ == "__main__":
    main()
