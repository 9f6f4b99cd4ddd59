"""The subcommands that the magic and the command line share: their words, their help, and the calls behind them.

Each is a parser's description and a function of its arguments that returns an object; whoever typed it shows that.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from xpulab.exceptions import UsageError

__all__ = ["Help", "Parser", "add_placement", "engine_count"]


class Help(Exception):
    """Help was asked for; the message is the text."""


class Parser(argparse.ArgumentParser):
    """argparse without exits: mistakes are `UsageError`, with the nearest word known; help is `Help`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.ArgumentDefaultsHelpFormatter)
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

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = ", ".join(map(str, action.choices))
            self.error(f"{value!r} is none of {known}{_near(str(value), list(map(str, action.choices)))}")

    def command(self, commands: Any, name: str, call: Callable[[argparse.Namespace], Any], help: str) -> Parser:
        """Add a subcommand that ends in `call(arguments)`."""
        parser: Parser = commands.add_parser(name, help=help, description=help)
        parser.set_defaults(call=call, parser=parser)
        return parser


def engine_count(text: str) -> int:
    """A number of engines, as typed."""
    try:
        n = int(text)
    except ValueError:
        n = 0
    if n < 1:
        raise argparse.ArgumentTypeError(f"received {text!r}, expected a whole number of engines, 1 or more; e.g. -n 2")
    return n


def add_placement(parser: Parser, n: int | None, devices: str | None, strict: bool) -> None:
    """The options that say how many engines go where, with their defaults."""
    parser.add_argument("-n", type=engine_count, default=n, metavar="N", help="engines; one per device if not given")
    parser.add_argument(
        "--devices", default=devices, metavar="WHICH", help="gpu, cpu, or a SYCL selector such as level_zero:0"
    )
    parser.add_argument(
        "--strict", action="store_true", default=strict, help="raise where engines would share cores or a device"
    )


def _near(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, 1, 0.5)
    return f"; did you mean {near[0]}?" if near else ""
