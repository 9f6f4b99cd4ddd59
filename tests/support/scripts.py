"""What `xpulab run` leaves to a script after Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from waiting import until

__all__ = ["require_time_after_ctrl_c"]

# A shell starts what runs in its background with SIGINT ignored.
_RUN = "import signal, sys, xpulab.cli; signal.signal(2, signal.default_int_handler); sys.exit(xpulab.cli.main())"
_SAVES = """import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
print("begun", flush=True)
try:
    if world.rank:
        time.sleep(600)
    world.recv(source=1)  # which nothing interrupts
finally:
    print("saves", world.rank, flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    print("saved", world.rank, flush=True)
"""


def require_time_after_ctrl_c(folder: Path, *words: str) -> None:
    """Check that a rank saves its work after Ctrl-C, and that the other one, which waits inside of MPI, is ended then.

    Parameters
    ----------
    folder : pathlib.Path
        For the script, and for what it prints.
    *words : str
        Options of `xpulab run`.
    """
    (folder / "script.py").write_text(_SAVES)
    command = [sys.executable, "-c", _RUN, "run", *words, "-n", "2", str(folder / "script.py"), str(folder / "there")]
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)

    def lines() -> set[str]:
        return set((folder / "said").read_text().splitlines())

    until(lambda: "[0-1] begun" in lines() or {"[0] begun", "[1] begun"} <= lines())
    process.send_signal(signal.SIGINT)
    until(lambda: any("still run; Ctrl-C once more ends the ranks" in line for line in lines()))
    assert "[1] saves 1" in lines()
    (folder / "there").touch()
    assert process.wait(timeout=120) == 130
    assert "[1] saved 1" in lines()
