"""``python -m xpulab.engine``: the program that mpiexec starts on each rank.

The order matters: the rank is known from MPI, and its device and cores from the notebook, which looks for devices
while the engines import what needs none. They are set before NumPy and the oneAPI runtime load, and only then does the
ipyparallel engine start, with `run` as the one name that the notebook calls.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from typing import Any

from xpulab import oneapi
from xpulab.sharing import owner

_ANY = ("0.0.0.0", "::")
_LONGEST_INIT = 600  # seconds that the ranks may take to find each other


def main() -> None:
    """Start this rank's engine; returns when the cluster stops."""
    try:
        options = json.loads(os.environ["XPULAB_ENGINE"])
        if options["owner"]:
            owner.end_with(options["owner"], functools.partial(owner.successors, options["folder"]))

        # MPI_Init waits for the other ranks, and holds Python's global interpreter lock: the thread that watches the
        # notebook does not run meanwhile. If the notebook and another rank are killed now, the kernel's alarm ends us.
        signal.alarm(_LONGEST_INIT)
        from mpi4py import MPI

        signal.alarm(0)
        _serve(options, MPI.COMM_WORLD.rank)
    except BaseException:
        # A rank that only ended would leave the others waiting for it, and the notebook for them all: mpiexec ends
        # them when a rank is killed that MPI knows of, and the notebook looks for those that it does not know of yet.
        traceback.print_exc()
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def _serve(options: dict[str, Any], rank: int) -> None:
    _close_launcher_port()

    from ipyparallel.engine.app import IPEngine
    from ipyparallel.engine.kernel import IPythonParallelKernel

    _import_without_debugpy()
    placement = _await_file(options["placements"])[rank]
    os.environ.update(placement["environment"])
    if placement["cores"]:
        oneapi.confine(placement["cores"])
    oneapi.load()

    from xpulab.engine import engine, tasks  # noqa: F401 -- registers the tasks

    engine.ignore_interrupts()
    this = engine.Engine(placement)
    _await_file(options["connection"])
    # What an engine does is on the board, and what it prints belongs in its log: with messages that nobody reads, an
    # empty task takes a quarter longer.
    IPythonParallelKernel._publish_status = lambda *_, **__: None
    IPEngine.redirect_output = lambda *_: None
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    app = IPEngine.instance(user_ns={"xpulab_engine": this, "xpulab_run": this.run}, id=this.rank)
    app.initialize(sys.argv[1:])
    engine.ignore_interrupts()
    app.start()


def _import_without_debugpy() -> None:
    """Import what ipykernel would import later, without debugpy: no debugger reaches an engine, and it takes 0.3 s."""
    if "debugpy" not in sys.modules:
        sys.modules["debugpy"] = None  # type: ignore[assignment]
        importlib.import_module("ipykernel.debugger")
        del sys.modules["debugpy"]


def _await_file(path: str) -> Any:
    """What is in this JSON file, as soon as all of it is there; the notebook ends those who wait in vain."""
    while True:
        with contextlib.suppress(FileNotFoundError, ValueError), open(path) as file:
            return json.load(file)
        time.sleep(0.02)


def _close_launcher_port() -> None:
    """Close the port of MPI's launcher, which listens on every interface and is needed no more.

    The ranks inherit the socket, and shutting it down ends it for all who hold it; the launcher does not mind.
    """
    for name in os.listdir("/proc/self/fd"):
        try:
            held = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # not a socket, or the folder's own descriptor
            continue
        with held:
            inet = held.family in (socket.AF_INET, socket.AF_INET6)
            if inet and held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and held.getsockname()[0] in _ANY:
                with contextlib.suppress(OSError):  # another rank was first
                    held.shutdown(socket.SHUT_RDWR)


main()
