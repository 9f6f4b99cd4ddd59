"""``python -m xpulab.deploy.controller``: ipyparallel's controller, which ends with the notebook that started it."""

from __future__ import annotations

import functools
import os
import secrets

from xpulab.sharing import owner


def main() -> None:
    """Run the controller until it is told to stop."""
    pid = int(os.environ.get("XPULAB_OWNER", "0"))
    if pid:
        owner.end_with(pid, functools.partial(owner.successors, os.environ["XPULAB_FOLDER"]))
    # The controller forks its heart monitor, which would outlive it: threads, the one above too, do not pass a fork.
    os.register_at_fork(after_in_child=lambda: owner.end_with(os.getppid()))

    from ipyparallel.controller.app import IPController
    from ipyparallel.controller.hub import Hub
    from traitlets.config import Config

    # The hub would read every message and keep a line about every call for ever; nothing asks it for them.
    Hub.save_broadcast_request = Hub.save_broadcast_result = lambda *_: None

    class Controller(IPController):
        """Ends with its heart monitor: without it no engine can register, and registered engines leave after 40 s."""

        def start(self) -> None:
            self.loop.add_callback(lambda: owner.end_with(self.heartmonitor_process.pid))
            super().start()

    # CurveZMQ authenticates messages already, but ipyparallel warns if they are unsigned. CurveZMQ also rejects
    # repeated messages, so that the signatures of the last 65,536 need not be kept.
    Controller.launch_instance(config=Config(Session=Config(key=secrets.token_hex(32).encode(), digest_history_size=0)))


if __name__ == "__main__":  # the controller starts children with multiprocessing, which may import this file again
    main()
