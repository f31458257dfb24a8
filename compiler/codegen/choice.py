"""A `Choice` names one way to schedule a kernel, among those that its family offers.

A family that offers several says so in its plan (see `codegen.family`), and its emitter takes one:

    plan:     choices(spec, target, threads) -> tuple[Choice, ...]      the first is what the family does by default
              workspace_bytes(spec, target, threads, choice=None)       None: the default
    emitter:  emit(spec, target, threads, choice=None)

What a parameter means is the family's own business; outside, a choice is only compared, stored and printed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from compiler.kernels.spec import KernelSpec

ChoiceValue = int | str | bool
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_WORD = re.compile(r"[a-z0-9][a-z0-9_.,-]{0,39}")
_NUMBER = re.compile(r"-?[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class Choice:
    """Named schedule parameters, sorted by name. Make one with `choose`; the empty one is the family's default."""

    parameters: tuple[tuple[str, ChoiceValue], ...] = ()

    @property
    def text(self) -> str:
        """Returns the choice as text, the same everywhere for the same choice: `rows=6 split=batch vectors=4`; empty
        for the default.
        """
        return " ".join(f"{name}={_value_text(value)}" for name, value in self.parameters)

    def integer(self, name: str, default: int) -> int:
        """The parameter as a whole number. Raises: ValueError if it is something else."""
        value = dict(self.parameters).get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"parameter {name!r} is {value!r}, not a whole number")
        return value

    def word(self, name: str, default: str) -> str:
        """The parameter as a word. Raises: ValueError if it is something else."""
        value = dict(self.parameters).get(name, default)
        if not isinstance(value, str):
            raise ValueError(f"parameter {name!r} is {value!r}, not a word")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """The parameter as a truth value. Raises: ValueError if it is something else."""
        value = dict(self.parameters).get(name, default)
        if not isinstance(value, bool):
            raise ValueError(f"parameter {name!r} is {value!r}, not yes or no")
        return value


DEFAULT = Choice()
"""The choice of a family that decides from the target's figures alone."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel and how it is scheduled: one object file."""

    spec: KernelSpec
    choice: Choice = DEFAULT


def choose(**parameters: ChoiceValue) -> Choice:
    """A choice of these parameters. Raises: ValueError if a name or value has no text form."""
    choice = Choice(tuple(sorted(parameters.items())))
    if parse_choice(choice.text) != choice:
        raise ValueError(f"not writable as text: {parameters}")
    return choice


def parse_choice(text: str) -> Choice:
    """The choice that has this text. Raises: ValueError if none has."""
    pairs = [item.split("=", 1) for item in text.split(" ")] if text else []
    if any(len(pair) != 2 or not _NAME.fullmatch(pair[0]) for pair in pairs):
        raise ValueError(f"not a choice: {text[:200]!r}")
    choice = Choice(tuple((name, _parse_value(value)) for name, value in pairs))
    names = [name for name, _ in choice.parameters]
    if names != sorted(set(names)) or choice.text != text:
        raise ValueError(f"not a choice in its stable form: {text[:200]!r}")
    return choice


def _value_text(value: ChoiceValue) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _parse_value(text: str) -> ChoiceValue:
    if text in ("yes", "no"):
        return text == "yes"
    if _NUMBER.fullmatch(text):
        return int(text)
    if _WORD.fullmatch(text):
        return text
    raise ValueError(f"not a parameter's value: {text[:80]!r}")
