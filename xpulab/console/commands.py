"""The parser and the options that the magic and the command line share.

Each subcommand has a parser and a function of its arguments that returns an object, which the caller displays.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from xpulab.deploy.launchers import LAUNCHERS
from xpulab.deploy.mpi.command import DEFAULT, NAMES
from xpulab.exceptions import UsageError

__all__ = [
    "Help",
    "Parser",
    "add_choice_of_mpi",
    "add_hosts",
    "add_job",
    "add_mpi",
    "add_placement",
    "add_ports",
    "add_ssh",
    "count",
    "ended_call",
    "identifier",
    "natural",
    "numbers",
    "placement",
    "variable",
]

#: Values that completion offers for an option. SYCL selectors are not among them, because finding these means asking
#: the drivers.
_VALUES = {"--devices": ("gpu", "cpu"), "--launcher": LAUNCHERS, "--mpi": NAMES}


class Help(Exception):
    """The user asked for help; the message is the help text."""


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Help that shows defaults, except None, False and empty lists."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False, []) else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises `UsageError`, with the nearest known word, or `Help`, where argparse exits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _Formatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\n{self.format_usage()}for all options, type: {self.prog} -h")

    def print_help(self, file: Any = None) -> None:
        raise Help(self.format_help())

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = getattr(found, "parser", self)
            parser.error(f"unknown argument: {' '.join(unknown)}{_near(unknown[0], parser.words())}")
        return found

    def words(self) -> list[str]:
        """Return the options and subcommands of this parser."""
        found: list[str] = []
        for action in self._actions:
            found += action.option_strings or list(action.choices or ())
        return found

    def follow(self, before: Sequence[str]) -> list[str]:
        """Return the words that may follow the words `before`, for completion."""
        parser = self
        for word in before:
            choices = next((action.choices for action in parser._actions if isinstance(action.choices, dict)), {})
            parser = choices.get(word, parser)
        if before and parser is self:
            return []
        takes_value = any(before[-1:] == [o] for a in parser._actions if a.nargs != 0 for o in a.option_strings)
        return list(_VALUES.get(before[-1], ())) if takes_value else parser.words()

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = ", ".join(map(str, action.choices))
            self.error(f"{value!r} is not one of {known}{_near(str(value), list(map(str, action.choices)))}")

    def command(self, commands: Any, name: str, call: Callable[[argparse.Namespace], Any], help: str) -> Parser:
        """Add a subcommand that runs `call(arguments)`."""
        parser: Parser = commands.add_parser(name, help=help, description=help)
        parser.set_defaults(call=call, parser=parser)
        return parser


def count(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"received {text!r}, expected an integer of at least 1")
    return int(text)


def natural(text: str) -> int:
    """Parse an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"received {text!r}, expected an integer of at least 0")
    return int(text)


def numbers(text: str) -> list[int]:
    """Parse a list of integers of at least 0: ``"0,2"``, ``"0-3"``."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"received {text!r}, expected integers such as 0,2 or 0-3")
        found += range(int(first), int(last or first) + 1)
    return found


def identifier(text: str) -> str:
    """Parse the name of a variable."""
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"received {text!r}, expected the name of a variable")
    return text


def variable(text: str) -> tuple[str, str]:
    """Parse the setting of a variable: ``"NAME=VALUE"``, ``"1:NAME=VALUE"``."""
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise argparse.ArgumentTypeError(f"received {text!r}, expected NAME=VALUE or RANK:NAME=VALUE")
    return name, value


def add_placement(parser: Parser, n: int | None, devices: str | None, strict: bool | None) -> None:
    """Add the options for the number, the devices and the variables of engines, with their defaults."""
    parser.add_argument("-n", type=count, default=n, metavar="N", help="number of engines; by default one per device")
    parser.add_argument(
        "--devices", default=devices, metavar="WHICH", help="gpu, cpu, or a SYCL selector such as level_zero:0"
    )
    parser.add_argument(
        "--strict",
        action=argparse.BooleanOptionalAction,
        default=strict,
        help="whether it is an error if engines share cores or a device; by default, if more than 8 share a core",
    )
    parser.add_argument(
        "--env",
        type=variable,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set an environment variable on all engines, or with 1:NAME=VALUE on rank 1; repeatable",
    )


def add_mpi(parser: Parser) -> None:
    """Add the options for MPI and its own options."""
    add_choice_of_mpi(parser)
    parser.add_argument(
        "--mpi-args", metavar="ARGS", help='further options for mpiexec, as in --mpi-args="-genv I_MPI_DEBUG 5"'
    )


def add_choice_of_mpi(parser: Parser) -> None:
    """Add the option that chooses the MPI."""
    parser.add_argument("--mpi", choices=NAMES, default=DEFAULT, help="MPI that connects the ranks; intel is pip's")


def add_hosts(parser: Parser) -> None:
    """Add the options for the hosts of engines and for MPI."""
    parser.add_argument("--hosts", metavar="A,B", help="hosts on which engines run, as ssh knows them: node1,node2:4")
    parser.add_argument(
        "--hostfile", metavar="FILE", help="file that names a host on each line: node1, node1:4, or node1 slots=4"
    )
    add_ssh(parser)
    parser.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        help="local: this host only; slurm, pbs: the nodes of the job in which you are, which is the default there, or "
        "of a job that is submitted, and ends with the engines",
    )
    add_job(parser)
    add_mpi(parser)
    add_ports(parser)


def add_job(parser: Parser) -> None:
    """Add the options for a job that is submitted to a scheduler."""
    parser.add_argument("--nodes", type=count, metavar="K", help="number of nodes of the job; 1 by default")
    parser.add_argument(
        "--time", metavar="LIMIT", help="time limit of the job: minutes, or hours:minutes:seconds, days-hours:minutes"
    )
    parser.add_argument("--partition", metavar="NAME", help="partition or queue of the job; by default the site's")
    parser.add_argument(
        "--job-args",
        metavar="ARGS",
        help='further options for the script of the job, as in --job-args="--gres=gpu:2 --account=a"',
    )


def add_ports(parser: Parser) -> None:
    """Add the option for the ports on which a cluster listens."""
    parser.add_argument(
        "--ports",
        metavar="FIRST-LAST",
        help="TCP ports on which the controller, MPI and the ranks listen, for hosts with a firewall: 50000-50100",
    )


def add_ssh(parser: Parser) -> None:
    """Add the option for ssh's configuration."""
    parser.add_argument("--ssh-config", metavar="FILE", help="ssh's configuration; by default yours")


def placement(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `XPUCluster` from the options of `add_placement` and `add_hosts`."""
    return {
        "n": arguments.n,
        "devices": arguments.devices,
        "strict": arguments.strict,
        "env": dict(arguments.env),
        "hosts": arguments.hosts,
        "hostfile": arguments.hostfile,
        "ssh_config": arguments.ssh_config,
        "launcher": arguments.launcher,
        "nodes": arguments.nodes,
        "time": arguments.time,
        "partition": arguments.partition,
        "job_args": arguments.job_args,
        "mpi": arguments.mpi,
        "mpi_args": arguments.mpi_args,
        "ports": arguments.ports,
    }


def ended_call(name: str) -> str:
    """The sentence about a call that a user has ended on the engines; about none if the name is empty."""
    return f"ended: {name}" if name else "no call runs on the engines"


def _near(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, 1, 0.5)
    return f"; did you mean {near[0]}?" if near else ""
