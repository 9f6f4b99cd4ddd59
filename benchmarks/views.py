"""Measures the cost of the live views: the same fit with and without them, in turns, in a Jupyter kernel.

python benchmarks/views.py --seconds 6 --repeats 5

A client receives the kernel's messages. "watched" is with the view of the cluster and the view of the fit, "boarded"
with the open board in addition, and "unwatched" without any view. The last rows are the cost of a board while nothing
runs, and of what a rank notes of each iteration whether or not a board is open.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from xpulab.report.rendering import table_text

#: The code that runs in the kernel; it prints the result as its last line.
KERNEL = """
import json, time, warnings
import numpy as np
import xpulab
from xpulab import widgets
from xpulab.cluster import KMeans
from IPython.display import display

warnings.simplefilter("ignore")
cluster = xpulab.XPUCluster({engines}, timeout=120).start()
X = np.random.default_rng(0).normal(size=({rows}, 14)).astype(np.float32)
held = cluster.scatter(X)


def fit(iterations):
    started, used = time.perf_counter(), time.process_time()
    KMeans(127, init=X[:127], n_init=1, max_iter=iterations, tol=0).fit(held)
    return time.perf_counter() - started, time.process_time() - used


fit(5)
pace = fit(25)[0] / 25
iterations = max(20, int({seconds} / pace))
kinds = ("watched", "boarded", "unwatched")
seen = {{kind: [] for kind in kinds}}


def show(kind):
    if kind != "unwatched":
        widgets.install(get_ipython())
        display(cluster)
    if kind == "boarded":
        display(xpulab.board(cluster))
        widgets._boards[cluster].ask("views", 1)  # as a page that shows it


for turn in range({repeats}):
    for kind in kinds if turn % 2 else kinds[::-1]:
        show(kind)
        seen[kind].append(fit(iterations))
        widgets.uninstall()
show("boarded")
fit(iterations)
started, used = time.perf_counter(), time.process_time()
time.sleep({seconds})
idle = (time.process_time() - used) / (time.perf_counter() - started)
widgets.uninstall()


def noting(task, n=100_000):
    import time

    started = time.perf_counter()
    for iteration in range(n):
        task.task.note_iteration(1, iteration)
    return (time.perf_counter() - started) / n


noted = min(cluster.run(noting))
cluster.stop()
print(json.dumps(dict(seen, iterations=iterations, idle=idle, noted=noted)))
"""


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the fits in a kernel: seconds and CPU seconds of each fit, and messages and bytes per second of the views."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    sizes: list[int] = []
    printed = ""
    try:

        def take(message: dict[str, Any]) -> None:
            nonlocal printed
            kind, content = message["msg_type"], message["content"]
            if kind == "stream" and content["name"] == "stdout":
                printed += content["text"]
            elif kind == "error":
                raise RuntimeError("\n".join(content["traceback"]))
            elif kind in ("display_data", "update_display_data", "comm_msg"):
                sizes.append(len(json.dumps(content)))

        source = KERNEL.format(**vars(arguments))
        client.execute_interactive(source, output_hook=take, timeout=3600, store_history=False)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    answer = json.loads(printed.splitlines()[-1])
    watched = sum(seconds for kind in ("watched", "boarded") for seconds, _ in answer[kind])
    return {**answer, "messages": len(sizes) / watched, "bytes": sum(sizes) / watched}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=6.0, help="about how long a fit takes")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of fits")
    arguments = parser.parse_args()
    found = measured(arguments)
    (watched, busy), (boarded, both), (unwatched, idle) = (
        np.array(found[kind]).T for kind in ("watched", "boarded", "unwatched")
    )
    ratios, share = watched / unwatched, busy / watched - idle / unwatched
    of_boards, share_of_boards = boarded / watched, both / boarded - busy / watched
    rows = [
        ("a fit without views", f"{np.median(unwatched):.2f} s", f"{unwatched.min():.2f} s"),
        ("the same with views", f"{np.median(watched):.2f} s", f"{watched.min():.2f} s"),
        ("ratio of a pair", f"{np.median(ratios):.3f}", f"{watched.min() / unwatched.min():.3f}"),
        (
            "the kernel's CPU time for views, of one core",
            f"{100 * np.median(share):.1f} %",
            f"{100 * share.min():.1f} %",
        ),
        ("the same with a board", f"{np.median(boarded):.2f} s", f"{boarded.min():.2f} s"),
        ("ratio to the fit with views", f"{np.median(of_boards):.3f}", f"{boarded.min() / watched.min():.3f}"),
        (
            "the kernel's CPU time for the board, of one core",
            f"{100 * np.median(share_of_boards):.1f} %",
            f"{100 * share_of_boards.min():.1f} %",
        ),
        ("the same while nothing runs", f"{100 * found['idle']:.1f} %", ""),
        ("noting an iteration on a rank", f"{1e6 * found['noted']:.1f} µs", ""),
        ("messages a second", f"{found['messages']:.1f}", ""),
        ("bytes a second", f"{found['bytes']:,.0f}", ""),
    ]
    head = f"{arguments.rows:,} x 14, k=127, {found['iterations']} iterations"
    print(table_text((head, "median", "least"), rows, "lrr", indent=""))


if __name__ == "__main__":
    main()
