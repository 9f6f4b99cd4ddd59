"""Run a user's script on ranks: mpiexec's command line from a plan, the marked output, and the exit status."""

from __future__ import annotations

import codecs
import contextlib
import itertools
import json
import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import IO, TextIO

import psutil

from xpulab.deploy.mpi import choice
from xpulab.deploy.mpi.command import DEFAULT, HERE, Command, RanksOfHost
from xpulab.deploy.mpi.command import shown as in_shell
from xpulab.deploy.network.ports import Ports
from xpulab.deploy.plan.plan import Plan
from xpulab.deploy.plan.probe import core_ranges
from xpulab.deploy.tasks.merging import Merging, stamp
from xpulab.deploy.watch.leftovers import remove_leftovers
from xpulab.exceptions import UsageError
from xpulab.sharing.board import Board
from xpulab.sharing.hangs import Hangs
from xpulab.sharing.program import program

__all__ = ["RUN", "Files", "command", "run", "shown"]

#: Variable that tells the program of a rank the pid of this process, and the pipes for the rank's output.
RUN = "XPULAB_RUN"
PROGRAM = "xpulab.spmd"  # in the command line of each rank

_KINDS: dict[str, list[str]] = {"file": [], "module": ["-m"], "code": ["-c"]}  # as Python has them
_LOOK = 0.1  # seconds between two looks at mpiexec
_GRACE = 3.0  # seconds after Ctrl-C until ranks that only wait for others are ended, and the other ones are named
_REST = 0.5  # seconds in which output of the other ranks arrives after a rank has failed
_LAST = 2.0  # seconds that mpiexec has to end
_PIECE = 1 << 16  # bytes that are read at once


def command(
    plan: Plan,
    script: str,
    arguments: Sequence[str],
    extra: Sequence[str] = (),
    mpi: str = DEFAULT,
    ports: Ports | None = None,
    kind: str = "file",
) -> Command:
    """Return the command line that starts one rank for each placement of a plan.

    Parameters
    ----------
    plan : Plan
    script : str
        Path of the script, a module's name, or Python code.
    arguments : sequence of str
        Its arguments.
    extra : sequence of str
        The user's own options for mpiexec.
    mpi : str
        Name of the MPI.
    ports : Ports, optional
        Ports on which mpiexec and the ranks listen; by default any.
    kind : {"file", "module", "code"}
        What `script` is.

    Returns
    -------
    Command

    Raises
    ------
    UsageError
        If an argument is a colon.
    OneAPIError, ClusterStartError
        If the MPI was not found.
    """
    if ":" in arguments:
        raise UsageError("the script's argument ':' was given, which separates the ranks for mpiexec; use another")
    start = choice.command(mpi, [RanksOfHost(HERE, len(plan.ranks))], extra=extra, ports=ports)
    module = choice.module(mpi)
    words = list(start.words)
    for placement in plan.ranks:
        if placement.rank:
            words.append(":")
        words += ["-n", "1", *module.of_ranks(plan.environment(placement.rank))]
        words += program(PROGRAM, "--rank", str(placement.rank))
        words += ["--cores", core_ranges(placement.cores), *_KINDS[kind], script, *arguments]
    return replace(start, words=tuple(words))


def shown(command: Command) -> str:
    """Return a command line, with its environment, as a shell takes it; each rank on a line of its own."""
    parts = [list(part) for of_rank, part in itertools.groupby(command.words, key=lambda word: word != ":") if of_rank]
    first = parts[0].index("-n")
    head, parts[0] = parts[0][:first], parts[0][first:]
    of_ranks = " : \\\n    ".join(map(shlex.join, parts))
    return f"{in_shell(head, command.environment)} \\\n    {of_ranks}"


class Files:
    """The files of ``xpulab run --output``: what each rank prints.

    Parameters
    ----------
    folder : pathlib.Path or None
        Their folder, which is made if it does not exist; without it there are no files.
    timestamps : bool
        Whether each line begins with the time at which it came; also in the output of ``xpulab run`` itself.
    """

    def __init__(self, folder: Path | None, timestamps: bool = False) -> None:
        self.timestamps = timestamps
        self._folder = folder
        self._until_the_end = contextlib.ExitStack()
        self._opened: dict[tuple[int, str], IO[str]] = {}
        self._begins: set[tuple[int, str]] = set()  # files whose next character begins a line
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"--output: received {str(folder)!r}, expected a folder for files: {error}") from None

    def add(self, rank: int, name: str, text: str) -> None:
        """Write what a rank has printed; `name` is "out" or "err"."""
        if self._folder is None or not text:
            return
        if (rank, name) not in self._opened:
            path = self._folder / f"rank-{rank}.{name}"
            self._opened[rank, name] = self._until_the_end.enter_context(path.open("w", newline=""))
            self._begins.add((rank, name))
        if self.timestamps:
            text = self._stamped(rank, name, text)
        self._opened[rank, name].write(text)
        self._opened[rank, name].flush()

    def _stamped(self, rank: int, name: str, text: str) -> str:
        now, lines = f"{stamp(time.monotonic())} ", text.splitlines(keepends=True)
        first = now if (rank, name) in self._begins else ""
        (self._begins.add if text.endswith("\n") else self._begins.discard)((rank, name))
        return first + now.join(lines)

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        self._until_the_end.close()


