"""Ask another host, by ssh or srun, what a cluster needs to know of it, and say why a host does not answer.

`xpulab.deploy.remote.describe_host` is the program that answers there.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import shlex
import subprocess
import tempfile
import time
from collections.abc import Sequence

from xpulab.deploy.launchers import choice as schedulers
from xpulab.deploy.launchers.scheduler import Job
from xpulab.deploy.launchers.ssh import CONNECT, Ssh
from xpulab.deploy.remote.describe_host import Answer, Question
from xpulab.deploy.remote.messages import Lines
from xpulab.sharing.program import program

__all__ = ["Asked"]

_TIMEOUT = 60.0  # seconds that a host has to answer; a first import from a network's disk takes long
_END = 2.0  # seconds that the program has to end by itself after its last answer

_BY_SSH = 255  # exit status of an ssh that has not reached the host; otherwise it is that of the host's shell

#: What ssh says -> what is wrong, and what to type.
_OF_SSH = (
    ("Host key verification failed", "its key is not known, or has changed; compare it, and type once: {ssh}{name}"),
    (
        "Permission denied",
        "ssh has no key for it; type: %xpu_cluster hosts --make-keys {name} (or, with a key of your own, in a "
        "terminal: ssh-copy-id {options}{name})",
    ),
    ("Could not resolve hostname", "its name is not known; give its address, or a Host entry in ~/.ssh/config"),
    ("Connection refused", "no sshd answers there; start it, or give its port in ~/.ssh/config"),
    ("timed out|No route to host|Network is unreachable", "it cannot be reached; check its network: ping {name}"),
)

_SHELL = r"(?im)^(?!\w*Error: )"  # a line that is not Python's about an exception

#: The same for what the host's shell or Python says, or srun in their place.
_OF_HOST = (
    ("No module named '?xpulab", "xpulab is not installed there; type: {ssh}{name} {python} -m pip install xpulab"),
    (rf"{_SHELL}.*(not found|no such file)", "it has no {python}; install xpulab there in the same folder as here"),
    (
        rf"{_SHELL}.*(permission denied|exec format error|cannot execute)",
        "its {python} cannot be executed ({said}); look at its rights, and those of its folders, type: {ssh}{name} "
        "ls -l {python}",
    ),
)


class Asked:
    """A host that is asked.

    Parameters
    ----------
    name : str
        The host as ssh or the scheduler knows it.
    config : str or None
        File with ssh's configuration.
    job : Job or None
        The scheduler's job whose node it is.
    arguments : sequence of str
        Arguments of the program `xpulab.deploy.remote.describe_host`.
    connect : int
        Seconds after which a host that does not answer ssh counts as not reachable.

    Attributes
    ----------
    problem : str
        Why the host does not answer, and what to type; empty if it does.
    """

    def __init__(
        self, name: str, config: str | None, job: Job | None, arguments: Sequence[str], connect: int = CONNECT
    ) -> None:
        self._name, self._config, self._job = name, config, job
        self._scheduler = schedulers.module(job.scheduler) if job else None
        self._program = program("xpulab.deploy.remote.describe_host", *arguments)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- `end` closes it
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: list[Answer] = []
        self.problem = ""
        launcher = (
            self._scheduler.launcher(name, job, config) if self._scheduler and job else Ssh(name, config, connect)
        )
        try:
            self._process = subprocess.Popen(
                launcher.command(self._program),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
            assert self._process.stdout is not None
            self._lines: Lines[Answer] = Lines(self._process.stdout.fileno())
        except FileNotFoundError:
            self.problem = "this host has no ssh; type: sudo apt install openssh-client"
            if self._scheduler and not self._scheduler.BY_SSH:
                self.problem = f"{self._scheduler.REACH} was not found on PATH; {self._scheduler.INSTALL}"

    def say(self, question: Question) -> None:
        """Send a question, to which the program answers."""
        if not self.problem:
            assert self._process is not None
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # `answer` says why it has ended
                self._process.stdin.write(json.dumps(question).encode() + b"\n")
                self._process.stdin.flush()

    def answer(self) -> Answer:
        """Return the next answer; an empty one if there is a `problem`."""
        deadline = time.monotonic() + _TIMEOUT
        while not self.problem and not self._waiting:
            left = deadline - time.monotonic()
            select.select([self._lines.descriptor], [], [], max(left, 0))
            self._waiting += self._lines.read()
            if not self._waiting and left <= 0:
                self.problem = f"it did not answer within {_TIMEOUT:g} s"
            elif not self._waiting and not self._lines.open:
                self.problem = self._reason()
        return self._waiting.pop(0) if self._waiting else {}

    def end(self) -> None:
        """End the program. May be called twice."""
        if self._process is not None:
            with self._process as process:
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
                try:
                    process.wait(0 if self.problem else _END)
                except subprocess.TimeoutExpired:
                    process.kill()
            self._process = None
        self._errors.close()

    def _reason(self) -> str:
        """Return what is wrong, and what to type, from what ssh, srun or the host has said."""
        assert self._process is not None
        try:
            status = self._process.wait(_END)
        except subprocess.TimeoutExpired:
            status = 0
        self._errors.seek(0)
        said = (self._errors.read() or self._lines.other).decode(errors="replace").strip()
        by_ssh = self._scheduler is None or self._scheduler.BY_SSH
        options = "" if self._config is None else f"-F {self._config} "
        reach = f"ssh {options}"
        if self._scheduler and self._job and not by_ssh:
            reach = shlex.join(self._scheduler.launcher("", self._job, self._config).command([])[:-1]) + " "
        known = {"name": self._name, "python": self._program[0], "options": options, "ssh": reach}
        for pattern, cure in _OF_SSH if by_ssh and status == _BY_SSH else _OF_HOST:
            if found := re.search(pattern, said):
                return cure.format(**known, said=found[0].strip())
        return f"the program that looks for devices did not answer; it said: {said[-2000:] or 'nothing'}"
