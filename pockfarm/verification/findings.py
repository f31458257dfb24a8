"""Findings about a file, and the error for a file that does not hold."""

from __future__ import annotations

from dataclasses import dataclass

MAX_TEXT_BYTES = 64 << 20


class NotVerified(Exception):
    """The file is not what it should be; the message says where and why."""


@dataclass(frozen=True)
class Finding:
    """A fact that holds."""

    what: str
    how: str
