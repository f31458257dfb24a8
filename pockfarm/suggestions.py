"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 200
"""Characters of what was given that are looked up."""


def nearest(name: str, candidates: Iterable[str]) -> str:
    """The known name that is nearest; empty if none is near."""
    names = {_plain(candidate): candidate for candidate in candidates}
    near = difflib.get_close_matches(_plain(name[:LONGEST]), names, n=1)
    return names[near[0]] if near else ""


def _plain(name: str) -> str:
    """Without what all options begin with: two dashes alone make no two of them alike."""
    return name.lower().removeprefix("--")


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Returns a hint, `did you mean 'compile'?`; empty if no known name is near."""
    near = nearest(name, candidates)
    return f"did you mean '{near}'?" if near else ""


def suggestion(name: str, candidates: Iterable[str]) -> str:
    """Returns the hint as the end of a message, `; did you mean 'compile'?`; empty if no known name is near."""
    hint = did_you_mean(name, candidates)
    return f"; {hint}" if hint else ""
