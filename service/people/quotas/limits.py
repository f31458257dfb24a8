"""Quotas: one record each, with what counts against it. No limit is the default; `home` has none unless one is set.

Room for files has one by default: a share of the disk (`share_of_disk`), so that no tenant fills it. A limit is an
organisation's own (`PATCH /organisations/{id}`) or the farm's for all (`POCKFARM_QUOTA_<NAME>`). Whoever is about to
use some of a quota that has a limit holds the organisation's row: limits hold to the unit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.orm import Session

from service.base.disk import storage_free_bytes
from service.base.problems import Forbidden, Problem, TooMany
from service.base.settings import Settings
from service.store.database.memory import recalled
from service.store.database.models import (
    HOME,
    LIVE_ATTEMPT_STATES,
    OPEN_JOB_STATES,
    OPEN_RUN_STATES,
    ApiKey,
    Attempt,
    Checkpoint,
    Device,
    Holding,
    Job,
    Organisation,
    Run,
    Upload,
)
from service.store.database.scope import EVERYONES, organisation_of

QuotaName = Literal[
    "open_jobs",
    "open_runs",
    "running_attempts",
    "storage_bytes",
    "compile_cpu_s_per_day",
    "event_bytes_per_day",
    "devices",
    "keys",
    "open_uploads",
    "open_streams",
    "cost_per_minute",
    "run_s",
]
DAY_S = 86400.0
EXPECTED_CPU_S = 10.0
"""Expected processor time of a compile, until the organisation's own tell how long they take."""
RETRY_AFTER_S = 30
HINT = "whoever runs the farm can raise it (PATCH /organisations/{id}, quotas); GET /organisation shows limits and use"
ORGANISATIONS = frozenset({Organisation.__tablename__})
Count = Callable[[Session, str], float]


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit on something that an organisation uses."""

    name: QuotaName
    words: str
    """Words for what is counted: `the organisation has 5 {words}`."""
    count: Count
    passes: bool
    """Use falls by waiting: 429 then, else 403."""
    step: str = "wait until some have ended, or cancel them"


def _open_jobs(session: Session, organisation_id: str) -> float:
    query = select(func.count()).where(Job.organisation_id == organisation_id, Job.state.in_(OPEN_JOB_STATES))
    return session.scalar(query, execution_options=dict(EVERYONES)) or 0


def _open_runs(session: Session, organisation_id: str) -> float:
    query = select(func.count()).where(Run.organisation_id == organisation_id, Run.state.in_(OPEN_RUN_STATES))
    return session.scalar(query, execution_options=dict(EVERYONES)) or 0


def running_attempts(session: Session, organisation_id: str) -> float:
    """Returns how many attempts devices hold now."""
    live = select(func.count()).select_from(Attempt).join(Run, Run.id == Attempt.run_id)
    query = live.where(Attempt.state.in_(LIVE_ATTEMPT_STATES), Run.organisation_id == organisation_id)
    return session.scalar(query, execution_options=dict(EVERYONES)) or 0


def _storage_bytes(session: Session, organisation_id: str) -> float:
    """Returns the bytes of the files that it holds, each counted once, of its runs' checkpoints, and of its open
    uploads.
    """
    conditions = (Holding.organisation_id == organisation_id, Holding.files_removed_at.is_(None))
    each = (
        select(func.max(Holding.size_bytes).label("size_bytes")).where(*conditions).group_by(Holding.digest).subquery()
    )
    of_its_runs = select(func.sum(Checkpoint.size_bytes)).join(Run, Run.id == Checkpoint.run_id)
    queries = (
        select(func.sum(each.c.size_bytes)),
        of_its_runs.where(Run.organisation_id == organisation_id),
        select(func.sum(Upload.received_bytes)).where(*_are_open(organisation_id)),
    )
    return sum(float(session.scalar(query, execution_options=dict(EVERYONES)) or 0) for query in queries)


def _compile_cpu_s(session: Session, organisation_id: str) -> float:
    """Returns the processor time that compiles took; one that has not ended counts as what the others took on average,
    or as what it has taken.
    """
    newest = (Job.organisation_id == organisation_id, Job.created_at > time.time() - DAY_S)
    is_open = Job.state.in_(OPEN_JOB_STATES)
    query = select(func.sum(Job.cpu_s), func.avg(Job.cpu_s)).where(*newest, ~is_open, Job.cpu_s > 0)
    took_s, mean_s = session.execute(query, execution_options=dict(EVERYONES)).one()
    expected_s = float(mean_s or EXPECTED_CPU_S)
    each = case((Job.cpu_s > expected_s, Job.cpu_s), else_=expected_s)
    open_s = session.scalar(select(func.sum(each)).where(*newest, is_open), execution_options=dict(EVERYONES))
    return float(took_s or 0) + float(open_s or 0)


def _event_bytes(session: Session, organisation_id: str) -> float:
    """Returns the bytes of events of attempts that are live or ended within a day."""
    is_recent = Attempt.finished_at.is_(None) | (Attempt.finished_at > time.time() - DAY_S)
    query = select(func.sum(Attempt.event_bytes)).join(Run, Run.id == Attempt.run_id)
    query = query.where(Run.organisation_id == organisation_id, is_recent)
    return float(session.scalar(query, execution_options=dict(EVERYONES)) or 0)


def _devices(session: Session, organisation_id: str) -> float:
    query = select(func.count()).where(Device.organisation_id == organisation_id, Device.state != "removed")
    return session.scalar(query, execution_options=dict(EVERYONES)) or 0


def _keys(session: Session, organisation_id: str) -> float:
    fresh = ApiKey.expires_at.is_(None) | (ApiKey.expires_at > time.time())
    query = select(func.count()).where(ApiKey.organisation_id == organisation_id, ApiKey.revoked_at.is_(None), fresh)
    return session.scalar(query, execution_options=dict(EVERYONES)) or 0


def _are_open(organisation_id: str) -> tuple[ColumnElement[bool], ...]:
    return (Upload.organisation_id == organisation_id, Upload.finished_at.is_(None), Upload.expires_at > time.time())


def _open_uploads(session: Session, organisation_id: str) -> float:
    query = select(func.count()).where(*_are_open(organisation_id))
    return session.scalar(query, execution_options=dict(EVERYONES)) or 0


def _nothing(_session: Session, _organisation_id: str) -> float:
    return 0.0


QUOTAS: tuple[Quota, ...] = (
    Quota("open_jobs", "jobs that have not ended", _open_jobs, passes=True),
    Quota("open_runs", "runs that have not ended", _open_runs, passes=True),
    Quota("running_attempts", "runs on devices at once", running_attempts, passes=True),
    Quota("storage_bytes", "bytes of files", _storage_bytes, passes=False, step="ask for more room"),
    Quota(
        "compile_cpu_s_per_day",
        "seconds of processor time of compiles that were sent within a day",
        _compile_cpu_s,
        passes=True,
        step="send it again tomorrow",
    ),
    Quota(
        "event_bytes_per_day",
        "bytes of events that its runs wrote within a day",
        _event_bytes,
        passes=True,
        step="write fewer",
    ),
    Quota("devices", "devices", _devices, passes=False, step="remove one"),
    Quota("keys", "keys that are good", _keys, passes=False, step="revoke one"),
    Quota(
        "open_uploads",
        "uploads that are not finished",
        _open_uploads,
        passes=True,
        step="finish or delete some of them",
    ),
    Quota(
        "open_streams",
        "answers held open (long polls, streams of events)",
        _nothing,
        passes=True,
        step="end some of them",
    ),
    Quota("cost_per_minute", "units of requests a minute", _nothing, passes=True),
    Quota("run_s", "seconds that one run may ask for", _nothing, passes=False, step="ask for less"),
)
UNCOUNTED: tuple[QuotaName, ...] = ("open_streams", "cost_per_minute", "run_s")
"""Quotas without a sum in the database: one that each process counts for itself, a rate, and a limit on each run."""
BY_NAME: Mapping[QuotaName, Quota] = {quota.name: quota for quota in QUOTAS}


def limit_of(settings: Settings, overrides: Mapping[str, float | None], name: QuotaName) -> float | None:
    """Returns the limit of an organisation with these quotas of its own; None: there is none."""
    if name in overrides:
        return overrides[name]
    default: float | None = getattr(settings, f"quota_{name}")
    return default


def quotas_of(session: Session, organisation_id: str) -> dict[str, float | None]:
    """Returns an organisation's own limits, as they were within the last second."""

    def read() -> dict[str, float | None]:
        query = select(Organisation.quotas).where(Organisation.id == organisation_id)
        return dict(session.scalar(query, execution_options=dict(EVERYONES)) or {})

    return recalled(session, ("quotas", organisation_id), ORGANISATIONS, read)


