"""The rarest wish: under which of its wishes a run is looked up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.devices.wants import offers_of
from service.store.database.memory import recalled
from service.store.database.models import Device
from service.store.database.scope import EVERYONES
from service.work.lanes.key import LaneKey, class_wish, device_wish, target_wish

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
    """How many devices offer each tag, data set, mode and class."""
    query = select(Device.tags, Device.own_datasets, Device.modes, Device.device_class).where(Device.state != "removed")
    counts: Counter[str] = Counter()
    for tags, own_datasets, modes, device_class in session.execute(query, execution_options=EVERYONES):
        counts.update(offers_of(tags, own_datasets, modes))
        counts[class_wish(device_class)] += 1
    return counts
