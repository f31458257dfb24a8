"""Long tasks in small slices: each sweep advances them a little, so that its other steps are not kept waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

FIRST_S = 60.0
"""Longest wait for the first pass after the process has started, in seconds."""
SLICE_S = 0.2
"""Longest slice of a sweep: its other steps wait for it."""


class Pass(Protocol):
    """Work in steps that take little time each; it may be left at any point, and another be begun."""

    def steps(self) -> Iterator[None]:
        """Yields after each step of the pass."""
        ...

    def say(self) -> None:
        """Logs what it did."""
        ...


class IncrementalTask:
    """Passes of one kind, begun every `every_s` seconds and advanced a slice at a time. Any number of processes may
    work on a farm at once.
    """

    def __init__(self, begin: Callable[[], Pass], *, every_s: float) -> None:
        self._begin, self._every_s = begin, every_s
        self._next_at = time.monotonic() + min(every_s, FIRST_S)
        self._pass: Pass | None = None
        self._steps: Iterator[None] = iter(())

    def advance(self) -> None:
        """Does a slice of the pass that is under way, or begins one when it is due. A pass that fails is abandoned."""
        if self._pass is None:
            if self._every_s <= 0 or time.monotonic() < self._next_at:
                return
            self._pass = self._begin()
            self._steps = self._pass.steps()
        until = time.monotonic() + SLICE_S
        try:
            for _ in self._steps:
                if time.monotonic() >= until:
                    return
        except Exception:
            self._end()
            raise
        self._pass.say()
        self._end()

    def _end(self) -> None:
        self._pass, self._steps = None, iter(())
        self._next_at = time.monotonic() + self._every_s
