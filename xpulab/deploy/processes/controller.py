"""Run ipyparallel's controller, which ends with the notebook that started it.

The command is ``python -m xpulab.deploy.processes.controller``.
"""

from __future__ import annotations

import functools
import gc
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

from xpulab.deploy.network.ports import claimed, ports, reserved
from xpulab.libraries.bare_packages import bare
from xpulab.sharing import owner

_END = 5.0  # seconds that the engines have to end after their notebook
_LONGEST = 3000  # milliseconds between two heartbeats of engines that are not new


def _ever_slower(beat: Callable[[Any], None]) -> Callable[[Any], None]:
    """`HeartMonitor.beat`, which is called less and less often after the last engine has registered.

    An engine counts as registered after two beats, so the first beats follow each other quickly. If all beats did, an
    idle engine would use five times as much processor time.
    """

    def beat_and_wait(monitor: Any) -> None:
        known = len(monitor.hearts)
        beat(monitor)
        all_known = known and len(monitor.hearts) == known
        period = monitor.caller.callback_time * 1.1 if all_known else monitor.period
        monitor.caller.callback_time = min(period, _LONGEST)

    return beat_and_wait


def _leave_nothing(folder: str) -> None:
    """End what users' code has started on the engines, after the notebook or the engines have ended.

    The folder of a cluster that ends with its notebook is removed, too. That of a detached cluster stays, so that those
    who look for the cluster learn that it is gone.
    """
    from xpulab.deploy.watch.descendants import end_descendants, kill, marked

    end_descendants(folder)
    if owner.successors(folder):
        return
    until = time.monotonic() + _END
    while (left := marked(folder)) and time.monotonic() < until:  # the engines, which end with the notebook, too
        time.sleep(0.05)
    kill(left)  # mpiexec waits a quarter of an hour for a host that cannot be reached, and ignores SIGTERM meanwhile
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run the controller until it is told to stop."""
    gc.disable()  # what modules make is never garbage
    pid = int(os.environ.get("XPULAB_OWNER", "0"))
    if pid:
        folder = os.environ["XPULAB_FOLDER"]
        owner.end_with(pid, functools.partial(owner.successors, folder), functools.partial(_leave_nothing, folder))
    # The controller forks its heart monitor. A forked child does not inherit threads, so it needs its own thread to end
    # with the controller.
    owner.end_forks_with_this()

    bare("ipyparallel", Dependency="controller.dependency")
    bare("jupyter_client", write_connection_file="connect")
    # ipyparallel's scheduler of single tasks is not used, and would import NumPy, a fifth of this process's start.
    sys.modules["numpy"] = None  # type: ignore[assignment]
    import psutil  # noqa: F401 -- jupyter_client imports it after ipyparallel has put the user's folder on the path
    import zmq
    from ipyparallel.controller.app import IPController
    from ipyparallel.controller.heartmonitor import HeartMonitor
    from ipyparallel.controller.hub import Hub
    from traitlets.config import Config

    del sys.modules["numpy"]

    among = ports(os.environ.get("XPULAB_PORTS") or None)
    for_engines = claimed(among) if among else None

    HeartMonitor.beat = _ever_slower(HeartMonitor.beat)

    # Without this, the hub would parse every message and keep a record of every call for ever, which nobody reads.
    Hub.save_broadcast_request = Hub.save_broadcast_result = lambda *_: None

    class Controller(IPController):  # type: ignore[misc]
        """A controller that ends if its heart monitor ends.

        Without a heart monitor no engine can register, and registered engines end after 40 s.
        """

        def start(self) -> None:
            # Engines register when this runs. They learn the longest period from the hub.
            self.hub.heartmonitor_period = _LONGEST
            # No scheduler listens on this port, and every client and engine would try to connect to it seven times a
            # second. These sockets take the connections, and no messages arrive.
            nobody = [self.context.socket(zmq.ROUTER) for _ in range(2)]
            self.bind(nobody[0], self.client_url("task"))
            self.bind(nobody[1], self.engine_url("task"))
            self.loop.add_callback(lambda: owner.end_with(self.heartmonitor_process.pid))
            gc.freeze()
            gc.enable()
            super().start()

        def next_port(self, pool_name: str = "common") -> int:
            # Clients, and the other pools, use the loopback interface, where no firewall is.
            if pool_name != "engine" or for_engines is None:
                return reserved()
            if (port := next(for_engines, None)) is None:
                raise SystemExit(f"no port of {among} is free for the controller; type other ones: --ports FIRST-LAST")
            return port

    # CurveZMQ authenticates messages, but ipyparallel warns if they have no signature. CurveZMQ also rejects repeated
    # messages, so the signatures of the last 65,536 messages need not be kept.
    Controller.launch_instance(config=Config(Session=Config(key=secrets.token_hex(32).encode(), digest_history_size=0)))


if __name__ == "__main__":  # the controller starts children with multiprocessing, which may import this file again
    main()
