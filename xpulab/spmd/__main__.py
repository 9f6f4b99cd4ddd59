"""``python -m xpulab.spmd script.py``: the program that ``xpulab run`` starts on each rank.

It binds the rank to its cores, loads the oneAPI runtime, and then runs the script as ``python script.py`` does. The
first two steps must come before the script imports dpctl.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import runpy
import signal
import sys
import threading
import time
import traceback
import types
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypedDict

from xpulab.console.commands import numbers
from xpulab.engine import torch
from xpulab.engine.torchrun import INTERFACE, LOOPBACK, Port, Torchrun
from xpulab.libraries import libmpi, oneapi
from xpulab.sharing import owner
from xpulab.sharing.hangs import Watch
from xpulab.sharing.program import close_input

if TYPE_CHECKING:
    from xpulab.sharing.board import Board

#: The same name as in `xpulab.deploy.script`, whose import takes half a second.
RUN = "XPULAB_RUN"

_INTERRUPTED = 130  # exit status after Ctrl-C
_FIRST, _LOOK = 2.0, 0.5  # seconds until the first look at where the script is, and between two looks


class Run(TypedDict, total=False):
    """What ``xpulab run`` tells its ranks: its pid, its pipes by their descriptors, and the path of the board.

    A rank adds its number, and, when its script has ended, that it has told so.
    """

    pid: int
    out: list[int]
    err: list[int]
    status: int
    ports: list[int]
    board: str
    mpi: dict[str, object]
    variables: list[str]
    rank: int
    told: bool


def main() -> None:
    """Run the script, and end this process with the script's exit status."""
    parser = argparse.ArgumentParser(prog="python -m xpulab.spmd", description="Run a script as one rank.")
    parser.add_argument("--rank", type=int, default=0, help="number of this rank, if xpulab run has started it")
    parser.add_argument("--cores", type=numbers, help="logical CPUs of this rank; by default all CPUs of this process")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-m", dest="kind", action="store_const", const="module", help="script is a module's name")
    how.add_argument("-c", dest="kind", action="store_const", const="code", help="script is Python code")
    parser.set_defaults(kind="file")
    parser.add_argument("script", help="the file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args()
    if sys.path[0] == os.getcwd():  # this program was started without `xpulab run`
        del sys.path[0]
    for stream in (sys.stdout, sys.stderr):  # whole lines, so that lines of several ranks do not mix
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    run: Run | None = json.loads(os.environ.pop(RUN, "null"))
    if run is not None:
        owner.end_with(run["pid"])
        run["rank"] = options.rank
        _send_output(run)
        _torchrun(run)
        if options.rank:
            close_input()
    if options.cores:
        oneapi.confine(options.cores)
    oneapi.load()
    if run is not None:
        _watch(run)
        owner.tell_exits(functools.partial(_tell_exit, run))
    with libmpi.checked_at_import(run["mpi"]) if run is not None else contextlib.nullcontext():
        status = _run(options.script, options.arguments, kind=options.kind)
    sys.stdout.flush()
    sys.stderr.flush()
    if run is not None:
        _tell_status(run, status)
        if status == _INTERRUPTED:
            _await_end()
    if status:
        _end_all(status, alone=run is None)


def _send_output(run: Run) -> None:
    """Redirect standard output and standard error to the pipes of this rank, also for libraries and children."""
    for stream, pipes in ((sys.stdout, run["out"]), (sys.stderr, run["err"])):
        with _pipe(run, pipes[run["rank"]]) as pipe:
            os.dup2(pipe.fileno(), stream.fileno())


def _torchrun(run: Run) -> None:
    """Set torchrun's variables, with a port of rank 0, which tells the other ranks its number by a pipe."""
    rank, size, width = run["rank"], len(run["out"]), len("65535")
    port = Port()
    number = port.place[1]
    if rank == 0:
        with _pipe(run, run["ports"][1]) as pipe:
            pipe.write(f"{number:{width}}".encode() * (size - 1))
    else:
        with _pipe(run, run["ports"][0], "rb") as pipe:
            number = int(pipe.read(width))
    os.environ.setdefault(INTERFACE, "lo")
    places = [(LOOPBACK, number)] * size
    Torchrun(rank, port, places, [0] * size, run["variables"], is_script=True, prepare=torch.prepare)


def _pipe(run: Run, descriptor: int, mode: str = "wb") -> IO[bytes]:
    """Return a pipe of ``xpulab run``, open for writing or reading."""
    return open(f"/proc/{run['pid']}/fd/{descriptor}", mode, buffering=0)


def _tell_status(run: Run, status: int) -> None:
    """Tell ``xpulab run`` that the script has ended on this rank."""
    run["told"] = True
    with _pipe(run, run["status"]) as pipe:
        pipe.write(f"{run['rank']} {status}\n".encode())


def _tell_exit(run: Run, status: int) -> None:
    """Tell ``xpulab run`` that this rank leaves by `os._exit`, if its script has not ended."""
    if not run.get("told"):
        with _pipe(run, run["status"]) as pipe:
            pipe.write(f"{run['rank']} {status} left\n".encode())


def _watch(run: Run) -> None:
    """Start a thread that ends this rank with an error if it waits for other ranks for ever."""

    def opened() -> Board:
        from xpulab.sharing.board import Board  # imports NumPy, which takes longer than many a script

        return Board.open(run["board"])

    watch = Watch(opened, run["rank"], 1)
    watch.answer_signals()

    def look() -> None:
        time.sleep(_FIRST)
        while not (hang := watch.look()):
            time.sleep(_LOOK)
        sys.stdout.flush()
        print("".join(watch.stack()) + f"NeverAnsweredError: no rank can answer any more: {hang}", file=sys.stderr)
        sys.stderr.flush()
        _tell_status(run, 1)
        os._exit(1)

    threading.Thread(target=look, name="xpulab-watch", daemon=True).start()


class ScriptEnded(Exception):
    """The script has failed on this rank; the argument is its exit status."""


def on_engine(script: str, source: bytes, arguments: list[str], kind: str = "file") -> None:
    """Run a script on an engine of a cluster, which has loaded all runtimes.

    Parameters
    ----------
    script : str
        Its path, which this host need not have; a module's name, or Python code.
    source : bytes
        The code of a file.
    arguments : list of str
    kind : {"file", "module", "code"}
        What `script` is.

    Raises
    ------
    ScriptEnded
        If its exit status is not 0.
    """
    main, words = sys.modules["__main__"], sys.argv[:]
    try:
        status = _run(script, arguments, source, kind)
    finally:  # the engine's own come back: later processes of a cell look for functions there
        sys.modules["__main__"], sys.argv[:] = main, words
    if status:
        raise ScriptEnded(status)


def _run(script: str, arguments: list[str], source: bytes | None = None, kind: str = "file") -> int:
    """Run the script, and return its exit status."""
    sys.argv[:] = ["-c" if kind == "code" else script, *arguments]
    folder = str(Path(script).resolve().parent) if kind == "file" else os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)  # as the last one: a file beside the script replaces no module of xpulab's packages
    try:
        if kind == "module":
            runpy.run_module(script, run_name="__main__", alter_sys=True)
            return 0
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        if kind == "file":
            module.__file__ = script
        name, code = ("<string>", script) if kind == "code" else (script, source or Path(script).read_bytes())
        exec(compile(code, name, "exec", dont_inherit=True), vars(module))
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except libmpi.Alone as alone:
        print(alone, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        traceback.print_exception(type(error), error, trace.tb_next if trace is not None else None)
        from xpulab.engine.cells.advice import advice  # with the text of a kernel's example

        print(advice(error), end="", file=sys.stderr)
        return 1
    return 0


def _await_end() -> None:
    """Wait until ``xpulab run`` ends this rank. If it left, mpiexec would end others that still save their work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        signal.pause()


def _end_all(status: int, alone: bool) -> None:
    """End this process at once, and the other ranks with it, unless ``xpulab run`` ends them."""
    MPI = sys.modules.get("mpi4py.MPI")
    if alone and MPI is not None and MPI.Is_initialized() and not MPI.Is_finalized():
        world = getattr(sys.modules.get("xpulab.engine.users_mpi.interruptible"), "WORLD", MPI.COMM_WORLD)
        world.Abort(status)
    os._exit(status)


if __name__ == "__main__":
    main()
