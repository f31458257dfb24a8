"""The words of a command line: what is wrong with them in one line, what was meant, and where help is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from pockfarm.errors import UsageError
from pockfarm.output.error_messages import tell
from pockfarm.screen import Meaning, output, painted
from pockfarm.suggestions import did_you_mean

MISSING = "the following arguments are required"
"""The beginning of argparse's message about missing arguments."""
NAMED = 20
"""Choices that are all named in a message; of more, help has the list."""


class Paragraphs(argparse.HelpFormatter):
    """Lines of a text stay lines; commands stand under the headings of their `groups`, if they have any."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" not in text:
            return super()._fill_text(text, width, indent)
        return "\n".join(f"{indent}{line}" if line else "" for line in text.splitlines())

    def _format_action(self, action: argparse.Action) -> str:
        groups: Mapping[str, Sequence[str]] = getattr(action, "groups", {})
        if not isinstance(action, argparse._SubParsersAction) or not groups:
            return super()._format_action(action)
        by_name = {choice.dest: choice for choice in action._choices_actions}
        lines = []
        for heading, names in groups.items():
            lines.append(f"\n  {heading}:\n")
            self._indent()
            lines += [super(Paragraphs, self)._format_action(by_name[name]) for name in names]
            self._dedent()
        return "".join(lines)


class WrongArgument(argparse.ArgumentError):
    """An argument that its parser refuses, with a hint at what was meant."""

    def __init__(self, argument: argparse.Action | None, message: str, hint: str = "") -> None:
        super().__init__(argument, message)
        self.hint = hint


class WrongWords(UsageError):
    """Words of a command line that do not fit; the text calls `where` an argument."""

    @property
    def place(self) -> str:
        """Returns the beginning of the text, as argparse words it."""
        return f"argument {super().place}" if self.where else ""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, what was meant, and where help is. The parsers of its commands are such too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Paragraphs, "exit_on_error": False, **options})

    def add_subparsers(self, **options: Any) -> Any:
        """Their heading is what they are called."""
        heading = f"{options.get('metavar', 'command').lower()}s"
        return super().add_subparsers(**{"title": heading, **options})

    def error(self, message: str) -> NoReturn:
        needed = self._commands() if message.startswith(MISSING) else ()
        self.refuse(f"{message} ({', '.join(needed)})" if needed else message)

    def refuse(self, message: str, hint: str = "", where: str = "") -> NoReturn:
        """Ends the program with what is wrong, what was meant, and where help is."""
        sign = "" if hint.endswith("?") or not hint else ";"
        tell(WrongWords(message, where=where, hint=f"{hint}{sign} see {self.prog} --help".lstrip()))
        self.exit(UsageError.exit_code)

    def format_help(self) -> str:
        """Headings stand out where there are colours."""
        text = super().format_help()
        if not output().has_colours:
            return text
        return "".join(_headed(line) for line in text.splitlines(keepends=True))

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuses an option that there is not before what is missing instead of it."""
        words = list(sys.argv[1:] if args is None else args)
        wrong = unknown_option(words, self._option_string_actions, self._commands())
        if wrong:
            option_actions = self._option_string_actions
            if later := self._later(wrong):
                self.refuse(f"no option '{wrong}' here", later)
            self.refuse(f"no option '{wrong}'", instead(wrong, option_actions) or did_you_mean(wrong, option_actions))
        try:
            options, more = super().parse_known_args(words, namespace)
        except argparse.ArgumentError as problem:
            if problem.argument_name is None:
                self.error(problem.message)
            self.refuse(problem.message, getattr(problem, "hint", ""), problem.argument_name)
        if more:
            self.refuse(f"'{more[0]}' is one too many here", instead(more[0], self._option_string_actions))
        return options, more

    def _later(self, wrong: str) -> str:
        """Returns a hint for an option of a command that stands before the command; else empty."""
        name = wrong.partition("=")[0]
        some = [path for path, command in walk(self) if runs(command) and name in command._option_string_actions]
        return f"it stands after the command: {self.prog} {' '.join(some[0])} {name}" if some else ""

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as problem:
            if not problem.message.startswith("invalid "):
                raise
            kind = "a number" if getattr(action.type, "__name__", "") == "float" else "a whole number"
            raise argparse.ArgumentError(action, f"'{arg_string}' is not {kind}") from None

    def _commands(self) -> Mapping[str, object]:
        return commands_in(self)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        near = did_you_mean(str(value), choices)
        if isinstance(action, argparse._SubParsersAction):
            kind = str(action.metavar or "command").lower()
            listed = "" if near or len(choices) > NAMED else f"there are: {', '.join(choices)}"
            self.refuse(f"no {kind} '{value}'", near or listed)
        raise WrongArgument(
            action, f"invalid choice: '{value}' (choose from {', '.join(choices)})", near or self._order(action)
        )

    def _order(self, action: argparse.Action) -> str:
        """In which order arguments stand, for one that has its meaning by its place."""
        by_place = [argument for argument in self._actions if not argument.option_strings]
        names = " ".join(str(argument.metavar or argument.dest.upper()) for argument in by_place)
        return f"the order is {self.prog} {names}" if action in by_place and len(by_place) > 1 else ""


