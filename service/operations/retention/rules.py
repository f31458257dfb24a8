"""Rules of retention: how many days what an organisation has stays. No rule, for ever, is the default of most.

A rule is an organisation's own (`PATCH /organisations/{id}`) or the farm's for all (`POCKFARM_RETENTION_<NAME>_DAYS`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from service.base.settings import Settings

RuleName = Literal["weights", "bundles", "datasets", "models", "events", "audit", "deliveries"]
WORDS: Mapping[RuleName, str] = {
    "weights": "trained weights, after their last use",
    "bundles": "bundles, after their last run",
    "datasets": "data sets, after their last run",
    "models": "models and their data files, after their last compile",
    "events": "events of jobs and runs, after their end",
    "audit": "entries of the audit log",
    "deliveries": "the log of webhooks' deliveries",
}
DAY_S = 86400.0


def days_of(settings: Settings, overrides: Mapping[str, float | None], name: RuleName) -> float | None:
    """Returns the days that something stays with an organisation that has these rules; None: for ever."""
    if name in overrides:
        return overrides[name]
    default: float | None = getattr(settings, f"retention_{name}_days")
    return default
