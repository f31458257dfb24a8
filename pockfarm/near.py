"""What somebody meant who misspelt a name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 200
"""Characters of what was given that are looked up."""


def nearest(given: str, known: Iterable[str]) -> str:
    """The known name that is nearest; empty if none is near."""
    names = {_plain(one): one for one in known}
    near = difflib.get_close_matches(_plain(given[:LONGEST]), names, n=1)
    return names[near[0]] if near else ""


def _plain(name: str) -> str:
    """Without what all options begin with: two dashes alone make no two of them alike."""
    return name.lower().removeprefix("--")


def meant(given: str, known: Iterable[str]) -> str:
    """`; did you mean 'compile'?`, to be put after what is wrong; empty if no known name is near."""
    near = nearest(given, known)
    return f"; did you mean '{near}'?" if near else ""
