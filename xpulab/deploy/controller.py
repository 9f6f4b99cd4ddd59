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
    # The controller forks its heart monitor. A forked child does not inherit threads, so it needs its own thread to end
    # with the controller.
    os.register_at_fork(after_in_child=lambda: owner.end_with(os.getppid()))

    from ipyparallel.controller.app import IPController
    from ipyparallel.controller.hub import Hub
    from traitlets.config import Config

    # Without this, the hub would parse every message and keep a record of every call for ever, which nobody reads.
    Hub.save_broadcast_request = Hub.save_broadcast_result = lambda *_: None

    class Controller(IPController):
        """A controller that ends if its heart monitor ends.

        Without a heart monitor no engine can register, and registered engines end after 40 s.
        """

        def start(self) -> None:
            self.loop.add_callback(lambda: owner.end_with(self.heartmonitor_process.pid))
            super().start()

    # CurveZMQ authenticates messages, but ipyparallel warns if they have no signature. CurveZMQ also rejects repeated
    # messages, so the signatures of the last 65,536 messages need not be kept.
    Controller.launch_instance(config=Config(Session=Config(key=secrets.token_hex(32).encode(), digest_history_size=0)))


if __name__ == "__main__":  # the controller starts children with multiprocessing, which may import this file again
    main()
