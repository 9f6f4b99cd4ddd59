"""The parser that the magic and the command line share: accepted words, suggestions, and help."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from xpulab.console.commands import Help, Parser, add_options
from xpulab.deploy.options import count, in_groups
from xpulab.exceptions import UsageError


@pytest.fixture
def parser() -> Parser:
    parser = Parser(prog="lab", description="A laboratory.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    start = parser.command(commands, "start", lambda _: "started", "start it")
    add_options(start, in_groups("placement"), n=2, strict=False)
    parser.command(commands, "stop", lambda _: "stopped", "stop it")
    return parser


def test_a_line_calls_the_function_of_its_subcommand(parser: Parser) -> None:
    arguments = parser.parse_args(["start", "--devices", "gpu", "--strict"])
    assert (arguments.n, arguments.devices, arguments.strict) == (2, "gpu", True)
    assert arguments.call(arguments) == "started"
    settings = parser.parse_args(["start", "--env", "A=1=2", "--env", "1:B="]).env
    assert settings == [("A", "1=2"), ("1:B", "")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sotp", "'sotp' is not one of start, stop; did you mean stop?\nfor all options, type: lab -h"),
        ("xyz", "'xyz' is not one of start, stop\nfor all options, type: lab -h"),
        (
            "start --devcies gpu",
            "unknown argument: --devcies gpu; did you mean --devices?\nfor all options, type: lab start -h",
        ),
        ("stop now", "unknown argument: now\nfor all options, type: lab stop -h"),
        ("start --dev gpu", "unknown argument: --dev gpu"),
        ("start -n", "argument -n: expected one argument\nfor all options, type: lab start -h"),
        (
            "start --env A",
            "argument --env: received 'A', expected NAME=VALUE or RANK:NAME=VALUE\nfor all options, type: lab start -h",
        ),
        ("start -np 4", "unknown argument: -np; did you mean -n 4?\nfor all options, type: lab start -h"),
        ("start -m 2", "unknown argument: -m 2; did you mean -n?\nfor all options, type: lab start -h"),
        ("start --env A=1 -np", "unknown argument: -np; did you mean -n?\nfor all options, type: lab start -h"),
        (
            "start -n p",
            "argument -n: received 'p', expected an integer of at least 1\nfor all options, type: lab start -h",
        ),
        (
            "start -n -2",
            "argument -n: received '-2', expected an integer of at least 1\nfor all options, type: lab start -h",
        ),
    ],
)
def test_a_mistake_is_answered_with_the_right_word(parser: Parser, line: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parser.parse_args(line.split())
    assert str(caught.value).startswith(message)
    assert len(str(caught.value).split("\n")) == 2
    assert str(caught.value).endswith(" -h")


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "", "1e3", "²"])
def test_a_count_is_a_whole_number_from_one_on(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"received '{text}', expected an integer of at least 1"):
        count(text)
    assert count("12") == 12


def test_help_names_the_defaults(parser: Parser) -> None:
    with pytest.raises(Help) as asked:
        parser.parse_args(["start", "-h"])
    words = " ".join(str(asked.value).split())
    assert "start it" in words
    assert "number of engines; by default one per device (default: 2)" in words
    assert "None" not in words
    assert "False" not in words


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("", ["-h", "--help", "start", "stop"]),
        ("stop", ["-h", "--help"]),
        ("start", ["-h", "--help", "-n", "--devices", "--strict", "--no-strict", "--env"]),
        ("start --strict", ["-h", "--help", "-n", "--devices", "--strict", "--no-strict", "--env"]),
        ("start --strict -n", []),
        ("start --devices", ["gpu", "cpu"]),
        ("nothing known", []),
    ],
)
def test_the_words_that_may_follow(parser: Parser, before: str, words: list[str]) -> None:
    assert list(parser.follow(before.split())) == words
