"""What stands at the ends of standard output and standard error: a terminal or a pipe, how wide, and with colours?"""

from __future__ import annotations

import os
import shutil
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TextIO

CHOICES = ("auto", "always", "never")
"""Of `--color`."""
LEAST_WIDTH = 40
"""Characters; a narrower window is taken to be so wide, and its own lines are broken by the terminal."""

_asked: ContextVar[str] = ContextVar("asked for colours", default="auto")


@dataclass(frozen=True)
class Screen:
    """`is_live`: lines may be written over (a bar). `width`: characters; None: lines may be as long as they are."""

    is_live: bool = False
    has_colours: bool = False
    width: int | None = None


def choose(asked: str) -> None:
    """What `--color` says, for all that is written from now on: one of `CHOICES`."""
    _asked.set(asked)


def output() -> Screen:
    """Of standard output."""
    return _screen(sys.stdout)


def errors() -> Screen:
    """Of standard error, where progress and messages go."""
    return _screen(sys.stderr)


def _screen(stream: TextIO) -> Screen:
    is_terminal = _is_terminal(stream)
    is_live = is_terminal and os.environ.get("TERM") != "dumb"
    width = max(LEAST_WIDTH, shutil.get_terminal_size((80, 24)).columns) if is_terminal else None
    return Screen(is_live, _has_colours(is_live), width)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # it is closed
        return False


def _has_colours(is_live: bool) -> bool:
    """`--color` first; then NO_COLOR (no-color.org) and FORCE_COLOR, which count if they are not empty."""
    asked = _asked.get()
    if asked != "auto":
        return asked == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return is_live or bool(os.environ.get("FORCE_COLOR"))
