"""The options of a start: the arguments, attributes, checks and words that follow from the fields of one dataclass."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import xpulab
from xpulab.cli import _parser
from xpulab.deploy.options import OPTIONS, PLACES, StartOptions
from xpulab.exceptions import UsageError
from xpulab.magics import XPUMagics

#: Values, other than the default, of the options.
OTHER: dict[str, Any] = {
    "n": 3,
    "devices": "cpu",
    "strict": True,
    "env": {"A": "b"},
    "hosts": "node1",
    "hostfile": "file",
    "ssh_config": "config",
    "launcher": "slurm",
    "nodes": 2,
    "time": 5,
    "partition": "p",
    "job_args": "--a",
    "mpi": "mpich",
    "mpi_args": "-v",
    "ports": "50000-50100",
    "timeout": 5.0,
    "recover": False,
    "silence": 9.0,
    "memory": "4GB",
    "detach": True,
    "display": "none",
    "name": "lab",
}


def words(parser: Any, command: str) -> list[str]:
    """The options that the help of a subcommand shows, in its order."""
    (commands,) = (action.choices for action in parser._actions if action.choices)
    typed = [action.option_strings for action in commands[command]._actions if action.option_strings]
    return [first for first, *_ in typed if first != "-h"]


def test_a_cluster_takes_every_option_with_its_type_and_default() -> None:
    found = inspect.signature(xpulab.XPUCluster).parameters
    assert list(found) == list(OPTIONS)
    assert {name: each.default for name, each in found.items()} == {**vars(StartOptions()), "env": None}
    assert (found["n"].kind.name, found["devices"].kind.name) == ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")
    assert found["hostfile"].annotation == "str | os.PathLike[str] | None"


def test_the_docstring_describes_every_option_in_order() -> None:
    parameters = (inspect.getdoc(xpulab.XPUCluster) or "").split("Parameters\n")[1].split("\nAttributes\n")[0]
    assert re.findall(r"^(\w+) : ", parameters, re.MULTILINE) == list(OPTIONS)


def test_mypy_and_python_refuse_arguments_that_a_cluster_does_not_have() -> None:
    """Without mypy's check of these calls, their comments would be errors of mypy."""
    with pytest.raises(TypeError, match=r"^XPUCluster\.__init__\(\) got an unexpected keyword argument 'device'"):
        xpulab.XPUCluster(device="gpu")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^XPUCluster\.__init__\(\) takes from 1 to 2 positional arguments but 3"):
        xpulab.XPUCluster(2, "gpu")  # type: ignore[call-arg]
    xpulab.XPUCluster("2")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OTHER)
def test_a_cluster_has_the_options_that_were_given(name: str) -> None:
    given, left = xpulab.XPUCluster(**{name: OTHER[name]}), xpulab.XPUCluster()
    assert getattr(left.options, name) == getattr(StartOptions(), name) != OTHER[name]
    assert getattr(given.options, name) == OTHER[name]


@pytest.mark.parametrize("name", ["recover", "silence", "memory", "display"])
def test_an_option_that_has_an_effect_at_any_time_is_an_attribute(name: str) -> None:
    given, later = xpulab.XPUCluster(**{name: OTHER[name]}), xpulab.XPUCluster()
    setattr(later, name, OTHER[name])
    assert getattr(given, name) == getattr(later, name) == OTHER[name]
    assert given.options == later.options


def test_an_error_says_where_the_other_options_are() -> None:
    """An assignment that has no effect would be taken for one that has."""
    cluster = xpulab.XPUCluster()
    with pytest.raises(AttributeError, match=r"no attribute 'mpi_args'; did you mean options\.mpi_args\?"):
        cluster.mpi_args  # type: ignore[attr-defined]  # noqa: B018
    for name in ("n", "detach"):
        with pytest.raises(AttributeError, match=rf"{name} of a cluster is given when it is made: .*\({name}=3\)"):
            setattr(cluster, name, 3)
    assert cluster.options == StartOptions()


def test_paths_become_text() -> None:
    cluster = xpulab.XPUCluster(hostfile=Path("a"), ssh_config=Path("b"))
    assert (cluster.options.hostfile, cluster.options.ssh_config) == ("a", "b")
    with pytest.raises(TypeError, match=r"expected str, bytes or os\.PathLike"):
        xpulab.XPUCluster(hostfile=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("timeout", [0, -1.0, "5", True, None, float("nan")], "a number of seconds above 0"),
        ("silence", [0, -1.0, "5", True, None, float("nan")], "a number of seconds above 0"),
        ("strict", [1, "yes"], "True, False or None"),
        ("recover", [1, None], "True or False"),
        ("env", ["A=1", [("A", "1")], 0], "a dict such as {'NAME': 'VALUE'}"),
        ("mpi_args", [1, ["-v"]], "a text such as '-genv A 1'"),
        ("devices", [1, b"cpu"], "gpu, cpu, or a selector such as level_zero:0"),
    ],
)
def test_an_error_says_what_was_given_and_what_was_expected(name: str, values: list[Any], expected: str) -> None:
    for value in values:
        cluster = xpulab.XPUCluster(**{name: value})
        with pytest.raises(UsageError) as error:
            cluster.start()
        where = f"XPUCluster or {OPTIONS[name].word}"
        assert str(error.value) == f"{where}: {name}={value!r} was given; expected {expected}"
        assert not cluster.running


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ports": "1-2"}, "--ports: received '1-2', expected the first and the last port"),
        ({"mpi_args": "'"}, 'received "\'"'),
        ({"mpi": "lam"}, "mpi='lam' was given; expected one of intel, openmpi, mpich"),
        ({"nodes": 0}, "nodes=0 was given; expected an integer of at least 1"),
    ],
)
def test_a_text_that_cannot_be_read_is_an_error_of_the_start(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        xpulab.XPUCluster(**options).start()


def test_the_magic_and_the_command_line_have_the_options_in_their_order() -> None:
    magic, every = XPUMagics(None).parser(), [option.word for option in OPTIONS.values()]
    places = [OPTIONS[name].word for name in PLACES]
    assert words(magic, "start") == every
    assert words(magic, "plan") == words(_parser(), "plan") == [*places, "--show"]
    assert words(_parser(), "run")[: len(places)] == places
    assert words(_parser(), "demo")[:4] == ["-n", "--devices", "--strict", "--env"]


def test_the_settings_of_the_magic_have_the_options_defaults() -> None:
    settings = XPUMagics.class_traits(config=True)
    assert {name: trait.default_value for name, trait in settings.items()} == {
        name: getattr(StartOptions(), name) for name in settings
    }


def test_options_of_the_starting_process_are_not_the_engines() -> None:
    lasting = StartOptions(**OTHER).lasting()
    assert {name: lasting.get(name) for name in OTHER} == {**OTHER, "timeout": None, "display": None}


@pytest.mark.parametrize(
    ("name", "value", "typed"),
    [
        ("n", 2, "-n 2"),
        ("strict", True, "--strict"),
        ("strict", False, "--no-strict"),
        ("recover", False, "--no-recover"),
        ("detach", True, "--detach"),
        ("env", [("A", "b c"), ("1:B", "")], "--env 'A=b c' --env 1:B="),
        ("mpi_args", "-genv A 1", "--mpi-args '-genv A 1'"),
    ],
)
def test_an_option_as_it_is_typed(name: str, value: Any, typed: str) -> None:
    assert OPTIONS[name].typed(value) == typed
