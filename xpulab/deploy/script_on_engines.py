"""Run a user's script on the engines of a cluster, for `xpulab run` on several hosts or in a job.

The cluster brings the output of all hosts, Stop, and the end of all processes on each host. On one host, `script`
starts the ranks without a cluster.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from xpulab.deploy.cluster import XPUCluster
from xpulab.deploy.script import Files
from xpulab.deploy.tasks.pickling import packed
from xpulab.exceptions import EngineLostError

__all__ = ["run_on_engines"]

_REST = 0.5  # seconds in which output of the other ranks arrives after a rank has failed

#: The last line of a rank's traceback if its script has failed.
_STATUS = re.compile(r"ScriptEnded: (\d+)")

#: What an `EngineLostError` says of an engine that has ended.
_LOST = re.compile(r"(?:status|signal:?) (\d+)")


class _Failed(Exception):
    """A rank has failed."""


def run_on_engines(
    cluster: XPUCluster,
    program: Callable[..., None],
    script: str,
    source: bytes,
    arguments: Sequence[str],
    files: Files,
) -> int:
    """Run a script on all engines, and print what they print, each line with its ranks.

    The caller ends the cluster, also after a Ctrl-C, and so ends ranks that still run.

    Parameters
    ----------
    cluster : XPUCluster
        A running cluster.
    program : callable
        What a rank calls: ``program(task, script, source, arguments)``. It raises an exception whose type is called
        ``ScriptEnded`` with the exit status, if this is not 0.
    script : str
        Path of the script on this host, a module's name, or Python code.
    source : bytes
        The code of a file; other hosts need not have the file.
    arguments : sequence of str
        Its arguments.
    files : Files
        Where what each rank prints is written, too.

    Returns
    -------
    int
        0, or the exit status of the rank that failed first, as `script.run` returns it.
    """
    about = (script, source, list(arguments))
    failed: list[int] = []
    since = float("inf")

    def watch(records: Any, number: int) -> None:
        nonlocal since
        following(records, number)
        failed.extend(rank for rank, record in enumerate(records) if record["failed"] == number and rank not in failed)
        since = min(since, time.monotonic()) if failed else since
        if time.monotonic() - since > _REST:
            raise _Failed

    try:
        with cluster.tasks.following(files.add, files.timestamps) as following:
            try:
                call = {"call": packed(program, about, {}), "profile": False, "transcripts": following.paths}
                replies = cluster.tasks.replies("run", call, watch)
                ends = [(reply["engine"]["rank"], reply["result"] or {}) for reply in replies]
                failed += [rank for rank, end in ends if end.get("outcome") == "error" and rank not in failed]
                if any(end.get("outcome") == "interrupted" for _, end in ends):
                    return 130
            except _Failed:
                pass
            following.finish()
            said = following.raised_on(failed[0]) if failed else ""
    except EngineLostError as lost:
        print(lost.reason, file=sys.stderr)
        found = _LOST.search(lost.reason)
        signalled = "signal" in lost.reason
        return 1 if found is None else int(found[1]) + 128 * signalled
    if not failed:
        return 0
    found = _STATUS.search(said)
    status = int(found[1]) if found else 1
    print(f"xpulab run: rank {failed[0]} ended with status {status}, and so all ranks were ended", file=sys.stderr)
    return status
