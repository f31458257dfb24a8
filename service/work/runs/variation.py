"""How much a device's times vary from one run of the same work to the next, judged by the runs that it has made."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Integer, Select, Text, bindparam, cast, func, select, union_all
from sqlalchemy.orm import Session

from device_agents.figures.separate_runs import UNKNOWN, Variation, together, variation_of
from service.store.database.models import Device, Run
from service.store.database.models.runs import settings_of_row

NEWEST = 200
"""Runs of a device that count, and as many more as are judged: older ones are of another time."""
AT_ONCE = 100
"""Devices that one statement asks about."""


def variations(session: Session, device_ids: Collection[str], *, judged: Collection[str] = ()) -> dict[str, Variation]:
    """Returns the variation of each device, by its timed canaries, and by its newest valid profile runs that were the
    same run again.

    `judged`: runs that are to stand beside each other; they do not count. One that is far off would else widen the
    interval that it is judged by, and be found no further off than others.
    """
    ids, by_device, canaries = list(device_ids), dict.fromkeys(device_ids, UNKNOWN), _of_canaries(session, device_ids)
    for first in range(0, len(ids), AT_ONCE):
        kinds: dict[str, dict[Any, list[float]]] = {}
        some = ids[first : first + AT_ONCE]
        for device_id, text, medians, *kind in session.execute(_kinds(len(some)), _parameters(some, judged)):
            settings = settings_of_row(json.loads(text))
            if settings.mode == "profile":
                of_kind = kinds.setdefault(device_id, {}).setdefault((settings, *kind), [])
                of_kind += map(float, medians.split())
        by_device |= {device_id: variation_of(of_device.values()) for device_id, of_device in kinds.items()}
    return {
        device_id: together(variation, canaries.get(device_id, UNKNOWN)) for device_id, variation in by_device.items()
    }


def _of_canaries(session: Session, device_ids: Collection[str]) -> dict[str, Variation]:
    """Returns the variation in the farm's runs, which show the same about a device to everybody who may see it."""
    query = select(Device.id, Device.canary_deviation, Device.canary_freedom)
    rows = session.execute(query.where(Device.id.in_(device_ids), Device.canary_freedom > 0))
    return {device_id: Variation(deviation, freedom) for device_id, deviation, freedom in rows}


@lru_cache(maxsize=AT_ONCE)
def _kinds(devices: int) -> Select[Any]:
    """Returns a row for each kind of run of each device, with the medians of all in one text: thousands of rows would
    take the page longer than all else. Each device is read by itself, along its index: a statement that sorted all at
    once would read whatever they ever ran. It is asked with the parameters of `_asked`, as to write it takes a while.
    """
    columns = (
        Run.id,
        Run.device_id,
        cast(Run.settings, Text).label("settings"),
        Run.bundle_digest,
        Run.dataset_digest,
        Run.weights_digest,
        Run.median_us,
    )
    # by verdict first, the same for all: PostgreSQL would else read the newest runs of all devices for those of one
    valid = Run.verdict.between("valid", "valid")
    measured = select(*columns).where(valid, Run.median_us.is_not(None), Run.is_canary.is_(False))
    measured = measured.order_by(Run.verdict.desc(), Run.id.desc()).limit(bindparam("most", type_=Integer))
    parts = [measured.where(Run.device_id == bindparam(f"device_{n}")).subquery() for n in range(devices)]
    newest = union_all(*(select(*part.c) for part in parts)).subquery().c
    kind = (newest.bundle_digest, newest.dataset_digest, newest.weights_digest)
    return (
        select(newest.device_id, newest.settings, func.aggregate_strings(cast(newest.median_us, Text), " "), *kind)
        .where(newest.id.not_in(bindparam("judged", expanding=True)))
        .group_by(newest.device_id, newest.settings, *kind)
    )


def _parameters(device_ids: Sequence[str], judged: Collection[str]) -> dict[str, Any]:
    limit = NEWEST + min(len(judged), NEWEST)
    return {
        "judged": list(judged),
        "most": limit,
        **{f"device_{n}": device_id for n, device_id in enumerate(device_ids)},
    }
