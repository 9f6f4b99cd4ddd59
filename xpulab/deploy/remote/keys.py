"""Makes a key for ssh that xpulab uses besides the user's own, and installs it on hosts."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xpulab.deploy.launchers import ssh
from xpulab.deploy.network.addresses import Address, is_here
from xpulab.exceptions import ClusterStartError, UsageError
from xpulab.report.rendering import Displayed, block, escape, plain, table_html, table_text

__all__ = ["HostKey", "Keys", "make_keys"]

_TIMEOUT = 60.0  # seconds that a host has to answer


@dataclass(frozen=True)
class HostKey:
    """A host, and whether ssh reaches it without a password.

    Attributes
    ----------
    name : str
        The host as ssh knows it.
    state : str
        "reached", "installed" (and reached), or "not reached".
    to_type : str
        What to type in a terminal if ssh does not reach the host.
    said : str
        What ssh said then.
    """

    name: str
    state: str
    to_type: str = ""
    said: str = ""


@dataclass(frozen=True)
class Keys(Displayed):
    """xpulab's key for ssh, and the hosts that accept it. A notebook shows them as a table.

    Attributes
    ----------
    key : str
        The file of the private key.
    made : bool
        Whether this call has made it.
    hosts : tuple of HostKey
    """

    key: str
    made: bool
    hosts: tuple[HostKey, ...]

    @property
    def ready(self) -> bool:
        """Whether ssh reaches all hosts."""
        return not any(host.to_type for host in self.hosts)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-serialisable values."""
        return {**asdict(self), "ready": self.ready}

    def __str__(self) -> str:
        table = table_text(_HEADER, map(_row, self.hosts), _ALIGN)
        return "\n".join(["Keys for ssh", table, *(f"  {plain(note)}" for note in self._notes())])

    def _repr_html_(self) -> str:
        table = table_html(_HEADER, map(_row, self.hosts), _ALIGN, caption="Keys for ssh")
        return block("keys", [table, *(f'<div class="xpu-note">{escape(note)}</div>' for note in self._notes())])

    def _notes(self) -> Iterator[str]:
        yield f"xpulab's key is {self.key}" + ", which this call has made" * self.made
        for host in self.hosts:
            if host.to_type:
                yield f"{host.name}: ssh said: {host.said or 'nothing'}; type in a terminal: {host.to_type}"
        if self.ready and self.hosts:
            names = ",".join(host.name for host in self.hosts)
            yield f"ssh reaches all hosts without a password; to look at them, type: %xpu_cluster hosts {names}"


_HEADER = ("host", "state")
_ALIGN = "ll"


def _row(host: HostKey) -> tuple[object, ...]:
    return host.name, host.state


def make_keys(
    addresses: Sequence[Address],
    ssh_config: str | os.PathLike[str] | None = None,
    *,
    terminal: bool | None = None,
) -> Keys:
    """Make a key for ssh, if there is none yet, and install it on the hosts that ssh does not reach without a password.

    The password is asked for by ssh itself, once for each host. ssh checks the keys of the hosts as always.

    Parameters
    ----------
    addresses : sequence of Address
        The hosts; this host is left out.
    ssh_config : path-like, optional
        File with ssh's configuration; by default the user's and the system's.
    terminal : bool, optional
        Whether there is a terminal in which ssh can ask for a password; by default this is found out. Without one, the
        result says what to type in a terminal.

    Returns
    -------
    Keys

    Raises
    ------
    UsageError
        If the file with ssh's configuration cannot be read.
    ClusterStartError
        If this host has no ssh, or the key cannot be written.
    """
    config = None if ssh_config is None else os.path.abspath(ssh_config)
    if config is not None and not os.access(config, os.R_OK):
        raise UsageError(f"--ssh-config: received {config!r}, expected a file that you may read")
    if terminal is None:
        terminal = sys.stdin is not None and sys.stdin.isatty()
    key = ssh.key_file()
    try:
        made = _made(key)
        names = [each.name for each in addresses if not is_here(each.name)]
        return Keys(str(key), made, tuple(_installed(key, name, config, terminal) for name in names))
    except FileNotFoundError as error:
        raise ClusterStartError(f"this host has no {error.filename}; type: sudo apt install openssh-client") from None


def _made(key: Path) -> bool:
    """Make the key if there is none."""
    if key.exists():
        return False
    try:
        key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterStartError(f"the folder {key.parent} for the key cannot be made: {error}") from None
    done = subprocess.run(
        ssh.making(key, f"xpulab on {platform.node()}"), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        raise ClusterStartError(f"ssh-keygen could not make {key}: {done.stderr.strip()}")
    return True


def _installed(key: Path, name: str, config: str | None, terminal: bool) -> HostKey:
    """Install the key on a host, if ssh does not reach it already."""
    said = _refused(name, config)
    if said is None:
        return HostKey(name, "reached")
    words = ssh.installing(key, name, config)
    with contextlib.suppress(OSError):  # ssh-copy-id needs it for its own files
        (Path.home() / ".ssh").mkdir(mode=0o700, exist_ok=True)
    if terminal:
        subprocess.run(words)
        said = _refused(name, config)
        if said is None:
            return HostKey(name, "installed")
    return HostKey(name, "not reached", shlex.join(words), said)


def _refused(name: str, config: str | None) -> str | None:
    """Return what ssh says if it does not reach a host without a password; None if it does."""
    command = ssh.Ssh(name, config).command(["true"])
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"no answer within {_TIMEOUT:g} s"
    return done.stderr.strip()[-500:] if done.returncode else None
