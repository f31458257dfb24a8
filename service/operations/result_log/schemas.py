"""Answers of the log."""

from __future__ import annotations

from typing import Any

from service.base.schemas import View


class LeavesView(View):
    """A piece of the log."""

    start: int
    size: int
    """Size of the whole log."""
    leaves: list[str]
    """SHA-256 of a zero byte and the entry's canonical JSON, hex; the first is that of `start`."""


class HeadView(View):
    """A head that the farm kept."""

    size: int
    paper: dict[str, Any]
    """As `GET /log/head` gave it then."""


class HeadsView(View):
    """Kept heads, the oldest first; empty: there are no more."""

    heads: list[HeadView]


class ConsistencyView(View):
    """A proof as in RFC 9162, 2.1.4."""

    first: int
    second: int
    proof: list[str]
