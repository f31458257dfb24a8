"""Limits that a board's owner sets for jobs, whatever its farm says: the lower of both holds. `--limit run_s=600`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from device_agents.errors import EnrolmentError
from device_agents.wire import Limits

NAMES = tuple(field.name for field in dataclasses.fields(Limits))


def parse(options: Iterable[str]) -> dict[str, float]:
    """`NAME=NUMBER` each; of one named twice the lower. Raises: `EnrolmentError`: the board's owner must act."""
    limits: dict[str, float] = {}
    for option in options:
        name, _, text = option.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if name not in NAMES or not 0 < value < math.inf:
            raise EnrolmentError(f"--limit {option}: expected NAME=NUMBER above 0, NAME one of {', '.join(NAMES)}")
        limits[name] = min(value, limits.get(name, math.inf))
    return limits


def lower(signed: Limits, owner_limits: Mapping[str, float]) -> tuple[Limits, dict[str, float]]:
    """The limits that hold, and those of them that are the owner's."""
    bound = {name: value for name, value in owner_limits.items() if value < getattr(signed, name)}
    lowered: dict[str, Any] = {name: int(value) if name.endswith("_bytes") else value for name, value in bound.items()}
    return dataclasses.replace(signed, **lowered), bound
