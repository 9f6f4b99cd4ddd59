"""Commands on another host, by the user's own ssh.

ssh never asks for a password here, because a notebook cannot answer. It checks the keys of hosts as the user's
configuration says; a host whose key is not known is refused.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

__all__ = ["CONNECT", "HURRIED", "Ssh", "installing", "key_file", "making", "options"]

#: Seconds after which a host that does not answer counts as not reachable; the second number is for a host that was
#: reached before, while a call waits.
CONNECT, HURRIED = 10, 3

#: Names of the keys that ssh tries by itself, unless it is told of another one.
_USUAL = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")

_ALIVE = 5  # seconds between two signs of life of a connection, of which ssh misses three before it ends


@dataclass(frozen=True)
class Ssh:
    """Starts commands on another host.

    Attributes
    ----------
    host : str
        The host as the user names it to ssh.
    config : str or None
        File with ssh's configuration; by default the user's and the system's.
    connect : int
        Seconds after which a host that does not answer counts as not reachable.
    """

    host: str
    config: str | None = None
    connect: int = CONNECT

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on the host, in its root folder.

        From the user's folder there, Python would import a file that has the name of a module.
        """
        return ["ssh", *options(self.config, self.connect), "-T", "--", self.host, f"cd / && exec {shlex.join(words)}"]


def options(config: str | None, connect: int = CONNECT) -> list[str]:
    """ssh's options for connections that ask the user nothing."""
    settings = {"BatchMode": "yes", "ConnectTimeout": connect, "ServerAliveInterval": _ALIVE}
    set_up = [*_configured(config), *(f"-o{name}={value}" for name, value in settings.items())]
    return set_up + [word for key in _keys() for word in ("-i", str(key).replace("%", "%%"))]


def key_file() -> Path:
    """Return the file of xpulab's own key, in the user's folder for data; `xpulab.deploy.remote.keys` makes it."""
    return Path(platformdirs.user_data_dir("xpulab")) / "ssh" / "id_ed25519"


def _keys() -> list[Path]:
    """Return the keys to try besides those of the configuration: xpulab's own, if there is one, and the usual ones."""
    if not key_file().exists():
        return []
    usual = (Path.home() / ".ssh" / name for name in _USUAL)
    return [key_file(), *(key for key in usual if os.access(key, os.R_OK))]


def _configured(config: str | None) -> list[str]:
    return [] if config is None else ["-F", config]


def making(key: Path, comment: str) -> list[str]:
    """Return the command line that makes a key without a passphrase.

    A notebook cannot answer when ssh asks for one.
    """
    return ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(key)]


def installing(key: Path, host: str, config: str | None) -> list[str]:
    """Return the command line that installs a key on a host.

    It asks for the password there, and about an unknown host key.
    """
    return ["ssh-copy-id", "-i", f"{key}.pub", *_configured(config), host]
