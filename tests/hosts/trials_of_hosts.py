"""Faults at random moments of real calls on a cluster over several hosts, each with a check that nothing was lost.

`python -m tests.faults --hosts 2` runs these trials on this machine and the hosts of `machines`. A trial is good if the
call has the right result, or ends with an error that says what was lost; if a next fit is right; and if no process and
no file of the lost cluster is left on any host.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from leftovers import not_of_others, processes_of, shared_memory
from machines import Host, Network

sys.path.append(str(Path(__file__).parents[1] / "faults"))

from trials import Watched, later, same

import xpulab
from xpulab.cluster import KMeans
from xpulab.deploy.mpi.command import DEFAULT
from xpulab.exceptions import XpulabError
from xpulab.sharing.program import program

__all__ = ["FAULTS", "LIMITS", "PHASES", "Bench", "Trial"]

PHASES = ("start", "scatter", "fit", "predict", "gather")
CUT = 8.0  # seconds for which a network is cut
SILENCE = 3.0  # seconds, for trials of stopped ranks; 30 by default
_LATER = 1.0  # seconds after a fault for which a short call is repeated
_CLEAN = 20.0  # seconds that the processes of a lost cluster have to end

#: Seconds from a fault to the error or the result that a user sees. New engines take some of them to start.
LIMITS = {"cut": 40.0, "gone": 20.0, "stop": SILENCE + 20}
SEEN = 20.0

_X = np.random.default_rng(0).normal(size=(400_000, 8)).astype(np.float32)
_FIT: dict[str, Any] = {"n_clusters": 64, "random_state": 0, "max_iter": 40, "tol": 0, "init": "random", "n_init": 1}
_SMALL: dict[str, Any] = {"n_clusters": 5, "random_state": 0}
_VERSION = "0.0.1"


@dataclass
class Trial:
    """The course of one trial.

    Attributes
    ----------
    fault, phase : str
    victim : str
        The host on which the fault was.
    moment : float
        Seconds from the start of the call to the fault.
    seen : float
        Seconds from the fault to the moment when the cluster saw it; 0 if it saw nothing.
    seconds : float
        Seconds from the fault to the end of the call; 0 if the call had ended before.
    outcome : str
        "done", "recovered", "told" (an error of the package), "ended" (a notebook that was killed), or a description of
        what went wrong.
    words : str
        The first line of the error.
    wrong : str
        Description of a wrong result; "" if the trial is good.
    """

    fault: str
    phase: str
    victim: str
    moment: float
    seen: float
    seconds: float
    outcome: str
    words: str
    wrong: str


class Bench:
    """A cluster over hosts, a call for each phase, and the result of the call without a fault.

    Parameters
    ----------
    network : Network
        Hosts. The first of them has two engines if there is only one; this machine has one, too.
    phases : sequence of str
        Phases of the trials to come.
    mpi : str
        Name of the MPI.
    """

    def __init__(self, network: Network, phases: Sequence[str] = PHASES, mpi: str = DEFAULT) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
        os.environ.setdefault("XPULAB_TUNE", "0")
        self.network = network
        self.mpi = mpi
        self.cluster = Watched(**arguments(network, mpi))
        self.before = set(processes_of(os.getpid()))  # of another cluster of this process
        self.memory = shared_memory()
        self.calls = calls_on(self.cluster, self)
        self.handle: Any = None
        self.reference: Any = None
        self.right: dict[str, Any] = {}
        self.usual: dict[str, float] = {}
        self._undo: list[Callable[[], Any]] = []
        self._warm: list[int] = []
        self.known: set[str] = set()
        start(self.cluster)
        self.fresh()
        for phase in dict.fromkeys([*phases, "small"]):
            for _ in range(2):
                self._prepare(phase)
                started = time.monotonic()
                self.right[phase] = self.calls[phase]()
                self.usual[phase] = min(self.usual.get(phase, np.inf), time.monotonic() - started)
        self.running = [self._kinds(host) for host in network.hosts]

    def fresh(self) -> None:
        """Send the rows again, and let new engines load their kernels, if the engines are new."""
        pids = [fact.pid for fact in self.cluster.facts]
        if pids != self._warm:
            self._warm = pids
            self.handle = self.cluster.scatter(_X)
            self.reference = KMeans(**_FIT).fit(_X)
            self.reference.predict(_X)

    def _prepare(self, phase: str) -> None:
        if phase == "start":
            self.cluster.stop()
        else:
            start(self.cluster)
            self.fresh()

    # -- a trial ------------------------------------------------------------------------------------------------------

    def trial(self, fault: str, phase: str, chance: random.Random) -> Trial:
        """Make a call again and again until a fault has come; the moment is between the start and the end of a call."""
        phase = "start" if fault == "version" else phase
        moment = 0.0 if fault == "version" else chance.uniform(0, self.usual[phase])
        if fault == "notebook":
            return self._of_a_notebook(phase, moment)
        self.cluster.silence = SILENCE if fault == "stop" else 30.0
        struck: list[float] = []
        victim: list[str] = []

        def strike() -> None:
            struck.append(time.monotonic())
            victim.append(FAULTS[fault](self, chance))

        def call() -> Any:
            if not moment:
                strike()
            with later(moment, strike) if moment else contextlib.nullcontext():
                while True:
                    found = self.calls[phase]()
                    if phase == "start" or (struck and time.monotonic() > struck[0] + _LATER):
                        return found

        error, found, outcome = "", None, "done"
        while not struck and not error:
            self._prepare(phase)
            self.cluster.seen = None
            try:
                found = call()
                outcome = "recovered" if self.cluster.seen is not None else "done"
            except (XpulabError, MemoryError) as raised:
                outcome, error = "told", str(raised)
            except Exception as raised:
                outcome, error = type(raised).__name__, str(raised) or "no words"
            moment *= 1 if struck else 0.7  # a start may be quicker than usual
        ended = time.monotonic()
        seconds = ended - struck[0] if struck else 0.0
        seen = self.cluster.seen - struck[0] if struck and self.cluster.seen is not None else 0.0
        where = victim[0] if victim else ""
        wrong = self._wrong(fault, phase, where, outcome, error, found, seconds)
        if outcome == "told" and fault != "gone" and not self.cluster.running:
            wrong = wrong or self._left_by_the_lost()
        self._undo_all()
        wrong = wrong or self._wrong_afterwards()
        return Trial(fault, phase, where, moment, seen, seconds, outcome, error, wrong)

    def _wrong(self, fault: str, phase: str, where: str, outcome: str, error: str, found: Any, seconds: float) -> str:
        if outcome in ("done", "recovered"):
            if not same(found, self.right[phase]):
                return "the result is another"
        elif outcome != "told":
            return "not an error of xpulab"
        elif not re.search(WORDS[fault].format(host=where), error):
            return f"the error does not say {WORDS[fault].format(host=where)!r}"
        elif fault not in MAY_TELL and phase not in ("start", "gather"):
            return "the call did not continue"
        if seconds > (limit := LIMITS.get(fault, SEEN)):
            return f"{seconds:.1f} s, and {limit:g} were promised"
        return ""

    def _wrong_afterwards(self) -> str:
        """Check that the next calls are right, and that nothing is left."""
        try:
            start(self.cluster)
            found = self.calls["small"]()
        except Exception as error:
            self.cluster.stop()
            return f"the next fit: {type(error).__name__}: {str(error)[:2000]}"
        if not same(found, self.right["small"]):
            return "the next fit is another"
        return self._awaited(self._left)

    def _awaited(self, left: Callable[[], list[str]]) -> str:
        deadline = time.monotonic() + _CLEAN
        while (names := set(left()) - self.known) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.known |= names  # each is told once
        return f"left: {sorted(names)}" if names else ""

    def _left(self) -> list[str]:
        """List what does not belong to the running cluster, on this machine and on the hosts."""
        assert self.cluster.engines.processes is not None
        mine = set(self.cluster.engines.processes.pids())
        here = [*self._processes(os.getpid(), mine | self.before), *self._memory()]
        folder = self.cluster.engines.processes.folder.name
        for host, usual in zip(self.network.hosts, self.running, strict=True):
            here += [f"{host.name}: {line}" for line in (self._kinds(host) - usual).elements()]
            here += [f"{host.name}: {path}" for path in files(host) if folder not in path]
        return here

    def _left_by_the_lost(self) -> str:
        def left() -> list[str]:
            here = self._processes(os.getpid(), self.before)
            return [*here, *self._memory(), *self._on_hosts()]

        return self._awaited(left)

    def _processes(self, owner: int, others: set[int]) -> list[str]:
        """The processes of this machine that serve the process `owner`, but for those in `others`."""
        others = others | {process.pid for host in self.network.hosts for process in descendants(host.pid)}
        return [f"{pid} {line}" for pid, line in processes_of(owner).items() if pid not in others]

    def _memory(self) -> list[str]:
        """The names in /dev/shm of this machine that were not there before."""
        return sorted(not_of_others(shared_memory() - self.memory))

    def _on_hosts(self) -> list[str]:
        there = [f"{host.name}: {line}" for host in self.network.hosts for line in host.processes().values()]
        return there + [f"{host.name}: {path}" for host in self.network.hosts for path in files(host)]

    @staticmethod
    def _kinds(host: Host) -> Counter[str]:
        """The kinds of the processes of a host, each with its number."""
        return Counter(kind(line) for line in host.processes().values())

    def _undo_all(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _of_a_notebook(self, phase: str, moment: float) -> Trial:
        """Kill another process that makes the call again and again."""
        self.cluster.stop()
        given = arguments(self.network, self.mpi)
        code = f"import sys; sys.path[:0] = {sys.path!r}; import trials_of_hosts as t; t.notebook({phase!r}, {given!r})"
        notebook = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert notebook.stdout is not None
        notebook.stdout.readline()
        time.sleep(moment)
        notebook.kill()
        notebook.wait()
        notebook.stdout.close()
        killed = time.monotonic()

        def left() -> list[str]:
            return [*self._processes(notebook.pid, set()), *self._memory(), *self._on_hosts()]

        wrong = self._awaited(left)
        seconds = time.monotonic() - killed
        return Trial("notebook", phase, "", moment, 0.0, seconds, "ended", "", wrong or self._wrong_afterwards())

    # -- victims ------------------------------------------------------------------------------------------------------

    def places(self) -> dict[str, int]:
        """The hosts: name -> the process of which all others of the host descend."""
        return {"": os.getpid(), **{host.name: host.pid for host in self.network.hosts}}

    def a_host(self, chance: random.Random) -> Host:
        """Choose one of the other hosts."""
        return chance.choice(self.network.hosts)

    def signal(self, chance: random.Random, words: str, number: signal.Signals, places: Sequence[str]) -> str:
        """Send a signal to a process whose command line matches, and return its host; while a cluster starts, wait."""
        deadline = time.monotonic() + 10
        where = chance.choice(places)
        while time.monotonic() < deadline:
            others = {each for host in self.network.hosts for each in descendants(host.pid)} if not where else set()
            found = []
            for process in descendants(self.places()[where]) - others:
                with contextlib.suppress(psutil.Error):
                    if re.search(words, " ".join(process.cmdline())):
                        found.append(process)
            if found:
                with contextlib.suppress(psutil.Error):
                    chance.choice(sorted(found, key=lambda each: each.pid)).send_signal(number)
                return where or "this machine"
            time.sleep(0.01)
        return "nowhere"

    def cut(self, chance: random.Random, seconds: float | None) -> str:
        """Cut the network of a host, for so many seconds or until the end of the trial."""
        host = self.a_host(chance)
        host.link("down")
        if seconds is None:
            self._undo.append(lambda: host.link("up"))
        else:
            timer = threading.Timer(seconds, host.link, ("up",))
            timer.start()
            self._undo.append(timer.join)
        return host.name

    def fill(self, chance: random.Random, folder: str) -> str:
        """Fill a disk of a host until the end of the trial."""
        host = self.a_host(chance)
        root = f"/proc/{host.pid}/root{folder}"
        about = os.statvfs(root)
        used = (about.f_blocks - about.f_bfree) * about.f_bsize
        host.run("mount", "-o", f"remount,size={used + (64 << 10)}", folder)
        name = f"{root}/xpulab-hosts-full"
        with contextlib.suppress(OSError), open(name, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

        def empty() -> None:
            os.unlink(name)
            host.run("mount", "-o", "remount,size=50%", folder)

        self._undo.append(empty)
        return host.name

    def age(self, chance: random.Random) -> str:
        """Install another version of xpulab on a host until the end of the trial."""
        host = self.a_host(chance)
        source = Path(xpulab.__file__).with_name("_version.py")
        altered = Path(self.network.ssh_config).with_name("altered.py")
        altered.write_text(source.read_text().replace(f'"{xpulab.__version__}"', f'"{_VERSION}"'))
        host.run("mount", "--bind", str(altered), str(source))
        self._undo.append(lambda: host.run("umount", str(source)))
        return host.name

    def close(self) -> None:
        """Stop the cluster, and require that nothing is left on any host."""
        self._undo_all()
        self.cluster.stop()
        if left := self._left_by_the_lost():
            raise RuntimeError(left)


def arguments(network: Network, mpi: str) -> dict[str, Any]:
    """The arguments of a cluster over this machine and the hosts: three engines at least."""
    more = 3 - len(network.hosts)
    names = [f"{network.address}:1", *(f"{host.name}:{max(1, more)}" for host in network.hosts)]
    return {"hosts": ",".join(names), "ssh_config": network.ssh_config, "display": "none", "mpi": mpi}


def start(cluster: xpulab.XPUCluster) -> None:
    """Start a cluster of more engines than cores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", xpulab.exceptions.OversubscribedWarning)
        cluster.start()


