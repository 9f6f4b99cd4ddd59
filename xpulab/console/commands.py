"""The parser and the options that the magic and the command line share.

Each subcommand has a parser and a function of its arguments that returns an object, which the caller displays.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from xpulab.deploy.options import OPTIONS, StartOptions
from xpulab.exceptions import UsageError
from xpulab.names import meant

__all__ = [
    "Help",
    "Parser",
    "add_options",
    "ended_call",
    "given",
    "identifier",
    "identifiers",
    "natural",
    "numbers",
]

#: Values that completion offers for an option.
_VALUES = {option.word: option.values for option in OPTIONS.values()}


#: Words that users may type in place of a subcommand, for the message of an error.
_SUBCOMMANDS = {
    **dict.fromkeys(("begin", "launch", "up", "create"), "start"),
    **dict.fromkeys(("kill", "end", "quit", "exit", "down", "shutdown", "close", "terminate"), "stop"),
    **dict.fromkeys(("list", "ls", "ps", "info", "show", "state", "engines"), "status"),
    **dict.fromkeys(("connect", "join", "use"), "attach"),
    **dict.fromkeys(("disconnect", "leave"), "detach"),
    **dict.fromkeys(("reboot", "reset", "reload"), "restart"),
    **dict.fromkeys(("gpus", "cpus", "accelerators"), "devices"),
    **dict.fromkeys(("nodes", "machines", "ssh"), "hosts"),
    **dict.fromkeys(("output", "errors", "tail"), "logs"),
    **dict.fromkeys(("report", "timings", "profile"), "last"),
    **dict.fromkeys(("continue", "proceed"), "resume"),
    **dict.fromkeys(("check", "diagnose", "test", "version"), "doctor"),
    **dict.fromkeys(("layout", "preview", "dry-run"), "plan"),
    **dict.fromkeys(("patch", "accelerate", "sklearn"), "accel"),
    **dict.fromkeys(("view", "verbosity"), "display"),
    **dict.fromkeys(("mpirun", "mpiexec", "script"), "run"),
}


class Help(Exception):
    """The user asked for help; the message is the help text."""


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Help that shows defaults, except None, False and empty lists."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False, []) else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises `UsageError`, with the nearest known word, or `Help`, where argparse exits.

    Attributes
    ----------
    others : dict of str to str
        Words that users may type in place of an option or a subcommand -> that one, for the message of an error.
    offers : dict of str to callable
        Argument -> returns the values that completion offers, if they are not known before.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _Formatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)
        self.others: dict[str, str] = {}
        self._words: list[str] = []
        self.offers: dict[str, Callable[[], Iterable[str]]] = {}

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\nfor all options, type: {self.prog} -h")

    def print_help(self, file: object = None) -> None:
        raise Help(self.format_help())

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = getattr(found, "parser", self)
            wrong = unknown[0].partition("=")[0]
            parser.error(f"unknown argument: {' '.join(unknown)}{meant(wrong, parser.words(), parser.others)}")
        return found

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = list(args or ())
        return super().parse_known_args(args, namespace)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Return a value of an argument. Of ``-np 4``, argparse makes the option ``-n`` with the value p."""
        for option in action.option_strings:
            word = f"{option}{arg_string}"
            if self.others.get(word[1:]) == option and word in self._words:
                value = "".join(self._words[self._words.index(word) + 1 :][:1])
                self.error(f"unknown argument: {word}; did you mean {option} {value}".rstrip() + "?")
        return super()._get_value(action, arg_string)

    def words(self) -> list[str]:
        """Return the options and subcommands of this parser."""
        return list(self._offered())

    def _offered(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for action in self._actions:
            if action.option_strings:
                found |= dict.fromkeys(action.option_strings, "option")
            else:
                kind = "command" if isinstance(action.choices, dict) else "value"
                found |= dict.fromkeys(self._values(action), kind)
        return found

    def _values(self, action: argparse.Action) -> Iterable[str]:
        """Return the values of an argument that completion offers."""
        name = (action.option_strings or [action.dest])[-1]
        return self.offers[name]() if name in self.offers else action.choices or _VALUES.get(name, ())

    def at(self, before: Sequence[str]) -> Parser:
        """Return the parser of the subcommand that is among the words `before`, or else this one."""
        parser = self
        for word in before:
            commands = next((action.choices for action in parser._actions if isinstance(action.choices, dict)), {})
            parser = commands.get(word, parser)
        return parser

    def follow(self, before: Sequence[str]) -> dict[str, str]:
        """Return the words that may follow the words `before`, and their kinds: "command", "option" or "value"."""
        parser = self.at(before)
        if before and parser is self and any(isinstance(action.choices, dict) for action in self._actions):
            return {}
        for action in parser._actions:
            if action.nargs != 0 and before and before[-1] in action.option_strings:
                return dict.fromkeys(parser._values(action), "value")
        return parser._offered()

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            known = ", ".join(map(str, action.choices))
            near = meant(str(value), map(str, action.choices), self.others)
            self.error(f"{value!r} is not one of {known}{near}")

    def command(
        self,
        commands: argparse._SubParsersAction[Parser],
        name: str,
        call: Callable[[argparse.Namespace], Any],
        help: str,
    ) -> Parser:
        """Add a subcommand that runs `call(arguments)`."""
        parser: Parser = commands.add_parser(name, help=help, description=help)
        self.others |= {word: name for word, known in _SUBCOMMANDS.items() if known == name}
        parser.set_defaults(call=call, parser=parser)
        return parser


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


def identifiers(text: str) -> list[str]:
    """Parse names of variables: ``"a"``, ``"a,b"``."""
    return [identifier(name) for name in text.split(",")]


def add_options(parser: Parser, names: Iterable[str], **defaults: object) -> None:
    """Add start options, in this order. They have their own defaults, or these."""
    defaults = {**vars(StartOptions()), **defaults}
    for name in names:
        option = OPTIONS[name]
        parser.others |= dict.fromkeys(option.others, option.word)
        default = [] if option.repeatable else defaults[name]
        parser.add_argument(option.word, default=default, help=option.help, **option.argument)


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `XPUCluster` from the start options that the parser has."""
    found = {name: getattr(arguments, name) for name in OPTIONS if name in arguments}
    return {name: dict(value) if OPTIONS[name].repeatable else value for name, value in found.items()}


def ended_call(name: str) -> str:
    """Return the sentence about a call that a user has ended on the engines; about none if the name is empty."""
    return f"ended: {name}" if name else "no call runs on the engines"
