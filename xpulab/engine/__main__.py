"""``python -m xpulab.engine``: the program that mpiexec starts on each rank.

The order of the steps matters. The engine first imports modules that need no device, while the notebook looks for
devices. MPI gives it its rank, and the notebook its device and cores. The engine sets these before it loads NumPy and
the oneAPI runtime. Then it starts the ipyparallel engine, of which the notebook only calls `run`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import logging
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypedDict

from xpulab.libraries import libmpi, oneapi
from xpulab.libraries.bare_packages import bare
from xpulab.sharing import owner
from xpulab.sharing.folder import ALONE, HOST, write_private
from xpulab.sharing.program import close_input
from xpulab.sharing.transcript import Writer, between

if TYPE_CHECKING:
    from mpi4py import MPI

    from xpulab.engine.engine import Engine
    from xpulab.engine.listening import Listener
    from xpulab.engine.torchrun import Torchrun

_ANY = ("0.0.0.0", "::")
_LONGEST_INIT = 600  # largest number of seconds for MPI_Init


class Options(TypedDict):
    """What the notebook tells all engines; ``helps`` is what a relay adds on its host."""

    owner: int
    folder: str
    relayed: bool
    helped: bool
    helps: bool
    cwd: str
    mpi: dict[str, object]
    placements: str
    connection: str


def main() -> None:
    """Start this rank's engine; returns when the cluster stops."""
    gc.disable()  # what modules make is never garbage, and looking through it takes a tenth of their imports
    try:
        options = json.loads(os.environ["XPULAB_ENGINE"])
        close_input()
        _go_to(options["cwd"])
        if options["relayed"]:  # the owner of an engine is a process of its host
            about = _await_file(os.path.join(options["folder"], HOST))
            options["owner"], options["helps"] = about["owner"], about.get("helps", False)
            os.environ.update(about["environment"])
        if options["owner"]:
            owner.end_with(options["owner"], functools.partial(owner.successors, options["folder"]))

        # MPI_Init waits for the other ranks, and holds Python's global interpreter lock. The thread that ends this
        # process after the notebook's end cannot run meanwhile. If the notebook and another rank are killed during
        # MPI_Init, the kernel's alarm ends this process.
        signal.alarm(_LONGEST_INIT)
        # MPICH's launcher would end if its port were closed. Open MPI's ranks inherit none.
        inherited = _listening() if options["mpi"]["mpi"] == "intel" else []
        libmpi.load(options["mpi"])
        from mpi4py import MPI

        libmpi.require_together(options["mpi"], MPI)
        signal.alarm(0)
        _close(inherited)
        if options["helped"]:
            _serve_with_helper(options)
        else:
            _serve(options, MPI.COMM_WORLD.rank)
    except libmpi.Alone as alone:
        write_private(Path(options["folder"], ALONE), str(alone))
        os.kill(os.getpid(), signal.SIGKILL)
    except BaseException:
        # The rank kills itself, because the other ranks and the notebook would wait for a rank that ends normally.
        # After MPI_Init, mpiexec then ends the other ranks; before it, the notebook notices that the rank has ended.
        traceback.print_exc()
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def _serve_with_helper(options: Options) -> None:
    """Serve as an engine, or, on the notebook's host, as the helper. The engines' world is one without the helper.

    Open MPI gives the first rank to the notebook's host, other MPIs the last one.
    """
    from mpi4py import MPI

    world, helps = MPI.COMM_WORLD, options["helps"]
    engines = world.Split(int(helps), world.rank)
    every: Any = world.Split(0, world.size if helps else world.rank)
    requests, pairs = every.Dup(), every.Dup()
    if helps:
        from xpulab.engine.hosts import helper

        gc.enable()
        helper.serve(every, requests, pairs, options["folder"], world.rank)
    else:
        setattr(MPI, "COMM_WORLD", engines)  # noqa: B010 -- mpi4py declares it final
        _serve(options, engines.rank, (every, requests, pairs), world.rank)


def _serve(options: Options, rank: int, helper: tuple[MPI.Intracomm, ...] = (), mpi_rank: int | None = None) -> None:
    _import_little()
    from ipyparallel.engine.app import IPEngine
    from ipyparallel.engine.kernel import IPythonParallelKernel
    from IPython.core.interactiveshell import InteractiveShell

    placement = _await_file(options["placements"])[rank]
    placement["mpi_rank"] = rank if mpi_rank is None else mpi_rank
    os.environ.update(placement["environment"])
    if placement["cores"]:
        oneapi.confine(placement["cores"])
    oneapi.load()

    from xpulab.engine import tasks  # noqa: F401 -- registers the tasks
    from xpulab.engine.cells import cell
    from xpulab.engine.engine import Engine
    from xpulab.engine.listening import Listener
    from xpulab.engine.waiting import ignore_interrupts

    ignore_interrupts()
    this = Engine(placement, options["relayed"], helper)
    this.torchrun = _torchrun(this)
    libmpi.unlink_files()
    if options["relayed"]:
        this.show_board(options["folder"])
    _await_file(options["connection"])
    # The engine's state is on the board, and its output goes to its log. Messages about these would make an empty task
    # take a quarter longer, and nobody reads them.
    IPythonParallelKernel._publish_status = lambda *_, **__: None
    IPEngine.redirect_output = lambda *_: None
    # Lightning takes a process with a prompt for a notebook, and forks it.
    InteractiveShell.init_prompts = lambda *_: None  # type: ignore[method-assign]
    listener = None if options["relayed"] else Listener(this, Path(options["folder"]))
    IPEngine.complete_registration = _completing(IPEngine.complete_registration, this, listener)
    IPEngine.init_signal = lambda *_: None  # SIGTERM then ends the engine at once, which has no state to save
    calls = {
        "xpulab_run": this.run_sent,
        "xpulab_names": functools.partial(cell.names, this),
        "xpulab_explained": functools.partial(cell.explained, this),
    }
    app = IPEngine.instance(user_ns={"xpulab_engine": this, **calls}, id=this.rank)
    app.initialize(sys.argv[1:])
    sys.stdout = Writer(str(between(Path(options["folder"], "log"), this.rank)))
    ignore_interrupts()
    # Cells find the user's modules here. The folder is the last one, so that no file in it replaces a module that
    # xpulab or one of its packages imports later.
    sys.path[:] = [*(folder for folder in sys.path if folder), options["cwd"]]
    gc.freeze()
    gc.enable()
    app.start()


