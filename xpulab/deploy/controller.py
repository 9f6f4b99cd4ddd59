"""``python -m xpulab.deploy.controller``: ipyparallel's controller, ending when the notebook that started it ends."""

from __future__ import annotations

import os

from xpulab import owner


def main() -> None:
    """Run the controller until it is told to stop."""
    pid = int(os.environ.get("XPULAB_OWNER", "0"))
    if pid:
        owner.end_with(pid)
    # The controller forks its heart monitor, which would outlive it: threads, the one above too, do not pass a fork.
    os.register_at_fork(after_in_child=lambda: owner.end_with(os.getppid()))

    from ipyparallel.controller.app import main as controller

    controller()


if __name__ == "__main__":  # the controller starts children with multiprocessing, which may import this file again
    main()
