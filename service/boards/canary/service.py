"""The history of a device's timed canaries, as people see it."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Literal

from sqlalchemy import exists, select
from sqlalchemy.orm import Session, aliased

from service.base.identifiers import clean_text
from service.base.problems import Conflict, NotFound
from service.base.schemas import columns
from service.boards.canary.history import (
    change_words,
    explained,
    is_open,
    last_change,
    runs_of,
    series_of,
    starts_of,
    variation_in,
)
from service.boards.canary.schemas import BesideChange, CanaryHistory, CanarySeriesView, CanaryTimeView, ChangeView
from service.devices import blame
from service.devices import service as devices
from service.store.database.models import CanaryChange, CanaryTime, Device
from service.store.database.paging import newest_first

MOST_CHANGES = 365
"""Most changes of a device that are shown."""
ANSWERED = ("state", "acknowledged_at", "acknowledgement")
"""Fields of a change that may differ later."""


def history_of(session: Session, device_id: str) -> CanaryHistory:
    """Raises: NotFound."""
    device, changes = devices.find(session, device_id), _changes_of(session, device_id)
    starts = starts_of(session, device_id)
    series = [
        _series(runs_of(session, device_id, name), starts, [change for change in changes if change.series == name])
        for name in series_of(session, device_id)
    ]
    return CanaryHistory(device_id=device_id, next_at=device.timed_canary_at or None, series=series)


def _changes_of(session: Session, device_id: str) -> Sequence[CanaryChange]:
    """Returns the changes of a device, the newest first."""
    query = select(CanaryChange).where(CanaryChange.device_id == device_id)
    return session.scalars(query.order_by(CanaryChange.after_run_id.desc()).limit(MOST_CHANGES)).all()


def _series(runs: Sequence[CanaryTime], starts: Collection[str], changes: Sequence[CanaryChange]) -> CanarySeriesView:
    variation, newest = variation_in(runs, starts), runs[-1]
    return CanarySeriesView(
        series=newest.series,
        canary=newest.canary,
        target=newest.target,
        model=newest.model_digest,
        plan=newest.plan_digest,
        spec=newest.spec_digest,
        deviation=variation.deviation if variation.is_known else None,
        runs=[_time(run) for run in runs],
        changes=[change_view(change, is_last=place == 0) for place, change in enumerate(changes)],
    )


def _time(run: CanaryTime) -> CanaryTimeView:
    return CanaryTimeView(
        run_id=run.run_id,
        at=run.at,
        median_us=run.median_us,
        verdict=run.verdict,
        **{name: str(run.facts.get(name, "")) for name in ("compiler", "commit", "bundle")},
    )


def change_view(change: CanaryChange, *, is_last: bool = True) -> ChangeView:
    """Returns a change as people see it. `is_last`: no other change followed in its series."""
    fields = columns(ChangeView, change)
    return ChangeView(
        **fields | {"differences": [BesideChange(**difference) for difference in change.differences]},
        state=_state(change, is_last=is_last),
        message=change_words(change),
        explains=explained(change.differences),
    )


def _state(change: CanaryChange, *, is_last: bool) -> Literal["open", "acknowledged", "over", "faster"]:
    if change.ratio < 1:
        return "faster"
    if not is_last:
        return "over"
    return "open" if change.acknowledged_at is None else "acknowledged"


def regressions(
    session: Session, device_id: str | None, *, limit: int, cursor: str | None
) -> tuple[Sequence[CanaryChange], str | None]:
    """Returns a page of changes to slower that are still so, and that nobody has acknowledged. Raises: NotFound
    (device).
    """
    query = select(CanaryChange).where(*is_open())
    if device_id is not None:
        query = query.where(CanaryChange.device_id == devices.find(session, device_id).id)
    return newest_first(session, query, CanaryChange.id, limit=limit, cursor=cursor)


def regressed(session: Session, most: int) -> list[tuple[CanaryChange, str]]:
    """Returns the newest open regressions, each with its device's name."""
    query = select(CanaryChange, Device.name).join(Device, Device.id == CanaryChange.device_id).where(*is_open())
    return [(change, name) for change, name in session.execute(query.order_by(CanaryChange.id.desc()).limit(most))]


def newest_changes(session: Session, most: int) -> list[tuple[CanaryChange, bool]]:
    """Returns the newest changes of all devices that the session may see, and whether each is the last of its
    series.
    """
    changes = session.scalars(select(CanaryChange).order_by(CanaryChange.id.desc()).limit(most)).all()
    later = aliased(CanaryChange)
    is_followed = (
        later.device_id == CanaryChange.device_id,
        later.series == CanaryChange.series,
        later.after_run_id > CanaryChange.after_run_id,
    )
    query = select(CanaryChange.id).where(CanaryChange.id.in_([change.id for change in changes]))
    over = set(session.scalars(query.where(exists().where(*is_followed))))
    return [(change, change.id not in over) for change in changes]


def acknowledge(session: Session, device_id: str, change_id: str, reason: str) -> ChangeView:
    """Acknowledges that a device has become slower; a repeated call replaces the reason. Raises: NotFound; Conflict (it
    is not slower now).
    """
    device = devices.owned_device(session, device_id)
    change = session.get(CanaryChange, change_id)
    if change is None or change.device_id != device.id:
        raise NotFound(
            "canary.change",
            f"no change {change_id!r:.60} of {device.name}",
            hint=f"GET /devices/{device.id}/canaries lists them",
        )
    last = last_change(session, device.id, change.series)
    state = _state(change, is_last=last is not None and last.id == change.id)
    if state not in ("open", "acknowledged"):
        raise Conflict("canary.not-open", f"this change is {state}", hint="GET /regressions lists those that are open")
    change.acknowledged_at, change.acknowledgement = time.time(), clean_text(reason, 1000)
    session.flush()
    blame.note(
        session,
        device.id,
        "acknowledged",
        f"canary {change.canary} on {change.target}, slower since run "
        f"{change.after_run_id}: {change.acknowledgement or 'no reason'}",
    )
    return change_view(change)