def _torchrun(engine: Engine) -> Torchrun:
    """Tell users' code, in torchrun's words, of the ranks. All ranks call this together."""
    from xpulab.engine import torch
    from xpulab.engine.torchrun import INTERFACE, LOOPBACK, Port, Torchrun, address_of
    from xpulab.engine.users_mpi.interruptible import WORLD

    if not engine.host.several:
        os.environ.setdefault(INTERFACE, "lo")
    port = Port(address_of(os.environ.get(INTERFACE, "")) if engine.host.several else LOOPBACK)
    places, users = WORLD.allgather(port.place), engine.placement["environment"]
    return Torchrun(engine.rank, port, places, engine.host.leaders, users, prepare=torch.prepare)


def _completing(
    complete: Callable[..., Awaitable[None]], engine: Engine, listener: Listener | None
) -> Callable[..., Awaitable[None]]:
    """Return a function that also gives IPython the shell of cells, begins to listen, and ends the logging of messages.

    The logging took an eighth of the processor time of an empty task; most of its records were made, not written.
    """

    async def complete_and_listen(app: Any, *arguments: Any) -> None:
        await complete(app, *arguments)
        _take_the_place_of_ipythons_shell()
        sys.modules["__main__"] = engine.main  # pickle and typing look for what a cell has defined
        app.log.setLevel(logging.WARNING)
        if listener is not None:
            listener.start()

    return complete_and_listen


def _take_the_place_of_ipythons_shell() -> None:
    """Let IPython's functions, such as `display`, take the shell of this rank's cells: the engine's shows nothing.

    tqdm takes a process with the module of the other one for a notebook, whose widgets it then draws in place of text.
    """
    from IPython.core.interactiveshell import InteractiveShell

    from xpulab.engine.cells import cell

    sys.modules.pop("ipykernel.zmqshell", None)
    InteractiveShell.initialized = classmethod(lambda _: True)  # type: ignore[assignment, method-assign]
    InteractiveShell.instance = classmethod(lambda *_, **__: cell.get_ipython())  # type: ignore[assignment, method-assign]


def _go_to(folder: str) -> None:
    """Make the notebook's folder the current one, if this host has it. Not every mpiexec does this on other hosts."""
    with contextlib.suppress(OSError):
        os.chdir(folder)


def _import_little() -> None:
    """Import what an engine needs of ipyparallel and ipykernel, without debugpy, psutil and ipyparallel's clients.

    These would take half of the time of all imports. What imports one of them later gets it.
    """
    bare("ipyparallel")
    bare("jupyter_client", write_connection_file="connect", BlockingKernelClient="blocking.client")
    nanny: Any = ModuleType("ipyparallel.engine.nanny")  # it imports psutil, and the settings leave out its process
    nanny.start_nanny = None
    sys.modules.setdefault(nanny.__name__, nanny)
    if "debugpy" not in sys.modules:
        sys.modules["debugpy"] = None  # type: ignore[assignment]
        importlib.import_module("ipykernel.debugger")
        del sys.modules["debugpy"]
    from ipyparallel.engine import app
    from ipyparallel.serialize import canning

    app.localhost = lambda: "127.0.0.1"  # psutil would look at all interfaces
    canning.can_map.pop("ipyparallel.dependent", None)  # a class of the clients, which no engine sends


def _await_file(path: str) -> Any:
    """Wait until a JSON file is complete, and return its content. If it never is, the notebook ends this process."""
    while True:
        with contextlib.suppress(FileNotFoundError, ValueError), open(path) as file:
            return json.load(file)
        time.sleep(0.02)


def _listening() -> list[socket.socket]:
    """Return the ports of MPI's launcher, which listens on every network interface: the ranks inherit its sockets.

    MPI_Init opens ports of its own, so this is called before it.
    """
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            held = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # not a socket, or the folder's own descriptor
            continue
        inet = held.family in (socket.AF_INET, socket.AF_INET6)
        if inet and held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and held.getsockname()[0] in _ANY:
            found.append(held)
        else:
            held.close()
    return found


def _close(launchers: list[socket.socket]) -> None:
    """Close the ports of MPI's launcher, which needs them until all ranks have initialised MPI.

    A shutdown ends a socket for all processes that have it; the launcher continues without it.
    """
    for held in launchers:
        with held, contextlib.suppress(OSError):  # another rank has closed it already
            held.shutdown(socket.SHUT_RDWR)


main()
