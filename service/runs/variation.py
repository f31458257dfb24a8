"""How much a device's times vary from one run of the same to the next, by the runs that it has made."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.figures.apart import Variation, variation_of
from service.database.models import Run

NEWEST = 200
"""Runs of a device that count: older ones are of another time."""


def variations(
    session: Session, device_ids: Collection[str], *, judged: Collection[str] = ()
) -> dict[str, Variation]:  # fmt: skip
    """Of each device, by its newest valid profile runs that were the same run again.

    `judged`: runs that are to stand beside each other; they do not count. One that is far off would else widen the
    interval that it is judged by, and be found no further off than others.
    """
    return {device_id: _variation(session, device_id, judged) for device_id in device_ids}


def _variation(session: Session, device_id: str, judged: Collection[str]) -> Variation:
    rows = session.execute(
        select(Run.bundle_digest, Run.settings, Run.dataset_digest, Run.weights_digest, Run.median_us)
        .where(Run.device_id == device_id, Run.verdict == "valid", Run.median_us.is_not(None), Run.id.not_in(judged))
        .order_by(Run.id.desc())
        .limit(NEWEST)
    )
    kinds: dict[Any, list[float]] = {}
    for bundle, settings, data, weights, median_us in rows:
        if settings.mode == "profile" and median_us is not None:
            kinds.setdefault((bundle, settings, data, weights), []).append(median_us)
    return variation_of(kinds.values())
