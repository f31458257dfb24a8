"""The concerns that need somebody, one line for each cause: how many, what to do, and where those are listed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from service.base.disk import written_folders
from service.base.settings import Settings
from service.boards.canary.history import change_words, explained
from service.boards.canary.service import regressed
from service.boards.releases.publishing import halted
from service.dashboard import addresses, visitors
from service.dashboard import format as fmt
from service.dashboard.extensions import Concern, Extensions
from service.dashboard.facts import DeviceFacts
from service.dashboard.pages.admin.part import path
from service.devices.conditions import nearly_full
from service.devices.machines import refused_lately, two_machines_words
from service.store.database.memory import recalled, recalled_if_dear
from service.store.database.models import (
    HOME,
    AgentRelease,
    ApiKey,
    CanaryChange,
    Device,
    DeviceMachine,
    EnrolmentToken,
    Job,
    MaintenanceWindow,
    Run,
    Webhook,
)
from service.store.database.scope import organisation_of
from service.store.farm import Farm
from service.store.signs_of_life import count_alive
from service.work.runs.queued import device_standings, waiting_lanes

LATELY_S = 86400.0
"""Failures older than a day are history."""
SOON_S = 14 * 86400.0
JUST_S = 7 * 86400.0
"""Keys that expire within the first, or have within the second."""
FAILURES = 4
"""Causes of failed runs, and as many of failed compiles."""
MOST_SLOWER = 20
LOOKED_AT = frozenset(
    kind.__tablename__
    for kind in (
        AgentRelease,
        ApiKey,
        CanaryChange,
        Device,
        DeviceMachine,
        EnrolmentToken,
        Job,
        MaintenanceWindow,
        Run,
        Webhook,
    )
)
NEARLY_FULL = 3.0
"""Multiple of the disk reserve below which a disk counts as nearly full; below the reserve the farm accepts nothing
more.
"""
DO: dict[str, str] = {
    "model": "change the model or its plan: each job says where",
    "compiler": "a defect of the compiler: send its report to whoever runs the farm",
    "limits": "ask for less, or for a higher limit",
    "device": "look at the devices that they ran on",
    "infra": "look whether all parts of the farm are up: `pockfarm status`",
    "service": "a defect of the farm: its log has the details",
    "user": "mend what was sent, and send it again",
    "policy": "the farm's rules forbid it: its operator can tell which",
}


def concerns_lately(session: Session, farm: Farm, devices: Sequence[DeviceFacts]) -> tuple[Concern, ...]:
    """Returns the same as `concerns`, at most a second old, so that a page that many people have open looks once for
    all of them.
    """
    key = ("concerns", organisation_of(session), visitors.current().scopes)
    return recalled(session, key, LOOKED_AT, lambda: concerns(session, farm, devices))


def concerns(session: Session, farm: Farm, devices: Sequence[DeviceFacts]) -> tuple[Concern, ...]:
    """Returns the concerns of the visitor's organisation, and the farm's if that organisation runs the farm; the worst
    first.
    """
    settings = farm.settings
    looks: tuple[Callable[[], Sequence[Concern]], ...] = (
        lambda: _disks(session, settings),
        lambda: _unconfirmed(session),
        lambda: _workers(session),
        lambda: _quarantined(devices),
        lambda: _stuck(session, settings),
        lambda: _filled(session, devices),
        lambda: _two_machines(session),
        lambda: _slower(session),
        lambda: _offline(session, devices),
        lambda: _halted(session),
        lambda: _failed(session, Run, "run", "runs"),
        lambda: _failed(session, Job, "compile", "jobs"),
        lambda: _keys(session),
        lambda: _tokens(session),
        *(partial(find, session) for find in farm.part(Extensions).concerns),
    )
    return tuple(concern for look in looks for concern in look())


def _is_operator(session: Session) -> bool:
    return organisation_of(session) == HOME and visitors.current().may("operate")


def _disks(session: Session, settings: Settings) -> Sequence[Concern]:
    if not _is_operator(session):
        return ()
    concerns = []
    for folder in written_folders(settings):
        room = os.statvfs(folder)
        free_bytes = room.f_bavail * room.f_frsize
        if free_bytes < NEARLY_FULL * settings.disk_reserve_bytes:
            advice = f"{fmt.size(free_bytes)} are free; below {fmt.size(settings.disk_reserve_bytes)} the farm takes \
nothing. Make room, or shorten how long things stay (retention)"
            concerns.append(Concern(1, f"The disk of {folder} is nearly full", advice, addresses.page("admin")))
    return concerns[:1]  # mostly all are on one disk


def _workers(session: Session) -> Sequence[Concern]:
    waiting = session.scalar(select(func.count()).where(Job.state == "queued")) or 0
    if not waiting or not _is_operator(session) or count_alive(session, "worker"):
        return ()
    advice = "start one: `pockfarm up` does on one machine; `pockfarm status` says what is up"
    title = f"{fmt.plural(waiting, 'compile')} {'waits' if waiting == 1 else 'wait'}, and no worker is up"
    return [Concern(waiting, title, advice, addresses.page("queue"))]


def _quarantined(devices: Sequence[DeviceFacts]) -> Sequence[Concern]:
    return _of_health(devices, "quarantined", "look at the last attempts, then release it on its page")


def _offline(session: Session, devices: Sequence[DeviceFacts]) -> Sequence[Concern]:
    waiting = set(session.scalars(select(Device.id).where(Device.unconfirmed_at.is_not(None))))
    confirmed = [device for device in devices if device.id not in waiting]
    return _of_health(confirmed, "offline", "start the agent again; it keeps its enrolment")


def _unconfirmed(session: Session) -> Sequence[Concern]:
    """Returns what nobody has confirmed since a restore: API keys, devices and webhooks. Tenants see theirs too."""
    if not visitors.current().may("operate"):
        return ()
    kinds: tuple[tuple[str, str, type[Any], ColumnElement[bool]], ...] = (
        ("API key", path("keys"), ApiKey, ApiKey.revoked_at.is_(None)),
        ("device", addresses.page("devices"), Device, Device.state != "removed"),
        ("webhook", path("webhooks"), Webhook, Webhook.removed_at.is_(None)),
    )
    next_step = "`python -m service.admin confirm` lets in what is still good; revoke or remove the rest"
    concerns = []
    for noun, href, kind, is_good in kinds:
        count = session.scalar(select(func.count()).select_from(kind).where(kind.unconfirmed_at.is_not(None), is_good))
        if count:
            waits = "waits" if count == 1 else "wait"
            concerns.append(Concern(count, f"{fmt.plural(count, noun)} {waits} since the restore", next_step, href))
    return concerns


def _of_health(devices: Sequence[DeviceFacts], health: str, todo: str) -> Sequence[Concern]:
    affected = sorted(
        (device for device in devices if device.health == health), key=lambda device: -device.last_seen_at
    )
    if not affected:
        return ()
    is_one = len(affected) == 1
    which = affected[0].name if is_one else fmt.plural(len(affected), "device")
    since = f"last seen {fmt.ago(affected[0].last_seen_at, datetime.now(UTC))}"
    detail = affected[0].reason if health == "quarantined" and affected[0].reason else since
    names = "" if is_one else f"{fmt.some([device.name for device in affected], 3)}. "
    href = addresses.device(affected[0].id) if is_one else addresses.page("devices", ("health", health))
    return [
        Concern(
            len(affected), f"{which} {'is' if is_one else 'are'} {health}", f"{names}{_sentence(detail)} {todo}", href
        )
    ]


def _filled(session: Session, devices: Sequence[DeviceFacts]) -> Sequence[Concern]:
    """Finds devices whose storage is nearly full, among those that are there: the last report of the others may be long
    ago.
    """
    there = {device.id: device.name for device in devices if device.health != "offline"}
    full = [condition for condition in nearly_full(session) if condition.device_id in there]
    if not full:
        return ()
    if len(full) == 1:
        name, few = there[full[0].device_id], full[0]
        advice = f"{fmt.size(few.storage_free_bytes)} of {fmt.size(few.storage_total_bytes)} are free: make room where \
its agent keeps its work, or runs end as device.disk"
        return [Concern(1, f"The storage of {name} is nearly full", advice, addresses.device(few.device_id))]
    names = fmt.some([there[condition.device_id] for condition in full], 3)
    advice = f"{names}: make room on each, or runs end as device.disk"
    return [
        Concern(
            len(full),
            f"The storage of {len(full)} devices is nearly full",
            advice,
            addresses.device(full[0].device_id),
        )
    ]


def _sentence(text: str) -> str:
    return f"{text.rstrip('.')}:"


def _stuck(session: Session, settings: Settings) -> Sequence[Concern]:
    stuck = [waiting for waiting in waiting_lanes(session, device_standings(session, settings)) if not waiting.takers]
    if not stuck:
        return ()
    runs = sum(waiting.runs for waiting in stuck)
    wants = fmt.some(sorted({waiting.lane.device_class or waiting.lane.target for waiting in stuck}), 3)
    advice = f"for {wants}: enrol, mend or release a device of the kind, or cancel them"
    waits = "waits" if runs == 1 else "wait"
    return [
        Concern(
            runs,
            f"{fmt.plural(runs, 'run')} {waits}, and no device can take {'it' if runs == 1 else 'them'}",
            advice,
            addresses.page("queue"),
            "clock",
        )
    ]


def _two_machines(session: Session) -> Sequence[Concern]:
    refused = refused_lately(session)
    devices = [session.get_one(Device, device_id) for device_id in refused]
    return [
        Concern(
            1,
            f"{device.name} is used on two machines",
            two_machines_words(session, device),
            addresses.device(device.id),
        )
        for device in devices[:MOST_SLOWER]
    ]


def _slower(session: Session) -> Sequence[Concern]:
    regressions = regressed(session, MOST_SLOWER)
    if not regressions:
        return ()
    names = list(dict.fromkeys(name for _, name in regressions))
    if len(names) == 1:
        change, name = regressions[0]
        detail = f"{change_words(change)} by its canary {change.canary}; {explained(change.differences)}"
        return [
            Concern(
                len(regressions),
                f"{name} has become slower",
                f"{detail}. Say that it is known, or look at it",
                addresses.page("regressions"),
            )
        ]
    advice = f"{fmt.some(names, 3)}: look at each, or say that it is known"
    return [
        Concern(len(regressions), f"{len(names)} devices have become slower", advice, addresses.page("regressions"))
    ]


def _halted(session: Session) -> Sequence[Concern]:
    return [
        Concern(
            1,
            f"Agent {release.version} is halted",
            f"{_sentence(release.halt_reason)} mend it, and publish another",
            path("releases") if visitors.current().may("operate") else addresses.page("devices"),
        )
        for release in halted(session)
    ]


def _failed(session: Session, kind: type[Run | Job], noun: str, page: str) -> Sequence[Concern]:
    key = ("failed lately", kind.__tablename__, organisation_of(session))
    causes = recalled_if_dear(session, key, lambda: _by_cause(session, kind))
    concerns = [
        Concern(
            count,
            f"{fmt.plural(count, noun)} failed: {code or 'without a code'}",
            _todo(session, kind, cause, newest),
            addresses.page(page, ("state", "failed"), ("code", code)),
            "cross",
        )
        for cause, code, count, newest in causes[:FAILURES]
    ]
    more = sum(count for *_, count, _ in causes[FAILURES:])
    if more:
        concerns.append(
            Concern(
                more,
                f"{fmt.plural(more, noun)} failed by other causes",
                "each says why",
                addresses.page(page, ("state", "failed")),
                "cross",
            )
        )
    return concerns


def _by_cause(session: Session, kind: type[Run | Job]) -> list[tuple[str, str, int, str]]:
    """Returns (cause, code, how many, the newest one's id) for the last day, the most frequent first."""
    ours = [kind.state == "failed", kind.created_at > time.time() - LATELY_S]
    if kind is Run:
        ours.append(Run.is_canary.is_(False))
    query = select(kind.cause, kind.code, func.count(), func.max(kind.id)).where(*ours).group_by(kind.cause, kind.code)
    rows = [(cause or "", code or "", int(count), str(newest)) for cause, code, count, newest in session.execute(query)]
    return sorted(rows, key=lambda row: (-row[2], row[1]))


def _todo(session: Session, kind: type[Run | Job], cause: str, newest: str) -> str:
    """Returns the message of the newest of them, and what to do about it."""
    row = session.execute(select(kind.message, kind.hint).where(kind.id == newest)).first()
    message, hint = row or ("", "")
    prefix = f"{message.rstrip('.')}: " if message else ""
    return f"{prefix[:300]}{(hint or DO.get(cause, 'each message why')).rstrip('.')}"


def _keys(session: Session) -> Sequence[Concern]:
    if not visitors.current().may("admin"):
        return ()
    now = time.time()
    ending = select(ApiKey.name, ApiKey.expires_at).where(
        ApiKey.revoked_at.is_(None), ApiKey.expires_at.between(now - JUST_S, now + SOON_S)
    )
    keys = session.execute(ending.order_by(ApiKey.expires_at).limit(MOST_SLOWER)).all()
    if not keys:
        return ()
    first = f"{keys[0][0]} {'ended' if (keys[0][1] or 0) <= now else 'ends'} on {fmt.clock(keys[0][1])} UTC"
    return [
        Concern(
            len(keys),
            f"{fmt.plural(len(keys), 'API key')} {'ends' if len(keys) == 1 else 'end'} soon, or \
just did",
            f"{first}: make another, and give it to whoever uses this one",
            path("keys"),
            "clock",
        )
    ]


def _tokens(session: Session) -> Sequence[Concern]:
    """Returns a concern about enrolment tokens that expired unused within the last day: their boards never enrolled."""
    if not visitors.current().may("operate"):
        return ()
    now = time.time()
    unused = (EnrolmentToken.uses == 0, EnrolmentToken.revoked_at.is_(None), EnrolmentToken.id.is_not(None))
    query = select(EnrolmentToken.name).where(*unused, EnrolmentToken.expires_at.between(now - LATELY_S, now))
    expired = list(session.scalars(query.limit(MOST_SLOWER)))
    if not expired:
        return ()
    names = fmt.some([name or "without a name" for name in expired], 3)
    advice = f"{names}: make another, and paste its line on the board before it ends"
    return [
        Concern(
            len(expired),
            f"{fmt.plural(len(expired), 'enrolment token')} ran out unused",
            advice,
            path("enrolment"),
            "clock",
        )
    ]