def calls_on(cluster: xpulab.XPUCluster, held: Any) -> dict[str, Callable[[], Any]]:
    """The calls by phase. `held` has the rows and the model that they use."""

    def started() -> np.ndarray:
        start(cluster)
        return np.array(cluster.size)

    def fitted(parameters: dict[str, Any]) -> tuple[np.ndarray, ...]:
        model = KMeans(**parameters).fit(_X)
        return model.cluster_centers_, model.labels_

    return {
        "start": started,
        "scatter": lambda: np.array(cluster.scatter(_X).counts),
        "fit": lambda: fitted(_FIT),
        "predict": lambda: held.reference.predict(_X),
        "gather": lambda: held.handle.gather(),
        "small": lambda: fitted(_SMALL),
    }


def notebook(phase: str, given: dict[str, Any]) -> None:
    """Make a call again and again, in the process that will be killed."""
    cluster = xpulab.XPUCluster(**given)
    held = type("Held", (), {})()
    calls = calls_on(cluster, held)
    if phase != "start":
        start(cluster)
        held.reference, held.handle = KMeans(**_FIT).fit(_X), cluster.scatter(_X)
    print("begun", flush=True)
    while True:
        calls[phase]()
        if phase == "start":
            cluster.stop()


def descendants(pid: int) -> set[psutil.Process]:
    """The processes below a process, in this machine's numbers."""
    with contextlib.suppress(psutil.Error):
        return set(psutil.Process(pid).children(recursive=True))
    return set()


