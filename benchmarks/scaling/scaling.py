"""How fits become faster with more engines, on one host and on two, measured and predicted.

    python benchmarks/scaling/scaling.py                # 1, 2 and 4 engines of one core each, as far as there are cores
    python benchmarks/scaling/scaling.py --hosts        # as root: also on two hosts, made of network namespaces
    python benchmarks/scaling/scaling.py --hosts --plot scaling.png

Rows are on the engines before. With strong scaling all engines together have as many rows as one engine; with weak
scaling each has as many. The prediction takes the time of one engine for several numbers of rows, that of two engines
on one core, over as many hosts, if there are more engines than cores, latency and bandwidth between two ranks, and the
collectives of each fit (`scaling_model.py`). The last table and the plot go on to 1,024 engines, each on a host of its
own: with the latency that was measured between the hosts, and on a fabric.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scaling_model import FABRIC, Collective, Computation, Link, half_way, predicted

import xpulab
from xpulab.report.rendering import table_text

MOST = 1024  # engines of the prediction
ETHERNET = 1.25e9  # bytes per second of 10 Gbit/s: hosts on one machine may have more


@dataclass(frozen=True)
class Case:
    """A computation.

    Attributes
    ----------
    name : str
    rows, features : int
        Of one engine.
    call : callable
        Runs it on rows that the engines have; returns the report.
    collectives : list of Collective
    """

    name: str
    rows: int
    features: int
    call: Callable[[Any], Any]
    collectives: list[Collective]


def cases(share: float) -> list[Case]:
    """The computations, with a share of the rows."""
    from xpulab.cluster import KMeans
    from xpulab.decomposition import PCA
    from xpulab.neighbors import NearestNeighbors

    k, iterations, queries, nearest = 127, 20, 1000, 10
    rng = np.random.default_rng(1)
    centers = rng.standard_normal((k, 14), dtype=np.float32)
    asked = rng.standard_normal((queries, 32), dtype=np.float32)

    def kmeans(held: Any) -> Any:
        return KMeans(k, init=centers, n_init=1, max_iter=iterations, tol=0).fit(held).report_

    def pca(held: Any) -> Any:
        return PCA(10, svd_solver="covariance_eigh").fit(held).report_

    def neighbors(held: Any) -> Any:
        search = NearestNeighbors(n_neighbors=nearest, algorithm="brute").fit(held)
        search.kneighbors(asked)
        return search.report_

    def some(rows: int) -> int:
        return max(2000, int(rows * share))

    return [
        Case("k-means", some(500_000), 14, kmeans, [Collective("sum", 8 * k * 15, iterations)]),
        Case("PCA", some(1_000_000), 100, pca, [Collective("sum", 8 * 101 * 100), Collective("sum", 8, 3)]),
        Case("neighbours", some(200_000), 32, neighbors, [Collective("exchange", queries * nearest * 16)]),
    ]


@contextlib.contextmanager
def engines(n: int, most: int, network: Any = None) -> Iterator[xpulab.XPUCluster]:
    """A cluster of so many engines on so many cores at most: on this host, or half of them on another."""
    cores = sorted(os.sched_getaffinity(0))
    used = cores[: min(n, most)]
    mine, theirs = (used, []) if network is None else (used[: -(-len(used) // 2)], used[len(used) // 2 :])
    try:
        os.sched_setaffinity(0, mine)
        arguments: dict[str, Any] = {"timeout": 120, "display": "none"}
        if network is not None:
            psutil.Process(network.hosts[0].pid).cpu_affinity(theirs)
            arguments |= {"hosts": [network.address, "node1"], "ssh_config": network.ssh_config}
        with xpulab.XPUCluster(n, **arguments) as cluster:
            yield cluster
    finally:
        os.sched_setaffinity(0, cores)


def link_between(cluster: xpulab.XPUCluster) -> Link:
    """The latency and bandwidth of plain MPI between the first and the last rank, and the time around a collective."""

    def measure(task: Any) -> tuple[float, float, float]:
        from mpi4py import MPI

        comm, last = MPI.COMM_WORLD, MPI.COMM_WORLD.size - 1

        def trip(nbytes: int, repeats: int) -> float:
            values, found = np.zeros(nbytes, np.int8), []
            for _ in range(repeats):
                started = time.perf_counter()
                if comm.rank == 0:
                    comm.Send(values, last)
                    comm.Recv(values, last)
                elif comm.rank == last:
                    comm.Recv(values, 0)
                    comm.Send(values, 0)
                found.append((time.perf_counter() - started) / 2)
            return float(np.median(found))

        def together(repeats: int) -> float:
            found = []
            for _ in range(repeats):
                started = time.perf_counter()
                task.comm.allreduce(np.zeros(1))
                found.append(time.perf_counter() - started)
            return float(np.median(found))

        return trip(1, 300), trip(1 << 20, 30), together(300)

    latency, large, together = cluster.run(measure)[0]
    steps = 1 if cluster.size == 2 else 2
    return Link(latency, (1 << 20) / max(large - latency, 1e-9), max(together - steps * latency, 0.0))


def rows_of(case: Case, n: int) -> np.ndarray:
    """Random rows."""
    return np.random.default_rng(0).standard_normal((n, case.features), dtype=np.float32)


def seconds_of(cluster: xpulab.XPUCluster, case: Case, n: int, repeats: int) -> tuple[float, float]:
    """Median seconds of a case on so many rows, and the share in which engines communicated or waited."""
    held = cluster.scatter(rows_of(case, n))
    found = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        report = case.call(held)
        seconds = time.perf_counter() - started
        shared = np.mean([engine.phases["communicate"] + engine.phases["wait"] for engine in report.engines])
        found.append((seconds, shared / seconds))
    del held
    return tuple(np.median(found[1:], axis=0))  # type: ignore[return-value]  # the first one compiles


def measure(arguments: argparse.Namespace, network: Any) -> dict[str, Any]:
    """Run all cases on all clusters."""
    every = cases(arguments.share)
    cores = len(os.sched_getaffinity(0))
    kept: dict[str, Any] = {"cores": cores, "alone": {}, "on a core": {}, "links": {}, "points": []}
    counts = sorted({2, *arguments.engines} - {1})
    places = [(1, None), *([(2, network)] if network is not None else [])]  # number of hosts
    for n, (hosts, where) in ((1, places[0]), *((2, place) for place in places if max(counts) > cores)):
        with engines(n, 1, where) as cluster:
            for case in every:
                sizes = [case.rows // 4, case.rows // 2, case.rows, *([2 * case.rows] if n > 1 else [])]
                seconds = [seconds_of(cluster, case, size, arguments.repeats)[0] for size in sizes]
                kept["on a core"][case.name, n, hosts] = Computation.fitted(sizes, seconds, n)
                if n == 1:
                    kept["alone"][case.name] = seconds[-1]
    for n in counts:
        for hosts, where in places:
            with engines(n, cores, where) as cluster:
                if n == 2:
                    kept["links"][hosts] = link_between(cluster)
                for case in every:
                    for kind, rows in (("strong", case.rows), ("weak", n * case.rows)):
                        seconds, share = seconds_of(cluster, case, rows, arguments.repeats)
                        kept["points"].append((case, kind, n, hosts, rows, seconds, share))
    return kept


def modelled(kept: dict[str, Any], case: Case, n: int, hosts: int, rows: int) -> float:
    """The seconds that the model gives for what was measured."""
    shared = n // kept["cores"]
    computation = kept["on a core"][(case.name, shared, hosts) if shared > 1 else (case.name, 1, 1)]
    return predicted(computation, rows, n, case.collectives, kept["links"][hosts])


def _hosts(n: int) -> str:
    return f"{n} host{'s' * (n > 1)}"


def shown(kept: dict[str, Any]) -> str:
    """The tables."""
    lines = [
        f"{_hosts(hosts)}: {1e6 * link.latency:.1f} us and {link.bandwidth / 1e9:.2f} GB/s between two ranks; "
        f"a collective takes {1e6 * link.call:.0f} us beside its messages"
        for hosts, link in kept["links"].items()
    ]
    table = []
    for case, kind, n, hosts, rows, seconds, share in kept["points"]:
        model = modelled(kept, case, n, hosts, rows)
        ideal = kept["alone"][case.name] * rows / case.rows / min(n, kept["cores"])
        table.append(
            (case.name, kind, n, hosts, f"{rows:,}", f"{1e3 * seconds:.0f}", f"{1e3 * model:.0f}",
             f"{model / seconds - 1:+.0%}", f"{ideal / seconds:.0%}", f"{share:.0%}")
        )  # fmt: skip
    titles = (
        "",
        "scaling",
        "engines",
        "hosts",
        "rows",
        "ms",
        "predicted",
        "error",
        "efficiency",
        "messages and waiting",
    )
    lines += ["", table_text(titles, table, "llrrrrrrrr", indent="")]
    lines += ["", table_text(("", "network", "1,024 engines, weak", "1,024 engines, strong", "half messages at"), [
        (case.name, name, *(f"{efficiency(kept, case, link, MOST, kind):.0%}" for kind in ("weak", "strong")), half)
        for case in {point[0].name: point[0] for point in kept["points"]}.values()
        for name, link in networks(kept).items()
        for half in [str(half_way(kept["on a core"][case.name, 1, 1], case.rows, case.collectives, link, MOST) or "-")]
    ], "llrrr", indent="")]  # fmt: skip
    return "\n".join(lines)


def networks(kept: dict[str, Any]) -> dict[str, Link]:
    """The networks of the prediction."""
    link = kept["links"][max(kept["links"])]
    ethernet = Link(link.latency, min(link.bandwidth, ETHERNET), link.call)
    return {"Ethernet, TCP": ethernet, "fabric": Link(FABRIC.latency, FABRIC.bandwidth, link.call)}


def efficiency(kept: dict[str, Any], case: Case, link: Link, n: int, kind: str) -> float:
    """The speed of each of so many engines, each with its cores, as a share of that of one."""
    computation, rows = kept["on a core"][case.name, 1, 1], case.rows * (n if kind == "weak" else 1)
    one = predicted(computation, rows / n, 1, [], link)
    if kind == "strong":
        one = predicted(computation, rows, 1, [], link) / n
    return one / predicted(computation, rows, n, case.collectives, link)


def draw(kept: dict[str, Any], path: Path) -> None:
    """Draw what was measured and what is predicted."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    colours = {}
    for case in {point[0].name: point[0] for point in kept["points"]}.values():
        colour = colours[case.name] = f"C{len(colours)}"
        points = [point for point in kept["points"] if point[0] is case]
        for hosts, marker in ((1, "o"), (2, "s")):
            there = [point for point in points if point[3] == hosts]
            models = [modelled(kept, case, n, hosts, rows) for _, _, n, _, rows, _, _ in there]
            left.scatter([1e3 * m for m in models], [1e3 * point[5] for point in there], s=22, color=colour,
                         marker=marker, label=f"{case.name}, {_hosts(hosts)}" if there else None)  # fmt: skip
        counts = 2 ** np.arange(int(np.log2(MOST)) + 1)
        for axes, kind in ((middle, "weak"), (right, "strong")):
            for name, link in networks(kept).items():
                style = "-" if name == "fabric" else "--"
                values = [efficiency(kept, case, link, int(n), kind) for n in counts]
                axes.plot(counts, values, style, color=colour, label=f"{case.name}, {name}")
                half = half_way(kept["on a core"][case.name, 1, 1], case.rows, case.collectives, link, MOST)
                if kind == "strong" and half is not None:
                    axes.plot(half, efficiency(kept, case, link, half, kind), "x", color=colour)
    ends = [0.8 * min(1e3 * point[5] for point in kept["points"]), 1.25 * max(1e3 * p[5] for p in kept["points"])]
    left.plot(ends, ends, color="0.6", linewidth=1, zorder=0)
    left.fill_between(ends, [0.8 * e for e in ends], [1.2 * e for e in ends], color="0.92", zorder=-1)
    left.set(
        xscale="log", yscale="log", xlabel="predicted, ms", ylabel="measured, ms", title="1 to 4 engines, 1 and 2 hosts"
    )
    middle.set(
        xscale="log", xlabel="engines, one on each host", ylabel="efficiency", ylim=(0, 1.05), title="weak scaling"
    )
    right.set(
        xscale="log", xlabel="engines, one on each host", ylim=(0, 1.05), title="strong scaling; x: half is messages"
    )
    left.xaxis.set_minor_formatter(NullFormatter())
    left.yaxis.set_minor_formatter(NullFormatter())
    left.legend(fontsize=7)
    middle.legend(fontsize=7)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure, print, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", action="store_true", help="also on two hosts of network namespaces, as root")
    parser.add_argument(
        "--engines",
        type=int,
        nargs="+",
        help="1 and 2 are always measured; as many as cores at most, or twice as many (default: 1, 2 and 4)",
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="of the rows")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    possible = [*range(1, cores + 1), 2 * cores]
    arguments.engines = arguments.engines or [n for n in (1, 2, 4) if n in possible]
    if others := [n for n in arguments.engines if n not in possible]:
        parser.error(
            f"--engines: received {others[0]}; expected 1 to {cores}, one for each core, or {2 * cores}, two on each"
        )
    warnings.simplefilter("ignore", xpulab.exceptions.OversubscribedWarning)
    with contextlib.ExitStack() as stack:
        network = None
        if arguments.hosts:
            sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "hosts"))
            import machines

            if reason := machines.why_not():
                sys.exit(reason)
            network = stack.enter_context(machines.network(1))
        kept = measure(arguments, network)
    print(shown(kept))
    if arguments.plot is not None:
        draw(kept, arguments.plot)


if __name__ == "__main__":
    main()
