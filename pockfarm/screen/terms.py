"""Properties of standard output and standard error: a terminal or a pipe, its width, and whether it has colours."""

from __future__ import annotations

import os
import shutil
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TextIO

CHOICES = ("auto", "always", "never")
"""Choices of `--color`."""
LEAST_WIDTH = 40
"""Characters; a narrower window is taken to be so wide, and its own lines are broken by the terminal."""

_colour_choice: ContextVar[str] = ContextVar("asked for colours", default="auto")


@dataclass(frozen=True)
class Screen:
    """`is_live`: lines may be written over (a bar). `width`: characters; None: lines may be as long as they are."""

    is_live: bool = False
    has_colours: bool = False
    width: int | None = None


def choose(choice: str) -> None:
    """Sets the value of `--color` for all output from now on: one of `CHOICES`."""
    _colour_choice.set(choice)


def output() -> Screen:
    """Returns the properties of standard output."""
    return _screen(sys.stdout)


def errors() -> Screen:
    """Returns the properties of standard error, where progress and messages go."""
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
    choice = _colour_choice.get()
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return is_live or bool(os.environ.get("FORCE_COLOR"))
