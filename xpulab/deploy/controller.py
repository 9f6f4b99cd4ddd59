"""``python -m xpulab.deploy.controller``: ipyparallel's controller, ending when the notebook that started it ends."""

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

    # Nobody asks the hub what became of a call, of which it would keep a line for ever, and read all that passes.
    Hub.save_broadcast_request = Hub.save_broadcast_result = lambda *_: None

    class Controller(IPController):
        """It ends with its heart monitor: no engine can register without, and those that have leave 40 s later."""

        def start(self) -> None:
            self.loop.add_callback(lambda: owner.end_with(self.heartmonitor_process.pid))
            super().start()

    # CurveZMQ would do: with it ipyparallel leaves messages unsigned, but then warns of that.
    # It takes no message twice, either: no need to keep the signatures of the last 65,536.
    Controller.launch_instance(config=Config(Session=Config(key=secrets.token_hex(32).encode(), digest_history_size=0)))


if __name__ == "__main__":  # the controller starts children with multiprocessing, which may import this file again
    main()
