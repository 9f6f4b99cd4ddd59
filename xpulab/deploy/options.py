"""The options with which a cluster starts. Each is one field of `StartOptions`, and everything else follows from it.

The fields give the arguments of `XPUCluster`, the options of ``%xpu_cluster`` and ``xpulab``, what is checked before a
start, what the record of a cluster has of it, and what a second start compares with a running cluster.
"""

# ruff: noqa: RUF009 -- `_option` makes a field

from __future__ import annotations

import argparse
import functools
import inspect
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from xpulab.deploy.launchers import LAUNCHERS
from xpulab.deploy.memory import memory, read_memory
from xpulab.deploy.mpi.command import DEFAULT, NAMES, split
from xpulab.deploy.network.ports import ports
from xpulab.exceptions import UsageError
from xpulab.names import naming_arguments
from xpulab.report.task import DISPLAYS, Display

__all__ = ["OPTIONS", "PLACES", "Attribute", "Option", "StartOptions", "count", "in_groups", "taking", "variable"]

P = ParamSpec("P")
T = TypeVar("T")


def count(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"received {text!r}, expected an integer of at least 1")
    return int(text)


def variable(text: str) -> tuple[str, str]:
    """Parse the setting of a variable: ``"NAME=VALUE"``, ``"1:NAME=VALUE"``."""
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise argparse.ArgumentTypeError(f"received {text!r}, expected NAME=VALUE or RANK:NAME=VALUE")
    return name, value


@dataclass(frozen=True)
class Option:
    """What there is to say of a start option, beside its type and its default.

    Attributes
    ----------
    group : {"placement", "hosts", "job", "mpi", "start"}
        The commands that have it: all but the last are also options of a plan, and of a script that runs on ranks.
    help : str
        Its help in the magic and on the command line.
    argument : mapping
        Further arguments for argparse's ``add_argument``: ``type``, ``metavar``, ``choices``, ``action``.
    values : tuple of str
        Values that completion offers. SYCL selectors are not among them, because finding these means asking the
        drivers.
    others : tuple of str
        Words that users may type in place of the option's name, for the message of an error.
    valid : callable
        Whether a value has the right type and range. The errors of a value that a plan reads come from the plan.
    expected : str
        What the error says of a value that is not valid.
    read : callable or None
        A function that raises `UsageError` if it cannot read the value.
    at_once : bool
        Whether the value is checked when it is set, and not only at the start, because it has an effect at any time.
    lasting : bool
        Whether it belongs to the engines, so that a running cluster either has it or not; other options are those of
        the process that starts them.
    name : str
        The name of the field.
    """

    group: str
    help: str
    argument: Mapping[str, Any]
    values: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    valid: Callable[[Any], bool] = lambda value: True
    expected: str = ""
    read: Callable[[Any], object] | None = None
    at_once: bool = False
    lasting: bool = True
    name: str = ""

    @property
    def word(self) -> str:
        """The option as users type it, such as ``"--mpi-args"``."""
        return f"-{self.name}" if len(self.name) == 1 else f"--{self.name.replace('_', '-')}"

    @property
    def repeatable(self) -> bool:
        """Whether users can type it several times; argparse then makes a list."""
        return self.argument.get("action") == "append"

    def typed(self, value: Any) -> str:
        """Return what a user types for a value as argparse returns it, or as `XPUCluster` takes it."""
        if isinstance(value, bool):
            return self.word if value else f"--no-{self.word[2:]}"
        if self.repeatable:
            pairs = value.items() if isinstance(value, Mapping) else value
            return " ".join(shlex.join([self.word, "=".join(pair)]) for pair in pairs)
        text = ",".join(value) if isinstance(value, list | tuple) else str(value)
        return shlex.join([self.word, text])

    def require(self, value: Any) -> None:
        """Raise `UsageError` if the value has a wrong type, or cannot be read."""
        if not self.valid(value):
            raise UsageError(f"XPUCluster or {self.word}: {self.name}={value!r} was given; expected {self.expected}")
        if self.read is not None:
            self.read(value)