def run(plan: Plan, command: Command, files: Files | None = None) -> int:
    """Run a script on ranks, and print what they print, each line with its ranks.

    Ctrl-C interrupts all ranks, which may end in peace, and a second one ends them; so does the end of this process,
    and a rank that fails.

    Parameters
    ----------
    plan : Plan
    command : Command
        What `command` returns for the plan.
    files : Files, optional
        Where what each rank prints is written, too.

    Returns
    -------
    int
        0, or the exit status of the rank that failed first: 128 and the number of the signal if a signal ended it, and
        130 after Ctrl-C.
    """
    with _Output(len(plan.ranks), files or Files(None)) as output:
        board = Board.create(len(plan.ranks))
        variables = sorted({name for placement in plan.ranks for name in placement.variables})
        about = {
            **output.about(),
            "mpi": command.expected(len(plan.ranks)),
            "variables": variables,
            "board": board.path,
        }
        process = subprocess.Popen(
            command.words,
            env={**os.environ, **command.environment, RUN: json.dumps(about)},
            stdout=output.of_mpiexec,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C reaches this process only, which passes it on once
        )
        try:
            return _followed(process, output, choice.module(command.mpi), board)
        finally:
            _kill(process)
            board.close()
            remove_leftovers()


def _followed(process: subprocess.Popen[bytes], output: _Output, mpi: ModuleType, board: Board) -> int:
    """Follow the ranks until they have ended, and return the exit status of the first that failed."""
    pressed = deadline = float("inf")
    hangs, told = Hangs(board.ranks, 1), False
    while process.poll() is None and time.monotonic() < deadline:
        try:
            output.pass_on(_LOOK)
            board.ranks["ended"][[rank for rank, _ in output.statuses()]] = 1
            if pressed < float("inf"):
                left = sorted(set(range(output.size)) - {rank for rank, _ in output.statuses()})
                # Nothing interrupts a rank that waits inside of MPI.
                if all(board.ranks["waits"][rank] >= _GRACE for rank in left):
                    break
                if not told and time.monotonic() > pressed + _GRACE:
                    told = True
                    print(f"xpulab run: {_still(left)}; Ctrl-C once more ends the ranks", file=sys.stderr)
            elif not told and (hang := hangs.told()):
                told = True
                print(f"xpulab run: {hang}; Ctrl-C ends the ranks", file=sys.stderr)
            elif output.failures() and deadline == float("inf"):
                deadline = time.monotonic() + _REST
        except KeyboardInterrupt:
            if pressed < float("inf"):
                break
            pressed, deadline, told = time.monotonic(), float("inf"), False
            _interrupt(process)
    _kill(process)
    output.finish()
    return 130 if pressed < float("inf") else _status(process.returncode, output, mpi)


def _still(ranks: Sequence[int]) -> str:
    return f"rank {core_ranges(ranks)} still {'runs' if len(ranks) == 1 else 'run'}"


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Send SIGINT to the ranks, and not to mpiexec, which may end them at once."""
    ranks = [each for each in psutil.Process(process.pid).children(recursive=True) if _is_rank(each, process.pid)]
    for each in ranks:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGINT)
    if not ranks:  # they have not begun
        process.send_signal(signal.SIGINT)


def _is_rank(process: psutil.Process, mpiexec: int) -> bool:
    """Return whether a process is that of a rank, and no child of one, which may have the same command line."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = process.parent()
        alone = parent is None or parent.pid == mpiexec or PROGRAM not in parent.cmdline()
        return alone and PROGRAM in process.cmdline()
    return False


def _status(code: int, output: _Output, mpi: ModuleType) -> int:
    """Return the exit status of the first rank that failed; a message on standard error names it."""
    ended, rest = mpi.statuses(output.texts["mpiexec"].decode(errors="replace"))
    if rest:
        print(rest, file=sys.stderr)
    ends = output.ends()
    others_killed = len({rank for rank, _, _ in ends}) < output.size
    for number, (rank, status, left) in enumerate(ends):
        if status:
            return _said(rank, status, f"ended with status {status}", [each for each, _, _ in ends[:number]])
        if left and others_killed:
            return _said(rank, code if code > 0 else 1, "ended with status 0 before its script did (os._exit)")
    # A rank that has not told its status was ended by a signal or by os._exit. mpiexec ends the ranks that are left
    # with SIGKILL.
    told = {rank for rank, _ in output.statuses()}
    silent = [(rank, status) for rank, status in ended.items() if rank not in told and any(ended.values())]
    silent.sort(key=lambda each: (os.WIFSIGNALED(each[1]) and os.WTERMSIG(each[1]) == signal.SIGKILL, not each[1]))
    for rank, status in silent:
        if not status:
            return _said(rank, code if code > 0 else 1, "ended with status 0 before its script did (os._exit)")
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return _said(rank, 128 + number, f"was killed by signal {number} ({signal.strsignal(number)})")
        return _said(rank, os.WEXITSTATUS(status), f"ended with status {os.WEXITSTATUS(status)}")
    return code if code >= 0 else 128 - code


