"""Hosts for tests on one machine: network namespaces on a bridge, each with its own sshd, processes and /dev/shm.

The machine itself takes part, as a notebook's host does: it has an address on the bridge. Each host has its own UTS,
PID, IPC, mount and time namespaces, so that a pid, a path in /proc, a file in /tmp, shared memory or a monotonic clock
of one host means nothing on another. This needs root, and the packages openssh-server, iproute2 and nftables.

`python tests/hosts/machines.py COMMAND ...` runs a command on the machine while there is one such host, node1.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

import xpulab

__all__ = ["Host", "Network", "network", "why_not"]

_REPOSITORY = Path(xpulab.__file__).resolve().parents[1]
_TOOLS = ("ip", "nft", "setpriv", "unshare", "nsenter", "sshd", "ssh", "ssh-keygen")
_ALONE = ("--uts", "--mount", "--ipc", "--pid", "--time")
_SSH_CONFIG = "/etc/ssh/ssh_config"
_AHEAD = 1_000_000  # seconds by which the monotonic clock of each host is ahead of that of the host before it
_NAME = re.compile(r"\bxpu(\d+)[a-z]?\b")
_START = 10.0  # seconds that an sshd has to start
_END = 10.0  # seconds that the processes of a host have to end

#: A firewall that takes connections to ssh only, and packets of connections that its host has opened.
_FIREWALL = """
table inet {name} {{
    chain input {{
        type filter hook input priority 0; policy accept;
        iifname != "{interface}" accept
        ct state established,related accept
        tcp dport {{ {ports} }} accept
        meta l4proto tcp {answer}
    }}
}}
"""
_ANSWERS = {"DROP": "drop", "REJECT": "reject with tcp reset"}

#: What runs as the first process of a host. Its /tmp is empty but for the repository and the folder with the keys.
_INIT = """
set -e
hostname {name}
mount -t tmpfs tmpfs /dev/shm
mkdir -p {own}/tmp
mount -t tmpfs tmpfs {own}/tmp
for kept in {repository} {own}; do
    case $kept in /tmp/*) mkdir -p {own}/tmp/${{kept#/tmp/}}; mount --rbind $kept {own}/tmp/${{kept#/tmp/}};; esac
done
mount --move {own}/tmp /tmp
mount -t tmpfs tmpfs /run
mkdir -p /run/sshd
mount --bind {own}/hosts /etc/hosts
exec {sshd} -D -e -f {own}/{name}.sshd
"""


def why_not() -> str:
    """Why there can be no such hosts here; "" if there can."""
    if os.geteuid() != 0:
        return "hosts of network namespaces need root"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(missing)} not found; type: apt-get install openssh-server openssh-client iproute2 nftables"
    tried = subprocess.run(["unshare", "--net", *_ALONE, "--fork", "true"], check=False, capture_output=True, text=True)
    return f"this machine allows no namespaces: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes
    ----------
    name : str
        Its name, which ssh knows with the configuration `Network.ssh_config`.
    address : str
        Its IPv4 address.
    pid : int
        Its first process, in the machine's numbers.
    """

    name: str
    address: str
    pid: int

    def run(self, *words: str) -> str:
        """Run a command on the host, and return what it prints."""
        return subprocess.run(
            ["nsenter", "-t", str(self.pid), "--all", *words], check=True, capture_output=True, text=True
        ).stdout

    def processes(self) -> dict[int, str]:
        """The processes of the host that are not its sshd: pid on this host -> command line."""
        lines = self.run("ps", "-eo", "pid=,args=", "ww").splitlines()
        every = {int(pid): line for pid, line in (line.split(None, 1) for line in lines)}
        ours = ("ps -eo", "sshd", "[sshd]")
        return {pid: line for pid, line in every.items() if pid != 1 and not line.startswith(ours)}

    def files(self) -> set[str]:
        """What is in /dev/shm and /tmp of the host, without what was put there when it was made."""
        made = {str(_REPOSITORY.relative_to("/tmp")).split("/")[0]} if _REPOSITORY.is_relative_to("/tmp") else set()
        shared = {f"/dev/shm/{name}" for name in self.run("ls", "-A", "/dev/shm").split()}
        names = set(self.run("ls", "-A", "/tmp").split()) - made
        return shared | {f"/tmp/{name}" for name in names if not name.startswith("xpulab-hosts-")}

    @contextlib.contextmanager
    def firewall(self, how: str, ports: str = "") -> Iterator[None]:
        """A context in which the host's firewall lets in only ssh, and connections to these ports.

        It answers all others ("REJECT") or none of them ("DROP").
        """
        with _firewall(["nsenter", "-t", str(self.pid), "--all"], "xpu", "eth0", how, ports):
            yield

    def link(self, state: str) -> None:
        """Cut the host's network ("down"), or connect it again ("up")."""
        self.run("ip", "link", "set", "eth0", state)


@dataclass(frozen=True)
class Network:
    """Hosts that reach each other, and this machine.

    Attributes
    ----------
    hosts : tuple of Host
    address : str
        The address of this machine among them.
    ssh_config : str
        File with which ssh reaches the hosts by their names. It checks the hosts' keys.
    bridge : str
        The interface of this machine among them.
    """

    hosts: tuple[Host, ...]
    address: str
    ssh_config: str
    bridge: str

    @contextlib.contextmanager
    def firewalls(self, how: str, ports: str) -> Iterator[None]:
        """A context in which all hosts have a firewall, and this machine has one towards them; see `Host.firewall`."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_firewall([], self.bridge, self.bridge, how, ports))
            for host in self.hosts:
                stack.enter_context(host.firewall(how, ports))
            yield

    def known_to(self, *words: str) -> list[str]:
        """The command line of a command on this machine for which ssh knows the hosts without further options.

        The command and its children see `ssh_config` in place of the system's configuration; other processes do not.
        """
        mount = f'mount --bind {shlex.quote(self.ssh_config)} {_SSH_CONFIG} && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, "sh", *words]


def _run(*words: str, text: str | None = None) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True, input=text)


@contextlib.contextmanager
def _firewall(reach: list[str], name: str, interface: str, how: str, ports: str) -> Iterator[None]:
    """A context with a firewall on the host of these first words of a command line."""
    let_in = ", ".join(["22", *([ports] if ports else [])])
    rules = _FIREWALL.format(name=name, interface=interface, ports=let_in, answer=_ANSWERS[how])
    _run(*reach, "nft", "-f", "-", text=rules)
    try:
        yield
    finally:
        _run(*reach, "nft", "delete", "table", "inet", name)


@contextlib.contextmanager
def network(size: int, owner: int = os.getpid()) -> Iterator[Network]:
    """A context in which there are so many hosts, node1, node2 and so on. Nothing of them is left at its end.

    The pid `owner` is in the names of the network's parts: if that process has ended, the next run removes them.
    """
    _remove_old()
    tag, subnet = f"xpu{owner}", f"10.{200 + owner % 50}.{owner // 50 % 250}"
    own = Path(tempfile.mkdtemp(prefix="xpulab-hosts-"))
    started: list[subprocess.Popen[bytes]] = []
    try:
        _keys(own, [f"node{number}" for number in range(1, size + 1)], subnet)
        _run("ip", "link", "add", tag, "type", "bridge")
        _run("ip", "address", "add", f"{subnet}.254/24", "dev", tag)
        _run("ip", "link", "set", tag, "up")
        hosts = [_host(own, tag, subnet, number, started) for number in range(1, size + 1)]
        yield Network(tuple(hosts), f"{subnet}.254", str(own / "ssh_config"), tag)
    finally:
        for process in started:
            first = psutil.Process(process.pid).children()
            process.kill()  # --kill-child ends the host's first process, and the kernel with it all others
            process.wait()
            psutil.wait_procs(first, _END)
        _remove(tag, size)
        shutil.rmtree(own)


def _keys(own: Path, names: list[str], subnet: str) -> None:
    """Write the keys of the user and of the hosts, and the configurations of ssh and sshd."""
    for name in ("user", *names):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(own / name))
    known, config, hosts = [], [], ["127.0.0.1 localhost"]
    for number, name in enumerate(names, 1):
        address = f"{subnet}.{number}"
        known.append(f"{address},{name} {(own / name).with_suffix('.pub').read_text()}")
        config.append(f"Host {name} {address}\n    HostName {address}\n    HostKeyAlias {name}\n")
        hosts.append(f"{address} {name}")
        (own / f"{name}.sshd").write_text(
            f"ListenAddress {address}\nHostKey {own / name}\nAuthorizedKeysFile {own / 'user.pub'}\nPidFile none\n"
            f"UsePAM no\nStrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\nMaxStartups 100\n"
            f"SetEnv PYTHONPATH={_REPOSITORY}\n"
        )
    common = f"Host *\n    IdentityFile {own / 'user'}\n    IdentitiesOnly yes\n    BatchMode yes\n"
    (own / "known").write_text("".join(known))
    (own / "hosts").write_text("\n".join(hosts) + "\n")
    (own / "ssh_config").write_text("".join(config) + common + f"    UserKnownHostsFile {own / 'known'}\n")


def _host(own: Path, tag: str, subnet: str, number: int, started: list[subprocess.Popen[bytes]]) -> Host:
    """Make one host, and wait until its sshd answers."""
    name, space, address = f"node{number}", f"{tag}{_letter(number)}", f"{subnet}.{number}"
    _run("ip", "netns", "add", space)
    _run("ip", "link", "add", space, "type", "veth", "peer", "name", "eth0", "netns", space)
    _run("ip", "link", "set", space, "master", tag, "up")
    for words in ("address add {}/24 dev eth0", "link set eth0 up", "link set lo up"):
        _run("ip", "-n", space, *words.format(address).split())
    quoted = {"own": shlex.quote(str(own)), "repository": shlex.quote(str(_REPOSITORY))}
    init = _INIT.format(name=name, sshd=shutil.which("sshd"), **quoted)
    clock = ["--monotonic", str(number * _AHEAD)]
    alone = ["unshare", *_ALONE, *clock, "--fork", "--kill-child", "--mount-proc"]
    clean = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
    with open(own / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", space, *alone, "sh", "-c", init],
            stdout=log,
            stderr=log,
            env=clean,
        )
    started.append(process)
    deadline = time.monotonic() + _START
    while True:
        with contextlib.suppress(OSError), socket.create_connection((address, 22), 1):
            break
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the sshd of {name} does not answer: {(own / f'{name}.log').read_text()}")
        time.sleep(0.02)
    return Host(name, address, psutil.Process(process.pid).children()[0].pid)


def _letter(number: int) -> str:
    return chr(ord("a") + number - 1)


def _remove(tag: str, size: int) -> None:
    for number in range(1, size + 1):
        for words in (["link", "del", f"{tag}{_letter(number)}"], ["netns", "del", f"{tag}{_letter(number)}"]):
            subprocess.run(["ip", *words], check=False, capture_output=True)
    for words in (["ip", "link", "del", tag], ["nft", "delete", "table", "inet", tag]):
        subprocess.run(words, check=False, capture_output=True)


def _remove_old() -> None:
    """Remove what runs that were killed have left."""
    shown = subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout
    spaces = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    for pid in {int(found[1]) for found in _NAME.finditer(shown + spaces)}:
        if not psutil.pid_exists(pid):
            _remove(f"xpu{pid}", 26)


if __name__ == "__main__":
    with network(1) as made:
        ended = subprocess.run(made.known_to(*sys.argv[1:]), check=False)
    sys.exit(ended.returncode)
