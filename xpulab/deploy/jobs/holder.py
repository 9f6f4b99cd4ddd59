"""``python -m xpulab.deploy.jobs.holder``: holds the nodes of a job that xpulab has submitted.

``hold NAME --limit S`` is the program of the job's script. It runs until it hears that the cluster has ended, or until
it has heard nothing for the limit, and its end ends the job. ``sign NAME`` runs on the same node, by srun or ssh. It
passes on the signs of life that the `keeper` writes to its standard input, and tells the other of its end.

The two talk through a socket that has a name and no file, so that nothing is left of it. Only processes of the same
user are heard. The notebook's host needs no open port.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import struct
import sys
import time

__all__ = ["END", "SIGN", "hold", "sign"]

SIGN, END = b".", b"!"

_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid of a sender: struct ucred of unix(7)
_START = 20.0  # seconds that the script may take until it listens
_BEGIN = 10  # times the limit that the first sign may take: the notebook's side looks at the queue now and then only


def hold(name: str, limit: float) -> str:
    """Wait until the notebook's side is gone. Returns why, or nothing if it has said so itself.

    Parameters
    ----------
    name : str
        Name of the job.
    limit : float
        Seconds without a sign after which the notebook's side is gone.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mine:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        mine.bind(f"\0{name}")
        heard, patience = time.monotonic(), _BEGIN * limit
        while (left := heard + patience - time.monotonic()) > 0:
            mine.settimeout(left)
            with contextlib.suppress(TimeoutError):
                message, about, _, _ = mine.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
                if about and _CREDENTIALS.unpack(about[0][2])[1] == os.getuid():
                    if message == END:
                        return ""
                    heard, patience = time.monotonic(), limit
    return f"xpulab: nothing was heard of the notebook for {patience:g} s, so this job ends"


def sign(name: str) -> None:
    """Pass on the signs from standard input until it ends, or until nobody hears them any more."""
    patience = time.monotonic() + _START
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mine:
        while message := os.read(sys.stdin.fileno(), 1 << 16):
            try:
                mine.sendto(message[-1:], f"\0{name}")
                patience = 0.0
            except ConnectionRefusedError:
                if time.monotonic() > patience:  # the job has ended, of which ssh does not know
                    return
        with contextlib.suppress(ConnectionRefusedError):
            mine.sendto(END, f"\0{name}")


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(prog="python -m xpulab.deploy.jobs.holder", description="Hold the nodes of a job.")
    parser.add_argument("what", choices=("hold", "sign"))
    parser.add_argument("name", help="the job's name")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds without a sign after which the job ends")
    options = parser.parse_args()
    if options.what == "sign":
        sign(options.name)
    elif why := hold(options.name, options.limit):
        sys.exit(why)  # with status 1, by which the scheduler tells this end from that of a job that was cancelled


if __name__ == "__main__":
    main()
