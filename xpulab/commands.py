"""The subcommands that the magic and the command line share: their words, their help, and the calls behind them.

Each is a parser's description and a function of its arguments that returns an object; whoever typed it shows that.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from xpulab.exceptions import UsageError

__all__ = ["Help", "Parser", "add_placement", "count", "identifier", "numbers"]

#: Values to complete; a selector would take a look at the drivers.
_VALUES = {"--devices": ("gpu", "cpu")}


class Help(Exception):
    """Help was asked for; the message is the text."""


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Help that names the defaults that say something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False) else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """argparse without exits: mistakes are `UsageError`, with the nearest word known; help is `Help`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _Formatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\n{self.format_usage()}for all of it: {self.prog} -h")

    def print_help(self, file: Any = None) -> None:
        raise Help(self.format_help())

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = getattr(found, "parser", self)
            parser.error(f"unknown: {' '.join(unknown)}{_near(unknown[0], parser.words())}")
        return found

    def words(self) -> list[str]:
        """Every option and subcommand known at this point."""
        found: list[str] = []
        for action in self._actions:
            found += action.option_strings or list(action.choices or ())
        return found

    def follow(self, before: Sequence[str]) -> list[str]:
        """The words that may come after the words `before`: a completion's."""
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
            self.error(f"{value!r} is none of {known}{_near(str(value), list(map(str, action.choices)))}")

    def command(self, commands: Any, name: str, call: Callable[[argparse.Namespace], Any], help: str) -> Parser:
        """Add a subcommand that ends in `call(arguments)`."""
        parser: Parser = commands.add_parser(name, help=help, description=help)
        parser.set_defaults(call=call, parser=parser)
        return parser


def count(text: str) -> int:
    """A whole number from 1 on, as typed."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"received {text!r}, expected a whole number, 1 or more")
    return int(text)


def numbers(text: str) -> list[int]:
    """Whole numbers from 0 on, as typed: ``"0,2"``, ``"0-3"``."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"received {text!r}, expected whole numbers such as 0,2 or 0-3")
        found += range(int(first), int(last or first) + 1)
    return found


def identifier(text: str) -> str:
    """The name of a variable, as typed."""
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"received {text!r}, expected the name of a variable")
    return text


def add_placement(parser: Parser, n: int | None, devices: str | None, strict: bool) -> None:
    """The options that say how many engines go where, with their defaults."""
    parser.add_argument("-n", type=count, default=n, metavar="N", help="engines; one per device if not given")
    parser.add_argument(
        "--devices", default=devices, metavar="WHICH", help="gpu, cpu, or a SYCL selector such as level_zero:0"
    )
    parser.add_argument(
        "--strict", action="store_true", default=strict, help="raise where engines would share cores or a device"
    )


def _near(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, 1, 0.5)
    return f"; did you mean {near[0]}?" if near else ""
