"""`pockfarm help [COMMAND ...]` and `pockfarm completion SHELL`: this program itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from pockfarm.command_line.words import Parser, commands_in
from pockfarm.commands.completion import SHELLS, script
from pockfarm.errors import UsageError
from pockfarm.suggestions import did_you_mean

Adder = Callable[["argparse._SubParsersAction[Any]"], None]


def adds_help(top: Parser) -> Adder:
    """Returns the function that adds `help`, which explains all commands of this parser."""

    def add(subparsers: argparse._SubParsersAction[Any]) -> None:
        words = "print what a command does, its options, an example, and its exit codes"
        command = subparsers.add_parser("help", help=words, description=words)
        command.add_argument("words", nargs="*", metavar="COMMAND", help="such as: devices show (default: all)")
        command.set_defaults(run=lambda options: _help(top, options.words))

    return add


def add_completion(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "print what makes a shell complete commands, options, targets, presets and ids"
    command = subparsers.add_parser("completion", help=words, description=words)
    command.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    command.set_defaults(run=_completion)


def _help(top: Parser, words: list[str]) -> int:
    command: argparse.ArgumentParser = top
    for word in words:
        below = commands_in(command)
        if word not in below:
            hint = f"see {command.prog} --help"
            near = did_you_mean(word, below)
            raise UsageError(f"no command '{word}'", hint=f"{near}; {hint}" if near else hint)
        command = below[word]
    command.print_help()
    return 0


def _completion(options: argparse.Namespace) -> int:
    print(script(options.shell))
    return 0
