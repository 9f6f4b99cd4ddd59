"""Measures the cost of the live views: the same fit with and without them, in turns, in a Jupyter kernel.

python benchmarks/views.py --seconds 6 --repeats 5

A client receives the kernel's messages. "watched" is with the view of the cluster and the view of the fit, and
"unwatched" without any view.
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
seen = {{"watched": [], "unwatched": []}}
for turn in range({repeats}):
    for kind in ("watched", "unwatched") if turn % 2 else ("unwatched", "watched"):
        if kind == "watched":
            widgets.install(get_ipython())
            display(cluster)
        seen[kind].append(fit(iterations))
        widgets.uninstall()
cluster.stop()
print(json.dumps(dict(seen, iterations=iterations)))
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
    watched = sum(seconds for seconds, _ in answer["watched"])
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
    (watched, busy), (unwatched, idle) = (np.array(found[kind]).T for kind in ("watched", "unwatched"))
    ratios, share = watched / unwatched, busy / watched - idle / unwatched
    rows = [
        ("a fit without views", f"{np.median(unwatched):.2f} s", f"{unwatched.min():.2f} s"),
        ("the same with views", f"{np.median(watched):.2f} s", f"{watched.min():.2f} s"),
        ("ratio of a pair", f"{np.median(ratios):.3f}", f"{watched.min() / unwatched.min():.3f}"),
        (
            "the kernel's CPU time for views, of one core",
            f"{100 * np.median(share):.1f} %",
            f"{100 * share.min():.1f} %",
        ),
        ("messages a second", f"{found['messages']:.1f}", ""),
        ("bytes a second", f"{found['bytes']:,.0f}", ""),
    ]
    head = f"{arguments.rows:,} x 14, k=127, {found['iterations']} iterations"
    print(table_text((head, "median", "least"), rows, "lrr", indent=""))


if __name__ == "__main__":
    main()
