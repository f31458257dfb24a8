"""Warnings of a compile beside its result: the step does what was asked, but perhaps not what was meant.

A warning is said once for all that it concerns, which it names by its first few members and their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_WARNINGS = 64
MAX_CHARACTERS = {"code": 80, "where": 200, "message": 1000, "hint": 500}
"""Longest text of each field: names come from the model, whose author we do not know."""


@dataclass(frozen=True)
class CompileWarning:
    """A warning: `code` a stable dotted identifier, `where` the node, parameter or field concerned."""

    code: str
    where: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.message}{hint}"

    def to_json(self) -> dict[str, str]:
        """Its fields, as the compile report has them."""
        return {name: getattr(self, name) for name in MAX_CHARACTERS}


def presentable(warnings: Sequence[CompileWarning]) -> tuple[CompileWarning, ...]:
    """Returns the warnings that leave the compiler: no duplicates, printable text of bounded length, and at most
    `MAX_WARNINGS`.

    Beyond that the last one counts the others.
    """
    distinct = list(dict.fromkeys(warnings))
    if len(distinct) > MAX_WARNINGS:
        listed = distinct[: MAX_WARNINGS - 1]
        rest = CompileWarning(
            "compile.more_warnings", "", f"{len(distinct) - len(listed)} more warnings are not listed"
        )
        distinct = [*listed, rest]
    return tuple(
        CompileWarning(**{name: printable(text, MAX_CHARACTERS[name]) for name, text in warning.to_json().items()})
        for warning in distinct
    )


def few_of(names: Sequence[str], limit: int = 3) -> str:
    """The first names of a list, and how many more there are."""
    first = ", ".join(names[:limit])
    return first if len(names) <= limit else f"{first} and {len(names) - limit} more"


def printable(text: str, limit: int) -> str:
    """The text on one line and no longer than a limit."""
    line = "".join(character if character.isprintable() else " " for character in text)
    return line if len(line) <= limit else line[: limit - 1] + "…"