def kind(line: str) -> str:
    """What a process is, by the beginning of its command line: a module of Python, or a program."""
    program, *others = line.split()[:3]
    return others[1] if others[:1] == ["-m"] else os.path.basename(program)


def files(host: Host) -> list[str]:
    """The folders of clusters on a host, and names in its shared memory.

    The folder of this run's clusters does not count, which hosts make that have none; what is in it counts.
    """
    found = host.run("sh", "-c", "find /tmp -mindepth 1 -maxdepth 2 -path '*xpulab-*'; find /dev/shm -mindepth 1")
    without = {"", os.environ.get("XPULAB_RUNTIME_DIR", "")}
    return [line for line in found.split("\n") if line not in without and "xpulab-hosts-" not in line]


# How command lines begin; mpiexec's goes on with the engines'.
_ENGINE = rf"^{re.escape(' '.join(program('xpulab.engine')))}( |$)"  # not the one that asks for the devices
_AGENT, _RELAY, _CONTROLLER = (
    rf"-m xpulab\.deploy\.{name}" for name in ("remote.agent", "remote.relay", "processes.controller")
)
_KILL, _STOP = signal.SIGKILL, signal.SIGSTOP


def _there(bench: Bench) -> list[str]:
    return [host.name for host in bench.network.hosts]


