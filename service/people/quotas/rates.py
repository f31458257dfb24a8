"""Requests by cost: one bucket of tokens for each organisation, in the database, that fills up within a minute.

Each process takes tokens out of it in blocks and spends them from memory: a request costs a write now and then, and all
processes together keep to the limit but for a block each. Without a limit nothing is counted.

Fair share: among organisations that wait for the same device, the one with the fewest runs on devices comes first,
then the one that was served longest ago; and none has more runs on devices at once than its quota allows.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.base.settings import Settings
from service.people.permissions import Rule
from service.people.quotas.limits import exceeded, has_room, limit_of, quotas_of
from service.store.database.engine import Database
from service.store.database.insert import insert_if_new
from service.store.database.memory import UNREMEMBERED
from service.store.database.models import LIVE_ATTEMPT_STATES, Allowance, Attempt, Organisation, Run
from service.store.database.scope import EVERYONES


@dataclass(frozen=True, slots=True)
class Share:
    """An organisation's share of the farm's devices."""

    live: int = 0
    """Runs on devices now."""
    served_at: float = 0.0
    """When a device last took a run of it while others waited too."""
    is_full: bool = False
    """Whether it may have no more at once."""


def shares_of(session: Session, settings: Settings, organisation_ids: Collection[str]) -> dict[str, Share]:
    """Returns the shares of organisations whose runs wait; `live` is counted only where it decides something. One that
    waits alone and has no limit is left out.
    """
    if len(organisation_ids) == 1:
        (only,) = organisation_ids
        if limit_of(settings, quotas_of(session, only), "running_attempts") is None:
            return {}
    rows = session.execute(
        select(Organisation.id, Organisation.quotas, Organisation.runs_served_at).where(
            Organisation.id.in_(organisation_ids)
        ),
        execution_options=EVERYONES,
    ).all()
    limits = {row_id: limit_of(settings, quotas or {}, "running_attempts") for row_id, quotas, _ in rows}
    counts: Mapping[str, int] = {}
    if len(organisation_ids) > 1 or any(limit is not None for limit in limits.values()):
        counts = _live(session, organisation_ids)
    return {
        row_id: Share(counts.get(row_id, 0), served_at, _is_full(counts.get(row_id, 0), limits[row_id]))
        for row_id, _, served_at in rows
    }


def _is_full(live: int, limit: float | None) -> bool:
    return limit is not None and live + 1 > limit


def _live(session: Session, organisation_ids: Collection[str]) -> dict[str, int]:
    query = (
        select(Run.organisation_id, func.count())
        .select_from(Attempt)
        .join(Run, Run.id == Attempt.run_id)
        .where(Attempt.state.in_(LIVE_ATTEMPT_STATES), Run.organisation_id.in_(organisation_ids))
        .group_by(Run.organisation_id)
    )
    rows = session.execute(query, execution_options=EVERYONES)
    return {row_id: count for row_id, count in rows}  # noqa: C416 (rows are no tuples to mypy)


def may_start(session: Session, settings: Settings, run: Run) -> bool:
    """Whether the run's organisation may have one more on a device, now that the claim is being written."""
    return run.is_canary or has_room(session, settings, "running_attempts", organisation_id=run.organisation_id)


def note_served(session: Session, organisation_id: str) -> None:
    """Records that a device takes a run of the organisation while others wait: they come first now."""
    statement = update(Organisation).where(Organisation.id == organisation_id)
    session.execute(statement.values(runs_served_at=time.time()), execution_options=UNREMEMBERED)


COSTS: Mapping[str, float] = {
    "POST /compile": 20.0,
    "POST /tune": 20.0,
    "POST /datasets": 20.0,
    "POST /runs": 5.0,
}
"""Costs of requests that start work, in units of one read."""
EXPORT = ".{ending}"
EXPORT_COST = 20.0
"""A whole table as a file."""
RUN_COST = COSTS["POST /runs"]
"""Cost of each run of a group, besides the request."""
BYTES_OF_ONE = 16 << 20
"""Bytes that the farm reads for a unit, where a request makes it read a file whole."""
SCOPE_COSTS: Mapping[str | None, float] = {None: 0.0, "read": 1.0, "submit": 2.0, "operate": 2.0, "admin": 2.0}
BLOCKS = 20
"""A process takes this part of a minute's tokens at once."""
MINUTE_S = 60.0


def cost_of(address: str, rule: Rule) -> float:
    """Returns the cost of a request, in units of one read."""
    return COSTS.get(address, EXPORT_COST if address.endswith(EXPORT) else SCOPE_COSTS[rule.scope])


@dataclass(slots=True)
class Rates:
    """The tokens that this process has taken out of the buckets, and has not spent."""

    _left: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def spend(
        self,
        database: Database,
        organisation_id: str,
        cost: float,
        *,
        per_minute: float | None,
        session: Session | None = None,
    ) -> None:
        """Pays for a request, in the session's transaction if there is one. Raises: TooMany, with the time until there
        is enough again.
        """
        if per_minute is None or cost <= 0:
            return
        with self._lock:
            balance = self._left.get(organisation_id, 0.0)
            if balance >= cost:
                self._left[organisation_id] = balance - cost
                return
        needed = cost - balance
        with database.transaction() if session is None else nullcontext(session) as using:
            got, has = take(using, organisation_id, needed=needed, per_minute=per_minute)
        if got < needed:
            wait_s = math.inf if per_minute <= 0 else (needed - has) * MINUTE_S / per_minute
            retry_after_s = max(1, math.ceil(min(wait_s, MINUTE_S * 60)))
            raise exceeded("cost_per_minute", limit=per_minute, use=per_minute - has, retry_after_s=retry_after_s)
        with self._lock:
            self._left[organisation_id] = self._left.get(organisation_id, 0.0) + got - cost


def take(session: Session, organisation_id: str, *, needed: float, per_minute: float) -> tuple[float, float]:
    """Takes a block out of a bucket, or just what is needed, if the bucket has that. Returns (what was taken, what the
    bucket had).
    """
    now = time.time()
    fields = {"organisation_id": organisation_id, "tokens": per_minute, "filled_at": now}
    insert_if_new(session, Allowance, fields)
    query = select(Allowance).where(Allowance.organisation_id == organisation_id).with_for_update()
    bucket = session.scalars(query).one()
    filled = bucket.tokens + max(0.0, now - bucket.filled_at) * per_minute / MINUTE_S
    bucket.tokens, bucket.filled_at = min(max(per_minute, needed), filled), max(now, bucket.filled_at)
    had = bucket.tokens
    if had < needed:
        return 0.0, had
    block = min(had, max(needed, per_minute / BLOCKS))
    bucket.tokens = had - block
    return block, had