SAME: Mapping[str, Sequence[str]] = {
    "--lr": ("--learning-rate",),
    "--rate": ("--learning-rate",),
    "--epochs": ("--steps",),
    "--dataset": ("--data",),
    "--data": ("--dataset",),
    "--output": ("--out",),
    "-o": ("--out",),
    "-n": ("--steps",),
    "-v": ("--version",),
    "-d": ("--data", "--dataset"),
    "-t": ("--target",),
    "-p": ("--plan", "--port"),
}
"""Other programs' names of options, and the options that may stand for them here."""
OF_SPEC: Mapping[str, str] = {
    "--batch": "batch: 8",
    "--batch-size": "batch: 8",
    "--loss": "loss: {kind: mse}",
    "--optimizer": "optimizer: {kind: adam}",
    "--lr": "optimizer: {learning_rate: 0.01}",
    "--learning-rate": "optimizer: {learning_rate: 0.01}",
    "--threads": "threads: 2",
}
"""Examples of settings that belong in a spec, by the option that another program has for them."""


def instead(wrong: str, options: Mapping[str, object]) -> str:
    """Returns what another program's word is called here, as a hint; empty if nobody knows."""
    name = wrong.partition("=")[0]
    here = next((name_here for name_here in SAME.get(name, ()) if name_here in options), "")
    if here:
        return f"here it is called {here}"
    if name in OF_SPEC and "--spec" in options:
        return f"the spec says it: --spec '{OF_SPEC[name]}'"
    if name in OF_SPEC:
        return "the bundle has it from its spec: build it with another"
    return ""


def commands_in(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The commands, or a command's actions, by name."""
    return next((action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)), {})


def walk(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Each command with its words, `("devices", "show")`, in the order of help; groups of commands among them."""
    for name, command in commands_in(parser).items():
        yield (*path, name), command
        yield from walk(command, (*path, name))


def runs(command: argparse.ArgumentParser) -> bool:
    """Whether it does something itself; a group of commands may only hold others."""
    return command.get_default("run") is not None


def _headed(line: str) -> str:
    word, colon, rest = line.partition(":")
    is_heading = bool(colon) and not word.startswith("    ") and (not rest.strip() or word == "usage")
    return f"{painted(word + colon, Meaning.HEAD)}{rest}" if is_heading else line


def unknown_option(words: Sequence[str], options: Iterable[str], commands: Mapping[str, object]) -> str:
    """The first long option that is none, up to the command's name, whose own options come after it; else empty.

    A word where a command is expected, which is none, is what is wrong then.
    """
    before = ""
    for word in words:
        is_value = before.startswith("--") and "=" not in before
        if word in commands or word == "--" or (commands and not word.startswith("-") and not is_value):
            return ""
        before, name = word, word.partition("=")[0]
        if word.startswith("--") and not any(option.startswith(name) for option in options):
            return name
    return ""
