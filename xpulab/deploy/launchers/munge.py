"""Texts that no one reads on their way between the nodes of a Slurm cluster, by munge.

Slurm does not encrypt what srun passes to a process. munge, by which Slurm knows its users, encrypts a text with the
key of the cluster, and decrypts it once, for one user.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence

__all__ = ["MungeError", "opened", "sealed", "socket_in"]

_ANSWER = 10.0  # seconds that munge has to answer

_SOCKET = re.compile(r"^AuthInfo\s*=.*?\bsocket=([^\s,]+)", re.MULTILINE)

_USER = re.compile(r"^UID:.*\((\d+)\)$", re.MULTILINE)


class MungeError(Exception):
    """munge is missing, or refuses a text."""


def socket_in(config: str) -> str:
    """Return the socket of munge's daemon from what ``scontrol show config`` prints; empty for munge's usual socket."""
    found = _SOCKET.search(config)
    return found[1] if found else ""


def sealed(text: str, socket: str = "") -> str:
    """Return a text that only this user can open, once, on a node of the same cluster.

    Parameters
    ----------
    text : str
    socket : str
        What `socket_in` returns.

    Raises
    ------
    MungeError
        If munge is missing, or does not answer.
    """
    words = ["munge", f"--restrict-uid={os.getuid()}", "--cipher=aes128"]
    return _said(words, socket, text).strip()


def opened(text: str, socket: str = "") -> str:
    """Return the text that this user has sealed.

    Parameters
    ----------
    text : str
        What `sealed` returns.
    socket : str
        As for `sealed`.

    Raises
    ------
    MungeError
        If munge is missing, does not answer, or says that another user has sealed the text, or that it was opened
        before.
    """
    about, _, content = _said(["unmunge", "--keys=STATUS,UID"], socket, text).partition("\n\n")
    if _USER.findall(about) != [str(os.getuid())]:
        raise MungeError(f"a text of another user was received; unmunge says: {about}")
    return content


def _said(words: Sequence[str], socket: str, text: str) -> str:
    words = [*words, *[f"--socket={socket}"] * bool(socket)]
    try:
        done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=_ANSWER, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise MungeError(str(error)) from None
    if done.returncode:
        about = done.stdout.partition("\n\n")[0]  # the text follows also if it was opened before
        raise MungeError(f"{words[0]} says: {' '.join([*done.stderr.split(), *about.split()])}")
    return done.stdout