def check(
    session: Session,
    settings: Settings,
    name: QuotaName,
    *,
    more: float = 1,
    organisation_id: str | None = None,
    is_stored: bool = False,
) -> None:
    """Checks that the organisation (the session's, if none is given) may use so much more. Raises: TooMany, Forbidden.

    `is_stored`: these bytes are on the disk, and so are not free any more.
    """
    whose = organisation_id or organisation_of(session)
    uncounted_bytes = int(more) if is_stored else 0
    limit, use = standing(session, settings, name, whose, is_locked=True, uncounted_bytes=uncounted_bytes)
    if limit is not None and use + more > limit:
        raise exceeded(name, limit=limit, use=use)


def check_room(
    session: Session,
    settings: Settings,
    *,
    more_bytes: int,
    is_held: Callable[[], bool],
    organisation_id: str,
    is_stored: bool = True,
) -> None:
    """Checks that the organisation may store a file that takes so much more, or holds it already. Raises: Forbidden.

    `is_stored`: its bytes are on the disk, and so are not free any more.
    """
    stored_bytes = more_bytes if is_stored else 0
    limit, use = standing(session, settings, "storage_bytes", organisation_id, uncounted_bytes=stored_bytes)
    if limit is not None and use + more_bytes > limit and not is_held():
        raise exceeded("storage_bytes", limit=limit, use=use)