def _option(
    default: T,
    group: str,
    help: str,
    *,
    values: Sequence[str] = (),
    others: str = "",
    valid: Callable[[Any], bool] = lambda value: True,
    expected: str = "",
    read: Callable[[Any], object] | None = None,
    at_once: bool = False,
    lasting: bool = True,
    **argument: Any,
) -> T:
    """Return a field of `StartOptions`; the arguments are the attributes of `Option`, and those of ``add_argument``."""
    words = tuple(others.split())
    about = Option(group, help, argument, tuple(values), words, valid, expected, read, at_once, lasting)
    return field(default=default, metadata={"option": about})


def _text_or_none(value: Any) -> bool:
    return isinstance(value, str | None)


def _seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


@dataclass(frozen=True)
class StartOptions:
    """The options of a start; the docstring of `XPUCluster` describes them.

    Raises
    ------
    UsageError
        If an option that has an effect at any time has a wrong value.
    """

    n: int | None = _option(
        None,
        "placement",
        "number of engines; by default one per device",
        others="engines n-engines num-engines ranks workers processes np m",
        type=count,
        metavar="N",
    )
    _: KW_ONLY
    devices: str | None = _option(
        None,
        "placement",
        "gpu, cpu, or a SYCL selector such as level_zero:0",
        metavar="WHICH",
        others="device gpu gpus cpu selector",
        values=("gpu", "cpu"),
        valid=_text_or_none,
        expected="gpu, cpu, or a selector such as level_zero:0",
    )
    strict: bool | None = _option(
        None,
        "placement",
        "whether it is an error if engines share cores or a device; by default, if more than 8 share a core",
        action=argparse.BooleanOptionalAction,
        valid=lambda value: isinstance(value, bool | None),
        expected="True, False or None",
    )
    env: Mapping[str, str] | None = _option(
        None,
        "placement",
        "set an environment variable on all engines, or with 1:NAME=VALUE on rank 1; repeatable",
        type=variable,
        others="environment variable variables",
        action="append",
        metavar="NAME=VALUE",
        valid=lambda value: isinstance(value, Mapping),
        expected="a dict such as {'NAME': 'VALUE'}",
    )
    hosts: str | Sequence[str] | None = _option(
        None,
        "hosts",
        "hosts on which engines run, as ssh knows them: node1,node2:4",
        others="host machines servers",
        metavar="A,B",
    )
    hostfile: str | os.PathLike[str] | None = _option(
        None, "hosts", "file that names a host on each line: node1, node1:4, or node1 slots=4", metavar="FILE"
    )
    ssh_config: str | os.PathLike[str] | None = _option(
        None, "hosts", "ssh's configuration; by default yours", metavar="FILE"
    )
    launcher: str | None = _option(
        None,
        "hosts",
        "local: this host only; slurm, pbs: the nodes of the job in which you are, which is the default there, or "
        "of a job that is submitted, and ends with the engines",
        choices=LAUNCHERS,
        values=LAUNCHERS,
        others="scheduler slurm pbs ssh",
    )
    nodes: int | None = _option(
        None, "job", "number of nodes of the job; 1 by default", others="n-nodes", type=count, metavar="K"
    )
    time: int | str | None = _option(
        None,
        "job",
        "time limit of the job: minutes, or hours:minutes:seconds, days-hours:minutes",
        others="walltime time-limit",
        metavar="LIMIT",
    )
    partition: str | None = _option(
        None, "job", "partition or queue of the job; by default the site's", others="queue", metavar="NAME"
    )
    job_args: str | None = _option(
        None,
        "job",
        'further options for the script of the job, as in --job-args="--gres=gpu:2 --account=a"',
        metavar="ARGS",
    )
    mpi: str = _option(DEFAULT, "mpi", "MPI that connects the ranks; intel is pip's", choices=NAMES, values=NAMES)
    mpi_args: str | None = _option(
        None,
        "mpi",
        'further options for mpiexec, as in --mpi-args="-genv I_MPI_DEBUG 5"',
        metavar="ARGS",
        valid=_text_or_none,
        expected="a text such as '-genv A 1'",
        read=split,
    )
    ports: str | None = _option(
        None,
        "hosts",
        "TCP ports on which the controller, MPI and the ranks listen, for hosts with a firewall: 50000-50100",
        metavar="FIRST-LAST",
        read=ports,
    )
    timeout: float = _option(
        120.0,
        "start",
        "seconds after which a start that has not ended fails",
        type=float,
        metavar="S",
        valid=_seconds,
        expected="a number of seconds above 0",
        lasting=False,
    )
    recover: bool = _option(
        True,
        "start",
        "whether a fit continues from its last centres after engines are lost",
        action=argparse.BooleanOptionalAction,
        valid=lambda value: isinstance(value, bool),
        expected="True or False",
    )
    silence: float = _option(
        30.0,
        "start",
        "seconds without a sign of life after which an engine counts as lost",
        type=float,
        metavar="S",
        valid=_seconds,
        expected="a number of seconds above 0",
    )
    memory: str | float | None = _option(
        None,
        "start",
        "memory for rows on the engines of a host: bytes such as 4GB, or a share of the free memory; 0.6 by default. "
        "What does not fit is read again in each pass",
        type=memory,
        metavar="SIZE",
        others="memory-limit max-memory budget",
        read=read_memory,
        at_once=True,
    )
    detach: bool = _option(
        False,
        "start",
        "keep the cluster running after this kernel ends; other kernels can attach to it",
        others="keep background daemon",
        action="store_true",
    )
    display: Display = _option(
        "full",
        "start",
        "how calls of estimators are shown",
        choices=DISPLAYS,
        values=DISPLAYS,
        others="show view verbose",
        valid=lambda value: value in DISPLAYS,
        expected=f"one of {', '.join(DISPLAYS)}",
        at_once=True,
        lasting=False,
    )
    name: str | None = _option(None, "start", "name of the cluster, for attach", others="label cluster id")

    def __post_init__(self) -> None:
        for name in ("hostfile", "ssh_config"):
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, os.fspath(path))
        if self.env is None:
            object.__setattr__(self, "env", {})
        for name, option in OPTIONS.items():
            if option.at_once:
                option.require(getattr(self, name))

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables of the engines."""
        return {} if self.env is None else self.env

    def require_valid(self) -> None:
        """Raise `UsageError` if an option has a wrong type or value that no plan finds."""
        for name, option in OPTIONS.items():
            option.require(getattr(self, name))

    def lasting(self) -> dict[str, Any]:
        """Return the options that belong to the engines, by name."""
        return {name: getattr(self, name) for name, option in OPTIONS.items() if option.lasting}


#: The options by name, in the order in which help has them.
OPTIONS: dict[str, Option] = {
    each.name: replace(each.metadata["option"], name=each.name) for each in fields(StartOptions)
}

# Python's error for a wrong argument names the function that the user has called.
StartOptions.__init__.__qualname__ = "XPUCluster.__init__"


def in_groups(*groups: str) -> list[str]:
    """Return the names of the options in these groups."""
    return [name for name, option in OPTIONS.items() if option.group in groups]


#: The options that say where ranks run and how they connect. Plans, and scripts that run on ranks, have them, too.
PLACES = in_groups("placement", "hosts", "job", "mpi")


def taking(
    options: Callable[P, StartOptions],
) -> Callable[[Callable[[Any, StartOptions], None]], Callable[Concatenate[Any, P], None]]:
    """Make of a method that takes `StartOptions` one that takes the arguments of `StartOptions`, with their types."""
    found = inspect.signature(options)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)

    def decorated(method: Callable[[Any, StartOptions], None]) -> Callable[Concatenate[Any, P], None]:
        @functools.wraps(method)
        def taken(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
            method(self, options(*args, **kwargs))

        signature = found.replace(parameters=[itself, *found.parameters.values()], return_annotation="None")
        taken.__signature__ = signature  # type: ignore[attr-defined]
        return naming_arguments(taken, {word: name for name, each in OPTIONS.items() for word in each.others})

    return decorated


class Attribute(Generic[T]):
    """An attribute of a cluster that is one of its options. The value that it is set to is that of the next start.

    Parameters
    ----------
    read : callable
        The option's value, from the cluster's `StartOptions`.
    name : str
        Name of the option; by default that of the attribute.
    """

    def __init__(self, read: Callable[[StartOptions], T], name: str = "") -> None:
        self._read, self._name = read, name

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = self._name or name

    @overload
    def __get__(self, cluster: None, owner: type) -> Attribute[T]: ...

    @overload
    def __get__(self, cluster: Any, owner: type) -> T: ...

    def __get__(self, cluster: Any, owner: type) -> Attribute[T] | T:
        return self if cluster is None else self._read(cluster.options)

    def __set__(self, cluster: Any, value: T) -> None:
        change: dict[str, Any] = {self._name: value}
        cluster.options = replace(cluster.options, **change)
