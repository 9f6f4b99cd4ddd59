"""Commands on another host, by the user's own ssh.

ssh never asks for a password here, because a notebook cannot answer. It checks the keys of hosts as the user's
configuration says; a host whose key is not known is refused.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ssh", "options"]

_CONNECT = 10  # seconds after which a host that does not answer counts as not reachable
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
    """

    host: str
    config: str | None = None

    def command(self, words: Sequence[str]) -> list[str]:
        """The command line that runs a command on the host, in its root folder.

        From the user's folder there, Python would import a file that has the name of a module.
        """
        return ["ssh", *options(self.config), "-T", "--", self.host, f"cd / && exec {shlex.join(words)}"]


def options(config: str | None) -> list[str]:
    """ssh's options for connections that ask the user nothing."""
    settings = {"BatchMode": "yes", "ConnectTimeout": _CONNECT, "ServerAliveInterval": _ALIVE}
    return [*(() if config is None else ("-F", config)), *(f"-o{name}={value}" for name, value in settings.items())]
