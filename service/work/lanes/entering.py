"""Putting a run into its lane, for good: what decides the lane of a run never changes.

The rarest wish: under which of its wishes a run is looked up.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.artefacts.bundles.service import built
from service.devices.wants import offers_of
from service.store.calls import call_for
from service.store.database.insert import insert_if_new
from service.store.database.memory import recalled
from service.store.database.models import NO_LANE_YET, Device, Lane, Run
from service.store.database.scope import EVERYONES, organisation_of
from service.work.lanes.key import LaneKey, class_wish, device_wish, target_wish
from service.work.runs import compared

_KEY = "offers of all devices"


def rarest_wish(session: Session, key: LaneKey) -> str:
    """Returns, of all that a run wants of its device, what the fewest devices offer: no more of them than need be look
    at it.

    Which it is decides what a look costs, never who may take the run; so counts may be a second old, and are not kept
    right when devices come and go.
    """
    if key.device_id:
        return device_wish(key.device_id)
    wishes = key.wants.split("\n") if key.wants else []
    if key.device_class:
        wishes.append(class_wish(key.device_class))
    if not wishes:
        return target_wish(key.target)
    if len(wishes) == 1:
        return wishes[0]
    counts = recalled(session, _KEY, frozenset(), lambda: _counts(session))
    return min(wishes, key=lambda wish: counts.get(wish, 0))


def _counts(session: Session) -> Mapping[str, int]:
    """Returns how many devices offer each tag, data set, mode and class."""
    query = select(Device.tags, Device.own_datasets, Device.modes, Device.device_class).where(Device.state != "removed")
    counts: Counter[str] = Counter()
    for tags, own_datasets, modes, device_class in session.execute(query, execution_options=EVERYONES):
        counts.update(offers_of(tags, own_datasets, modes))
        counts[class_wish(device_class)] += 1
    return counts


def enter(session: Session, run: Run, features: Collection[str]) -> None:
    """Puts a new run into its lane, and records how devices find it."""
    key = LaneKey.of(run, features, run.organisation_id or organisation_of(session))
    run.lane_id, run.attempts = key.id, run.attempts or 0
    run.rarest_wish, run.asked_s = rarest_wish(session, key), run.settings.time_limit_s or 0.0
    call_for(session, run)
    if recalled(session, ("lane", key.id), frozenset(), lambda: session.get(Lane, key.id) and key.id) is None:
        insert_if_new(session, Lane, key.columns() | {"created_at": time.time()})


def enter_queued(session: Session, *, most: int) -> int:
    """Puts queued runs that older code has queued into their lanes, at most `most` of them. Returns how many."""
    query = select(Run).where(NO_LANE_YET).order_by(Run.created_at, Run.id).limit(most)
    runs = list(session.scalars(query.with_for_update(skip_locked=True)))
    for run in runs:
        enter(session, run, compared.features(built(session, run.bundle_digest), compared.others(session, run)))
    return len(runs)
