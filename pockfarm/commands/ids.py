"""What an id names: the farm's ids begin with the kind of thing."""

from __future__ import annotations

from collections.abc import Mapping

from pockfarm.errors import UsageError

LISTED_BY: Mapping[str, str] = {"run": "pockfarm runs", "job": "pockfarm jobs", "dev": "pockfarm devices"}


def kind_of(given: str, *kinds: str) -> str:
    """Which of the kinds the id is of. Raises: UsageError if of none."""
    kind = given.partition("_")[0]
    if kind in kinds and "_" in given:
        return kind
    begin = " or ".join(f"{one}_…" for one in kinds)
    lists = ", ".join(f"`{LISTED_BY[one]}`" for one in kinds)
    raise UsageError(f"'{given}' is no id that this takes: those are {begin}; {lists} list them")