FAULTS: dict[str, Callable[[Bench, random.Random], str]] = {
    "kill": lambda bench, chance: bench.signal(chance, _ENGINE, _KILL, list(bench.places())),
    "stop": lambda bench, chance: bench.signal(chance, _ENGINE, _STOP, list(bench.places())),
    "cut": lambda bench, chance: bench.cut(chance, CUT),
    "gone": lambda bench, chance: bench.cut(chance, None),
    "controller": lambda bench, chance: bench.signal(chance, _CONTROLLER, _KILL, [""]),
    "relay": lambda bench, chance: bench.signal(chance, _RELAY, _KILL, [""]),
    "mpiexec": lambda bench, chance: bench.signal(chance, r"^\S*mpiexec", _KILL, [""]),
    "proxy": lambda bench, chance: bench.signal(chance, r"^\S*(hydra_pmi_proxy|orted|prted)", _KILL, _there(bench)),
    "agent": lambda bench, chance: bench.signal(chance, _AGENT, _KILL, _there(bench)),
    "sshd": lambda bench, chance: bench.signal(chance, r"^sshd: ", _KILL, _there(bench)),
    "full": lambda bench, chance: bench.fill(chance, "/tmp"),
    "shm": lambda bench, chance: bench.fill(chance, "/dev/shm"),
    "notebook": lambda bench, chance: "",  # a process of its own: `Bench._of_a_notebook`
    "version": lambda bench, chance: bench.age(chance),
}

#: What an error must say after a fault.
WORDS = {
    "kill": r"rank \d|an engine|{host}",
    "stop": r"rank \d|an engine|{host}",
    "cut": "{host}",
    "gone": "{host}",
    "controller": "controller",
    "relay": "relay",
    "mpiexec": "mpiexec",
    "proxy": r"{host}|rank \d|connection to another host",
    "agent": "{host}",
    "sshd": "{host}|mpiexec",
    "full": "No space left",
    "shm": "{host}|No space left",
    "version": rf"{{host}}: it has xpulab {re.escape(_VERSION)} \(here {re.escape(xpulab.__version__)}\)",
}

#: Faults that last, so that no engines can be started again.
MAY_TELL = ("cut", "gone", "full", "shm")
