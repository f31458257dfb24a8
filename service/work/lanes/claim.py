"""The claim: a device looks at the head of each lane that it fits, and takes the one whose turn it is.

A look reads two index entries per lane, whatever waits there and elsewhere, and comes to no lane that is empty, or that
asks first of all for what the device does not offer (`finding.py`). Runs that the device is not to have (it has failed
on them; they would last into its maintenance) are passed over one by one within the index: they hide nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Select, or_, select
from sqlalchemy.orm import Session, aliased

from service.people.quotas.rates import Share
from service.store.database.models import HOME, Lane, Run
from service.work.lanes.finding import in_parts, waiting_lanes
from service.work.lanes.key import Taker

_HEAD = aliased(Run)  # made once: it has a copy of every column
NO_SHARES: Mapping[str, Share] = {}


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """The time that a device has before its maintenance begins."""

    ends_at: float
    transfer_s: float
    """Seconds that every attempt may take for transfers, besides its run's time."""
    time_factor: float
    """Factor of the device over a board's time."""

    def most_asked_s(self) -> float:
        """Returns the longest time limit of a run that would end before, if it began now."""
        return (self.ends_at - time.time() - self.transfer_s) / self.time_factor


@dataclass(frozen=True, slots=True)
class Seeker:
    """A device that wants work, as far as it decides which."""

    taker: Taker
    is_welcome: bool
    """False: quarantined, drained, in (or right before) maintenance, or isolated less than the farm asks."""
    untried: ColumnElement[bool]
    """Condition on `Run`: it has not failed on this device."""
    only_canary: bool
    """Strikes quarantine it: it may show that it works again, and nothing else."""
    time_left: TimeLeft | None = None
    """Time until the device's maintenance, if that is near."""

    def fits(self, lane: Lane) -> bool:
        """Whether it may take the runs of the lane, those aside that it has tried."""
        if self.only_canary and not lane.is_canary:
            return False
        return self.taker.may_take(lane)


@dataclass(frozen=True, slots=True)
class Head:
    """The first run of a lane that a device may have."""

    lane_id: str
    run_id: str
    created_at: float
    organisation_id: str = HOME
    lane: Lane | None = None
    """Its row, which never changes."""


def heads(session: Session, seeker: Seeker) -> list[Head]:
    """Returns the heads of the lanes that the device fits, in no order; lanes with nothing for it are left out."""
    lane_ids = waiting_lanes(session, seeker.taker.wishes)
    return [head for part in in_parts(lane_ids) for head in _heads(session, seeker, part)]


def _heads(session: Session, seeker: Seeker, lane_ids: Sequence[str]) -> Iterator[Head]:
    head = _first(Lane.id, seeker).with_only_columns(Run.id).correlate(Lane).scalar_subquery()
    query = select(Lane, _HEAD.id, _HEAD.created_at).join(_HEAD, _HEAD.id == head).where(Lane.id.in_(lane_ids))
    if seeker.taker.owner_id is not None:
        query = query.where(or_(Lane.organisation_id == seeker.taker.owner_id, Lane.is_canary))
    for lane, run_id, created_at in session.execute(query):
        if seeker.fits(lane):
            yield Head(lane.id, run_id, created_at, lane.organisation_id, lane)


def in_turn(heads: Iterable[Head], shares: Mapping[str, Share] = NO_SHARES) -> Sequence[Head]:
    """Sorts the heads by whose turn it is: the organisation with the fewest runs on devices comes first, then the one
    that was served longest ago; within an organisation the oldest first, over all lanes. Organisations that may have no
    more are left out.
    """

    def turn(head: Head) -> tuple[int, float, float, str]:
        share = shares.get(head.organisation_id, Share())
        return share.live, share.served_at, head.created_at, head.run_id

    return sorted((head for head in heads if not shares.get(head.organisation_id, Share()).is_full), key=turn)


def take(session: Session, seeker: Seeker, lane_id: str) -> Run | None:
    """Returns the first run of the lane that the device may have and nobody else is taking, its row held; None: there
    is none.

    Its state is as it was: the caller moves it.
    """
    return session.scalar(_first(lane_id, seeker).with_for_update(skip_locked=True))


def _first(lane_id: object, seeker: Seeker) -> Select[Run]:
    is_untried = or_(Run.attempts == 0, seeker.untried)
    query = select(Run).where(Run.queued_in == lane_id, Run.queue_deadline_at > time.time(), is_untried)
    if seeker.time_left is not None:
        query = query.where(Run.asked_s <= seeker.time_left.most_asked_s())
    return query.order_by(Run.created_at, Run.id).limit(1)
