"""Fair share: among organisations that wait for the same device, the one with the fewest runs on devices comes first,
then the one that was served longest ago; and none has more runs on devices at once than its quota allows."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.base.settings import Settings
from service.people.quotas.limits import has_room, limit_of, quotas_of
from service.store.database.memory import UNREMEMBERED
from service.store.database.models import LIVE_ATTEMPT_STATES, Attempt, Organisation, Run
from service.store.database.scope import EVERYONES


@dataclass(frozen=True, slots=True)
class Share:
    """An organisation's share of the farm's devices."""

    live: int = 0
    """Runs on devices now."""
    served_at: float = 0.0
    """When a device last took a run of it while others waited too."""
    is_full: bool = False
    """It may have no more at once."""


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
    """A device takes a run of it, and others wait: they come first now."""
    statement = update(Organisation).where(Organisation.id == organisation_id)
    session.execute(statement.values(runs_served_at=time.time()), execution_options=UNREMEMBERED)
