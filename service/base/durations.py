"""Durations in words."""

from __future__ import annotations

from collections.abc import Sequence


def format_duration(seconds: float) -> str:
    """Returns a duration in words, rounded to one unit: `40 seconds`, `3 minutes`, `2 hours`."""
    for size, name in ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second")):
        if seconds >= 1.5 * size or name == "second":
            count = max(1, round(seconds / size))
            return f"{count} {name}{'' if count == 1 else 's'}"
    raise AssertionError("seconds are the last")


def format_duration_range(seconds: Sequence[float]) -> str:
    """Returns `40 seconds to 3 minutes`, and `40 seconds each` where both ends read the same."""
    least, most = format_duration(min(seconds)), format_duration(max(seconds))
    if least != most:
        return f"{least} to {most}"
    return least if len(seconds) == 1 else f"{least} each"
