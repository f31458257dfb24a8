"""One mistake: what is done, and words that must be in the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Surface = Literal["build", "exec", "farm", "machine", "sdk", "api", "admin"]
USAGE, REFUSED, FAILED, DOWN = 2, 3, 4, 5
"""Exit codes of the command line, as `pockfarm.errors` has them."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """`act`: a command without its program, `METHOD /path JSON`, or Python; `$NAME` is a thing of the scene."""

    surface: Surface
    what: str
    act: str
    cause: str
    """In the answer: what is wrong."""
    place: str
    """In the answer: where."""
    step: str
    """In the answer: what to do next."""
    code: int = USAGE
    """Exit code, or HTTP status; 0 and 2xx: it is done, and there is a warning."""
    key: str = "operator"
    """Of a request: whose API key."""

    @property
    def id(self) -> str:
        return f"{self.surface}-{self.what}".replace(" ", "-")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of it."""

    code: int
    text: str
