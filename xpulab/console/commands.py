"""The parser and the options that the magic and the command line share.

Each subcommand has a parser and a function of its arguments that returns an object, which the caller displays.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from xpulab.deploy.options import OPTIONS, StartOptions
from xpulab.exceptions import UsageError

__all__ = [
    "Help",
    "Parser",
    "add_options",
    "ended_call",
    "given",
    "identifier",
    "natural",
    "numbers",
]

#: Values that completion offers for an option.
_VALUES = {option.word: option.values for option in OPTIONS.values()}


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


def add_options(parser: Parser, names: Iterable[str], **defaults: Any) -> None:
    """Add start options, in this order. They have their own defaults, or these."""
    defaults = {**vars(StartOptions()), **defaults}
    for name in names:
        option = OPTIONS[name]
        default = [] if option.repeatable else defaults[name]
        parser.add_argument(option.word, default=default, help=option.help, **option.argument)


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `XPUCluster` from the start options that the parser has."""
    found = {name: getattr(arguments, name) for name in OPTIONS if name in arguments}
    return {name: dict(value) if OPTIONS[name].repeatable else value for name, value in found.items()}


def ended_call(name: str) -> str:
    """The sentence about a call that a user has ended on the engines; about none if the name is empty."""
    return f"ended: {name}" if name else "no call runs on the engines"


def _near(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, 1, 0.5)
    return f"; did you mean {near[0]}?" if near else ""
