"""The command ``xpulab``. Its subcommands make the same calls as those of the magic ``%xpu_cluster``."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import warnings
from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path

import xpulab
from xpulab.console.commands import Help, Parser, add_options, ended_call, given
from xpulab.deploy.mpi.command import split
from xpulab.deploy.network.ports import ports
from xpulab.deploy.options import PLACES, count, in_groups
from xpulab.exceptions import OversubscribedWarning, UsageError, XpulabError, XpulabWarning

__all__ = ["main"]

_OUTPUTS = (1, 2)  # standard output and standard error


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Returns
    -------
    int
        The exit status: 0 for success, 1 for a negative result (machine not ready, results disagree), 2 for wrong
        arguments or an error of xpulab, 130 after Ctrl-C, 141 if the reader of its output has left, as ``head`` does.
        For ``run``, the exit status of the script.
    """
    try:
        try:
            return _exit_status(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not (left := [stream for stream in _OUTPUTS if _has_no_reader(stream)]):
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in left:  # Python writes what is left in its buffers when it ends
            os.dup2(nowhere, stream)
        os.close(nowhere)
        return 128 + signal.SIGPIPE


def _exit_status(argv: Sequence[str] | None) -> int:
    """Run one subcommand, print its error, and return its exit status."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        try:
            arguments = _parser().parse_args(argv)
            return int(arguments.call(arguments))
        except Help as text:
            print(text)
            return 0
        except UsageError as error:
            print(error, file=sys.stderr)
        except XpulabError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
        return 2


def _has_no_reader(stream: int) -> bool:
    """Return whether a stream is a pipe whose reader has left, such as ``head -1`` after the first line."""
    poll = select.poll()
    poll.register(stream, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _parser() -> Parser:
    parser = Parser(prog="xpulab", description="scikit-learn's estimators on all accelerators of a notebook user.")
    parser.add_argument("--version", action="version", version=f"xpulab {xpulab.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="SUBCOMMAND", required=True, parser_class=Parser)
    demo = parser.command(
        commands, "demo", _demo, "paint a photograph in a few colours, and compare the result with scikit-learn's"
    )
    add_options(demo, in_groups("placement"))
    demo.add_argument("--clusters", type=count, default=64, metavar="K", help="number of colours")
    demo.add_argument(
        "--rows", type=count, default=None, metavar="M", help="number of pixels to fit on; all pixels by default"
    )
    demo.add_argument("--out", type=_file, default=Path("xpulab-demo.html"), metavar="FILE", help="file for the report")
    demo.add_argument(
        "--verbose", action="store_true", help="also print the plan, the engines, and the report of the fit"
    )
    plan = parser.command(commands, "plan", _plan, "show which engine would run on which device; starts nothing")
    add_options(plan, PLACES)
    plan.add_argument("--show", action="store_true", help="show the command line, too, that starts the engines")
    run = parser.command(
        commands, "run", _run, "run a script on ranks, as mpirun does: one rank on each device, or set of cores"
    )
    add_options(run, PLACES)
    run.add_argument("--show", action="store_true", help="print the plan and the command line; starts nothing")
    run.add_argument(
        "--output", type=Path, metavar="DIR", help="also write what each rank prints to DIR/rank-R.out and rank-R.err"
    )
    run.add_argument("--timestamps", action="store_true", help="begin each line with the time at which it came")
    how = run.add_mutually_exclusive_group()
    how.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module's name, as in python -m pytest")
    how.add_argument("-c", "--code", action="store_true", help="SCRIPT is Python code itself, as in python -c")
    run.add_argument("script", metavar="SCRIPT", help="file of Python code")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="its arguments")
    parser.command(commands, "devices", _devices, "show the devices of this machine, and which engines would use them")
    status = parser.command(
        commands, "status", _status, "list your clusters on this host, also those that other processes started"
    )
    status.add_argument(
        "--all",
        dest="of_all",
        action="store_true",
        help="list all clusters that you may see (for root those of all users), with what they compute",
    )
    stop = parser.command(commands, "stop", _stop, "end every process of a cluster, for all attached notebooks")
    stop.add_argument("name", nargs="?", metavar="NAME", help="name of the cluster, if there are several")
    stop.add_argument(
        "--call", dest="only_call", action="store_true", help="end only the call that runs, of whichever process"
    )
    parser.command(commands, "doctor", _doctor, "check this machine, and say what to type if something is missing")
    return parser


def _file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise ArgumentTypeError(f"received {text!r}, expected a file in a folder that exists")
    if not os.access(path if path.exists() else path.resolve().parent, os.W_OK):
        raise ArgumentTypeError(f"received {text!r}, expected a file that you may write")
    return path


def _demo(arguments: argparse.Namespace) -> int:
    from xpulab.demo import WHERE_TO_GO_ON, engines_of_demo, photograph, quantise
    from xpulab.report.rendering import counted

    image = photograph()
    pixels = arguments.rows or image[..., 0].size
    if arguments.clusters > pixels:
        arguments.parser.error(
            f"argument --clusters: received {arguments.clusters}, expected at most {pixels}, the number of pixels"
        )
    options = given(arguments)
    options["n"] = arguments.n or engines_of_demo(xpulab.XPUCluster(**options).plan())
    with xpulab.XPUCluster(**options) as cluster:
        if arguments.verbose:
            print(cluster.plan(), cluster.status(), sep="\n\n")
        devices = ", ".join(dict.fromkeys(fact.device.name for fact in cluster.facts))
        print(f"{counted(len(cluster.facts), 'engine')} on {devices}", flush=True)
        found = quantise(image, arguments.clusters, arguments.rows)
    if arguments.verbose:
        print(f"\n{found}\n")
    found.write(arguments.out)
    print(found.line, found.verdict, sep="\n")
    print(f"The pictures and the report: {arguments.out.resolve().as_uri()}. {WHERE_TO_GO_ON}")
    return 0 if found.agrees else 1


def _plan(arguments: argparse.Namespace) -> int:
    print(xpulab.XPUCluster(**given(arguments)).plan(show=arguments.show))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from xpulab.deploy import script

    kind = "module" if arguments.module else "code" if arguments.code else "file"
    if kind == "file" and not os.path.isfile(arguments.script):
        arguments.parser.error(
            f"argument SCRIPT: received {arguments.script!r}, expected a file of Python code; options come before it"
        )
    where = given(arguments)
    if arguments.hosts is None and arguments.hostfile is None:
        where["launcher"] = arguments.launcher or "local"  # a script in a job may be meant for one node
    cluster = xpulab.XPUCluster(**where, display="none", recover=False)
    if not cluster.planning.local:
        return _run_on_hosts(arguments, cluster, kind)
    plan = cluster.plan()
    extra, among = split(arguments.mpi_args), ports(arguments.ports)
    command = script.command(plan, arguments.script, arguments.arguments, extra, arguments.mpi, among, kind)
    if arguments.show:
        print(plan, script.shown(command), sep="\n\n")
        return 0
    for warning in plan.warnings:
        warnings.warn(warning, OversubscribedWarning, stacklevel=2)
    with script.Files(arguments.output, arguments.timestamps) as files:
        return script.run(plan, command, files)


def _run_on_hosts(arguments: argparse.Namespace, cluster: xpulab.XPUCluster, kind: str) -> int:
    from xpulab.deploy import script
    from xpulab.deploy.script_on_engines import run_on_engines

    if arguments.show:
        print(cluster.plan(show=True), "\nthe engines run the script, and are ended", sep="\n")
        return 0

    # cloudpickle sends it whole: engines do not import this module
    def on_rank(task: object, script: str, source: bytes, arguments: list[str]) -> None:
        from xpulab.spmd.__main__ import on_engine

        on_engine(script, source, arguments, kind)

    with cluster, script.Files(arguments.output, arguments.timestamps) as files:
        path = Path(arguments.script).resolve() if kind == "file" else arguments.script
        source = path.read_bytes() if isinstance(path, Path) else b""
        return run_on_engines(cluster, on_rank, str(path), source, arguments.arguments, files)


def _devices(arguments: argparse.Namespace) -> int:
    from xpulab.deploy.devices import devices

    print(devices())
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from xpulab.deploy.processes.record import find

    if arguments.of_all:
        from xpulab.deploy.all_clusters import all_clusters

        print(all_clusters())
        return 0
    print(
        "\n".join(map(str, find()))
        or "you have no running cluster on this host; to start one, type in a notebook: %xpu_cluster start"
    )
    return 0


def _stop(arguments: argparse.Namespace) -> int:
    from xpulab.deploy.processes.processes import Processes
    from xpulab.deploy.processes.record import choose

    record = choose(arguments.name, "xpulab stop")
    if arguments.only_call:
        from xpulab.deploy.cluster import XPUCluster

        with XPUCluster.attach(record.name) as cluster:
            print(ended_call(cluster.stop_call()))
        return 0
    processes = Processes(record)
    processes.find()
    processes.stop()
    print(f"stopped: {record}")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from xpulab.doctor import doctor

    report = doctor()
    print(report)
    return 0 if report.ready else 1


def _show_warning(message: Warning | str, category: type[Warning], *where: object) -> None:
    """Print a warning of xpulab in one line, without the file and line of code that raised it."""
    prefix = "warning" if issubclass(category, XpulabWarning) else category.__name__
    erase = "\r\x1b[K" if sys.stderr.isatty() else ""  # the terminal line may show progress
    print(f"{erase}{prefix}: {message}", file=sys.stderr)
