"""``python -m xpulab.engine``: what mpiexec starts on each rank.

The order matters: the rank is known from MPI, its device and cores are set before the oneAPI runtime loads, and only
then does the ipyparallel engine start, with `run` as the one name that the notebook calls.
"""

from __future__ import annotations

import json
import os
import sys

from xpulab import oneapi, owner


def main() -> None:
    """Start this rank's engine; returns when the cluster stops."""
    options = json.loads(os.environ["XPULAB_ENGINE"])
    if options["owner"]:
        owner.end_with(options["owner"])

    from mpi4py import MPI

    placement = options["ranks"][MPI.COMM_WORLD.rank]
    os.environ.update(placement["environment"])
    if placement["cores"]:
        os.sched_setaffinity(0, placement["cores"])
    oneapi.load()

    from ipyparallel.engine.app import IPEngine

    from xpulab.engine import engine, tasks

    engine.ignore_interrupts()
    this = engine.Engine(placement)
    tasks.warm_up(this)
    app = IPEngine.instance(user_ns={"xpulab_engine": this, "xpulab_run": this.run}, id=this.rank)
    app.initialize(sys.argv[1:])
    engine.ignore_interrupts()
    app.start()


main()
