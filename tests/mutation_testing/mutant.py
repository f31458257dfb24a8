"""What a mutant is: a place in a source file, and what stands there instead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OPERATORS = ("comparison", "constant", "branch", "dropped call", "return")


@dataclass(frozen=True)
class Mutant:
    """One change of a source file: characters `start` to `end` of its text become `after`."""

    path: str
    """Relative to the checkout."""
    operator: str
    start: int
    end: int
    before: str
    after: str
    line: int
    """Counted from 1."""
    probed_lines: tuple[int, ...]
    """Before these lines a statement tells which test arrives: the mutant's own, or each function of its module."""

    def applied(self, text: str) -> str:
        """The source with the change. Raises: ValueError if the text is another one."""
        if text[self.start : self.end] != self.before:
            raise ValueError(f"{self.path}:{self.line} does not read {self.before!r}")
        return text[: self.start] + self.after + text[self.end :]

    def describe(self) -> str:
        return f"{self.path}:{self.line} {self.operator}: {_short(self.before)} -> {_short(self.after)}"


def swaps(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Both ways."""
    return {**dict(pairs), **{after: before for before, after in pairs}}


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else f"{flat[:57]}..."
