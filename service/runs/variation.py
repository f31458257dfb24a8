"""How much a device's times vary from one run of the same to the next, by the runs that it has made."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import CompoundSelect, Text, cast, select, union_all
from sqlalchemy.orm import Session

from device_agents.figures.apart import Variation, variation_of
from service.database.models import Run

NEWEST = 200
"""Runs of a device that count: older ones are of another time."""
AT_ONCE = 100
"""Devices that one statement asks about."""
_Made = tuple[Any, ...]
"""Of a run: its bundle, settings as text, data, weights, and the median of its steps."""


def variations(
    session: Session, device_ids: Collection[str], *, judged: Collection[str] = ()
) -> dict[str, Variation]:  # fmt: skip
    """Of each device, by its newest valid profile runs that were the same run again.

    `judged`: runs that are to stand beside each other; they do not count. One that is far off would else widen the
    interval that it is judged by, and be found no further off than others.
    """
    ids, left_out = list(device_ids), frozenset(judged)
    found: dict[str, Variation] = {}
    for first in range(0, len(ids), AT_ONCE):
        some = ids[first : first + AT_ONCE]
        made: dict[str, list[_Made]] = {device_id: [] for device_id in some}
        for run_id, device_id, *rest in session.execute(_newest(some, NEWEST + min(len(left_out), NEWEST))):
            if run_id not in left_out:
                made[device_id].append(tuple(rest))
        found |= {device_id: _variation(rows[:NEWEST]) for device_id, rows in made.items()}
    return found


def _newest(device_ids: Sequence[str], limit: int) -> CompoundSelect[Any]:
    """Of each device by itself, along its index: one statement that sorts all would read all that it ever ran."""
    columns = (Run.id, Run.device_id, Run.bundle_digest, cast(Run.settings, Text).label("settings"),
               Run.dataset_digest, Run.weights_digest, Run.median_us)  # fmt: skip
    measured = select(*columns).where(Run.verdict == "valid", Run.median_us.is_not(None)).order_by(Run.id.desc())
    parts = (measured.where(Run.device_id == device_id).limit(limit).subquery() for device_id in device_ids)
    return union_all(*(select(*part.c) for part in parts))


def _variation(rows: Sequence[_Made]) -> Variation:
    kinds: dict[Any, list[float]] = {}
    for bundle, settings, data, weights, median_us in rows:
        kinds.setdefault((bundle, settings, data, weights), []).append(median_us)
    return variation_of(medians for (_, settings, *_), medians in kinds.items() if _is_profile(settings))


def _is_profile(settings: str) -> bool:
    return bool(json.loads(settings)["mode"] == "profile")
