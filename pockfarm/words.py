"""The words of a command line: what is wrong with them in one line, what was meant, and where help is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from pockfarm.near import meant

MISSING = "the following arguments are required"
"""How argparse begins to say so."""
NAMED = 20
"""Choices that are all named in a message; of more, help has the list."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, what was meant, and where help is. The parsers of its commands are such too."""

    def error(self, message: str) -> NoReturn:
        needed = self._commands() if message.startswith(MISSING) else ()
        said = f"{message} ({', '.join(needed)})" if needed else message
        self.exit(2, f"pockfarm: {said}{'' if said.endswith('?') else ';'} see {self.prog} --help\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuses an option that there is not before what is missing instead of it."""
        given = list(sys.argv[1:] if args is None else args)
        wrong = unknown_option(given, self._option_string_actions, self._commands())
        if wrong:
            self.error(f"no option '{wrong}'{meant(wrong, self._option_string_actions)}")
        return super().parse_known_args(given, namespace)

    def _commands(self) -> Mapping[str, object]:
        return next((one.choices for one in self._actions if isinstance(one, argparse._SubParsersAction)), {})

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(one) for one in action.choices]
        near = meant(str(value), known)
        if isinstance(action, argparse._SubParsersAction):
            kind = str(action.metavar or "command").lower()
            listed = "" if near or len(known) > NAMED else f"; there are: {', '.join(known)}"
            self.error(f"no {kind} '{value}'{near or listed}")
        raise argparse.ArgumentError(action, f"invalid choice: '{value}' (choose from {', '.join(known)}){near}")


def unknown_option(given: Sequence[str], known: Iterable[str], commands: Mapping[str, object]) -> str:
    """The first long option that is none, up to the command's name, whose own options come after it; else empty."""
    for word in given:
        if word in commands or word == "--":
            return ""
        name = word.partition("=")[0]
        if word.startswith("--") and not any(one.startswith(name) for one in known):
            return name
    return ""
