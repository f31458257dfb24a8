"""Requests by cost: one bucket of tokens for each organisation, in the database, that fills up within a minute.

Each process takes tokens out of it in blocks and spends them from memory: a request costs a write now and then, and all
processes together keep to the limit but for a block each. Without a limit nothing is counted.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.people.permissions import Rule
from service.people.quotas.limits import exceeded
from service.store.database.engine import Database
from service.store.database.insert import insert_if_new
from service.store.database.models import Allowance

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
"""Each run of a group costs this, beside the request."""
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
        """Pay for a request, in the session's transaction if there is one. Raises: TooMany, with the time until there
        is enough again."""
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
    """Take a block out of a bucket, or what is needed, if it has that: (taken, what it had)."""
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