def _said(rank: int, status: int, what: str, before: Sequence[int] = ()) -> int:
    """Say how the rank has ended, and which ranks had ended their script before: it may have waited for them."""
    which = f"; rank {', '.join(map(str, sorted(before)))} had ended before, without an error" if before else ""
    print(f"xpulab run: rank {rank} {what}, and so all ranks were ended{which}", file=sys.stderr)
    return status


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End mpiexec and all processes that it has started. mpiexec may first remove its files, as Open MPI's does."""
    with contextlib.suppress(psutil.NoSuchProcess):
        mpiexec = psutil.Process(process.pid)
        started = mpiexec.children(recursive=True)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LAST)
        for each in (*started, mpiexec):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait()


class _Output:
    """Pipes for what the ranks write, for their exit statuses, and for what mpiexec itself writes.

    The ranks open the pipes through ``/proc``. So the pipes have no names, and nothing of them is left after a crash.

    Parameters
    ----------
    size : int
        Number of ranks.
    files : Files

    Attributes
    ----------
    of_mpiexec : int
        Descriptor for the output of mpiexec.
    size : int
        Number of ranks.
    texts : dict of str to bytearray
        What has come of mpiexec's output ("mpiexec"), and of the ranks' exit statuses ("status").
    """

    def __init__(self, size: int, files: Files) -> None:
        self._selector = selectors.DefaultSelector()
        self._opened: list[int] = []
        self.texts = {"mpiexec": bytearray(), "status": bytearray()}
        self._files, streams = files, {"out": sys.stdout, "err": sys.stderr}
        self._merging = {n: Merging(_printing(s), timestamps=files.timestamps) for n, s in streams.items()}
        self.size, self._ranks = size, range(size)
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {(name, rank): decoder("replace") for name in streams for rank in self._ranks}
        self._write = {name: [self._pipe(name, rank) for rank in self._ranks] for name in self._merging}
        self._status = self._pipe("status")
        self._ports = os.pipe()  # from rank 0 to the other ranks
        self._opened += self._ports
        self.of_mpiexec = self._pipe("mpiexec")

    def _pipe(self, name: str, rank: int = 0) -> int:
        read, write = os.pipe()
        self._opened += [read, write]
        os.set_blocking(read, False)
        self._selector.register(read, selectors.EVENT_READ, (name, rank))
        return write

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for descriptor in self._opened:
            os.close(descriptor)

    def about(self) -> dict[str, object]:
        """Return where the ranks find the pipes, for `xpulab.spmd`'s program."""
        return {"pid": os.getpid(), **self._write, "status": self._status, "ports": self._ports}

    def statuses(self) -> list[tuple[int, int]]:
        """Ranks whose script has ended, and its exit status, in the order of their ends."""
        return [(rank, status) for rank, status, left in self.ends() if not left]

    def ends(self) -> list[tuple[int, int, bool]]:
        """Ranks that have ended, their exit status, and whether they left by `os._exit`, in the order of their ends."""
        lines = [line.split() for line in self.texts["status"].decode().split("\n")[:-1]]
        return [(int(rank), int(status), bool(left)) for rank, status, *left in lines]

    def failures(self) -> list[tuple[int, int]]:
        """Return those of `statuses` that are not 0."""
        return [each for each in self.statuses() if each[1]]

    def pass_on(self, timeout: float) -> bool:
        """Print what the ranks have written; wait for it at most `timeout` seconds. Returns whether there was any."""
        ready = self._selector.select(timeout)
        for key, _ in ready:
            name, rank = key.data
            data = os.read(key.fd, _PIECE)
            if name in self.texts:
                self.texts[name] += data
            else:
                text = self._decoders[name, rank].decode(data)
                self._merging[name].add(rank, text)
                self._files.add(rank, name, text)
        for merging in self._merging.values():
            merging.show(self._ranks)
        return bool(ready)

    def finish(self) -> None:
        """Print the rest, after all ranks have ended."""
        while self.pass_on(0):
            pass
        for merging in self._merging.values():
            merging.show(last=True)


def _printing(stream: TextIO) -> Callable[[str], None]:
    def say(line: str) -> None:
        print(line, file=stream, flush=True)

    return say
