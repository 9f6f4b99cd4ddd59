"""ipyparallel's settings for the controller and the engines, which make a start quick. This module starts nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from traitlets.config import Config

from xpulab.deploy.mpi.command import Command, shown
from xpulab.deploy.network.ports import Ports
from xpulab.sharing.program import program

__all__ = ["ENGINES", "controller_settings", "engine_settings", "engines_shown"]


def controller_settings(folder: Path, owner: int, address: str = "", ports: Ports | None = None) -> Config:
    """ipyparallel's settings for the controller.

    Parameters
    ----------
    folder : pathlib.Path
        Private folder of the cluster: connection files and logs.
    owner : int
        Pid of the process with which the cluster ends unless it is detached; 0 for none.
    address : str
        Address of this host at which engines of other hosts reach it; empty if there are none. Clients always use the
        loopback interface.
    ports : Ports, optional
        Ports of this host at which engines reach it; by default any.
    """
    config = Config()
    config.Cluster.load_profile = False
    # The engines import their packages while the controller starts, and then wait for its connection file.
    config.Cluster.send_engines_connection_env = False
    config.Cluster.delay = 0
    config.LocalControllerLauncher.controller_cmd = program("xpulab.deploy.processes.controller")
    config.LocalControllerLauncher.controller_args = [
        "--IPController.client_ip=127.0.0.1",
        f"--IPController.engine_ip={address or '127.0.0.1'}",
        # The controller then is one process with threads, instead of seven processes.
        "--IPController.use_threads=True",
        # A client without the keys of the connection file is rejected before its messages are read.
        "--IPController.enable_curve=True",
        "--TaskScheduler.scheme_name=none",
        # One scheduler sends every SPMD task to all engines, so that they get tasks in the same order from all clients.
        "--IPController.broadcast_scheduler_depth=0",
        # This is the period of the first heartbeats. The controller must not drop an engine that misses beats: the
        # board and mpiexec show whether engines are lost, and a stopped process may continue.
        "--HeartMonitor.period=100",
        "--HeartMonitor.max_heartmonitor_misses=1000000",
        # The controller does not store results.
        "--IPController.db_class=NoDB",
    ]
    config.LocalControllerLauncher.environment = {
        **_ipythons_folder(folder),
        "XPULAB_OWNER": str(owner),
        "XPULAB_FOLDER": str(folder),
        "XPULAB_PORTS": str(ports or ""),
    }
    return config


def _ipythons_folder(folder: Path) -> dict[str, str]:
    """Return the environment variables for IPython's files, which must not be in a home that is full or read-only."""
    return {"IPYTHONDIR": str(folder / "ipython")}


#: The program of a rank, and its arguments.
_ENGINE = tuple(program("xpulab.engine"))
_ENGINE_ARGUMENTS = (
    "--Session.digest_history_size=0",  # CurveZMQ rejects repeated messages, so no signatures are kept
    "--IPEngine.max_heartbeat_misses=10",  # of the controller, 3.5 s each: an engine that was left alone ends
    "--IPEngine.enable_nanny=False",  # one process per engine, which passes on signals; the board does this
    "--IPEngine.init_mpi=",
)


def engines_shown(command: Command, n: int) -> str:
    """Return the command line that starts the engines, as a shell takes it."""
    mpiexec, *options = command.words
    return shown([mpiexec, "-n", str(n), *options, *_ENGINE, *_ENGINE_ARGUMENTS], command.environment)


#: Variables that ipyparallel and `engine_settings` set for the engines.
ENGINES = ("IPP_CLUSTER_ID", "IPP_PROFILE_DIR", "IPYTHONDIR", "MPLBACKEND", "XPULAB_ENGINE")


def engine_settings(
    folder: Path,
    owner: int,
    variables: Mapping[str, str],
    command: Command,
    n: int,
    relayed: bool = False,
    helped: bool = False,
) -> Config:
    """ipyparallel's settings for the engines.

    Parameters
    ----------
    folder : pathlib.Path
    owner : int
        As for `controller_settings`.
    variables : mapping of str to str
        The user's environment variables for all engines.
    command : Command
        MPI's command line.
    n : int
        Number of engines, with the helper rank.
    relayed : bool
        Whether there are engines on other hosts.
    helped : bool
        Whether one of the ranks is the helper rank.
    """
    config = Config()
    config.MPIEngineSetLauncher.mpi_cmd = [command.words[0]]
    config.MPIEngineSetLauncher.mpi_args = list(command.words[1:])
    config.MPIEngineSetLauncher.engine_cmd = list(_ENGINE)
    config.MPIEngineSetLauncher.engine_args = list(_ENGINE_ARGUMENTS)
    config.MPIEngineSetLauncher.environment = {
        **command.environment,
        **_ipythons_folder(folder),
        # The notebook's backend would draw in the notebook's process.
        "MPLBACKEND": "module://xpulab.engine.cells.figures",
        **variables,
        "XPULAB_ENGINE": json.dumps(
            {
                "owner": owner,
                "folder": str(folder),
                "relayed": relayed,
                "helped": helped,
                "cwd": os.getcwd(),
                "mpi": command.expected(n),
                "placements": str(folder / "placements.json"),
                "connection": str(folder / "security" / "ipcontroller-engine.json"),
            }
        ),
    }
    return config