def has_room(session: Session, settings: Settings, name: QuotaName, *, organisation_id: str) -> bool:
    """Whether the organisation may use one more."""
    limit, use = standing(session, settings, name, organisation_id, is_locked=True)
    return limit is None or use + 1 <= limit


def standing(
    session: Session,
    settings: Settings,
    name: QuotaName,
    whose: str,
    *,
    is_locked: bool = False,
    uncounted_bytes: int = 0,
) -> tuple[float | None, float]:
    """Returns the limit and the use; without a limit nothing is counted. `is_locked`: the organisation's row is locked,
    so that both stay.

    `uncounted_bytes`: on the disk already, and not counted yet as the organisation's.
    """
    quotas = quotas_of(session, whose)
    limit = limit_of(settings, quotas, name)
    is_shared = limit is None and has_share(settings, quotas, name, whose)
    if limit is None and not is_shared:
        return None, 0.0
    if is_locked:
        row = select(Organisation.id).where(Organisation.id == whose).with_for_update()
        session.execute(row, execution_options=dict(EVERYONES))
    use = BY_NAME[name].count(session, whose)
    return (share_of_disk(settings, use + uncounted_bytes) if is_shared else limit), use


def has_share(settings: Settings, quotas: Mapping[str, float | None], name: QuotaName, whose: str) -> bool:
    """Whether a tenant without a limit for its files has a share of the disk, if they are on one of this machine."""
    is_unlimited = name != "storage_bytes" or name in quotas or whose == HOME or settings.storage_share is None
    return not is_unlimited and storage_free_bytes(settings) is not None


def share_of_disk(settings: Settings, use: float) -> float:
    """Returns how many bytes a tenant may keep: a part of what it has and of what is free beyond the reserve.

    However many there are, each leaves room, and one that came late gets some of it. It is rounded down to six
    leading bits: a tenant does not read off it what others store.
    """
    room_bytes = max(0, (storage_free_bytes(settings) or 0) - settings.disk_reserve_bytes)
    share_bytes = int((settings.storage_share or 1) * (use + room_bytes))
    dropped_bits = max(0, share_bytes.bit_length() - 6)
    return float(share_bytes >> dropped_bits << dropped_bits)


def exceeded(name: QuotaName, *, limit: float, use: float, retry_after_s: int = RETRY_AFTER_S) -> Problem:
    """Returns the refusal for an organisation that is at a limit."""
    quota = BY_NAME[name]
    extra = {"quota": name, "limit": limit, "use": use}
    message = f"the organisation has {use:,.0f} {quota.words}, the limit is {limit:,.0f}"
    hint, where = f"{quota.step}; {HINT}", f"quotas.{name}"
    if quota.passes:
        return TooMany(f"quota.{name}", message, where=where, hint=hint, retry_after_s=retry_after_s, extra=extra)
    return Forbidden(f"quota.{name}", message, where=where, hint=hint, cause="limits", extra=extra)
