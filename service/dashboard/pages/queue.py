"""The work that waits, for what, why, and when it may start: by lane, by class of board, and the compiles."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.artefacts.jobs import why as job_why
from service.base.settings import Settings
from service.dashboard import addresses, queries, visitors
from service.dashboard import format as fmt
from service.dashboard.actions import Action
from service.dashboard.facts import JobFacts, RunFacts
from service.dashboard.tables import Column, Row, Table, Value, table
from service.store.database.models import Job, Lane, Run
from service.work.lanes.key import Taker
from service.work.runs.fitting import Wish, standings
from service.work.runs.forecast import forecast, later_starts
from service.work.runs.queued import Standing, WaitingLane, device_standings, waiting_lanes
from service.work.runs.why import waiting_words

EXPLAINED = 1
"""Lanes whose first runs are shown on the whole queue's page: of each, the devices are asked, which takes a while."""
FIRST_ROWS = 5
LANE_ROWS = 50
"""Runs of a lane: on the whole queue's page, and on its own."""
JOB_ROWS = 10
LANE_COLUMNS = (
    Column("lane", "Runs that wait for", primary=True),
    Column("runs", "Runs", "number"),
    Column("takers", "Who takes them", wrap=True),
    Column("oldest_at", "Waiting since", "time", "UTC", wide_only=True),
)
CLASS_COLUMNS = (
    Column("device_class", "Class of board", primary=True),
    Column("runs", "Runs", "number", hint="That devices of the class may take"),
    Column("free", "Free", "number"),
    Column("busy", "Busy", "number"),
    Column("kept", "Take nothing now", wrap=True, wide_only=True),
)
RUN_COLUMNS = (
    Column("run", "Run", primary=True),
    Column("place", "Place", "number", hint="Among the runs that wait for the same devices"),
    Column(
        "start_at", "May start", "text", hint="At the earliest, by how long such runs took; others may come between"
    ),
    Column("since", "Waits since", "time", "UTC", wide_only=True),
    Column("id", "Id", "code", wide_only=True),
)
JOB_COLUMNS = (
    Column("job", "Compile", primary=True),
    Column("place", "Place", "number"),
    Column("start_at", "May start"),
    Column("since", "Waits since", "time", "UTC", wide_only=True),
    Column("id", "Id", "code", wide_only=True),
)


@dataclass(frozen=True, slots=True)
class LanePart:
    """A lane, explained."""

    name: str
    id: str
    href: str
    message: str
    """Why its first run waits, and until when."""
    is_stuck: bool
    """No device takes it now."""
    devices: tuple[str, ...]
    """Reasons that keep each device, those that fit first."""
    runs: Table
    more: int


@dataclass(frozen=True, slots=True)
class QueuePage:
    """The contents of the queue's page."""

    runs: int
    stuck: int
    """Runs that no device takes now."""
    compiles: int
    lanes: Table
    classes: Table
    parts: tuple[LanePart, ...]
    jobs: Table
    jobs_say: str
    chosen: str
    """The lane that the page is about; empty: all."""


def queue_page(session: Session, settings: Settings, lane_id: str = "") -> QueuePage:
    """Returns the page of the queue, or of one lane of it."""
    there = device_standings(session, settings)
    lanes = waiting_lanes(session, there)
    chosen = [waiting for waiting in lanes if waiting.lane.id == lane_id]
    explained, rows = (chosen, LANE_ROWS) if lane_id else (lanes[:EXPLAINED], FIRST_ROWS)
    first = {waiting.lane.id: _first(session, waiting.lane, rows) for waiting in explained}
    ids = [run.id for runs in first.values() for run in runs]
    facts = {run.id: run for run in queries.runs_by_id(session, ids)}
    parts = [
        _part(session, settings, waiting, first[waiting.lane.id], facts)
        for waiting in explained
        if first[waiting.lane.id]
    ]
    compiles = session.scalar(select(func.count()).where(Job.state == "queued")) or 0
    jobs, jobs_say = ((), "") if lane_id else _jobs(session, settings)
    return QueuePage(
        runs=sum(waiting.runs for waiting in lanes),
        stuck=sum(waiting.runs for waiting in lanes if not waiting.takers),
        compiles=compiles,
        lanes=table(
            "lanes", "By what they wait for, the oldest first", LANE_COLUMNS, [_lane_row(waiting) for waiting in lanes]
        ),
        classes=_classes(lanes, there),
        parts=tuple(parts),
        jobs=table("jobs", "Compiles that wait, the oldest first", JOB_COLUMNS, jobs),
        jobs_say=jobs_say,
        chosen=lane_id,
    )


def lane_name(lane: Lane) -> str:
    """Describes a lane: `raspberry-pi-4 · tag rack=7`, with the bundle's target where that is another word than the
    class.
    """
    wants = lane.wants.replace(":", " ").split("\n") if lane.wants else []
    if not lane.device_class:
        return " · ".join([f"any that runs {lane.target}", *wants])
    bundle = [f"bundle for {lane.target}"] if lane.target != lane.device_class else []
    return " · ".join([lane.device_class, *bundle, *wants])


def _lane_row(waiting: WaitingLane) -> Row:
    values: dict[str, Value] = {
        "lane": lane_name(waiting.lane),
        "runs": waiting.runs,
        "takers": _takers(waiting.devices),
        "oldest_at": fmt.iso(waiting.oldest_at),
    }
    notes = {"lane": _wished(waiting)} if waiting.lane.device_id else {}
    return Row(values, {"lane": addresses.page("queue", ("lane", waiting.lane.id))}, notes, anchor=waiting.lane.id)


def _wished(waiting: WaitingLane) -> str:
    names = [standing.device.name for standing in waiting.devices]
    return f"only {names[0]}" if names else f"only {waiting.lane.device_id}"


def _takers(devices: Sequence[Standing]) -> str:
    """Says how many devices take the runs (`1 free, 2 busy`), or what prevents those that could."""
    if not devices:
        return "nobody: no enrolled device fits"
    counted = Counter(standing.now for standing in devices)
    counts = ", ".join(
        f"{counted[now]} {now}" for now in ("free", "busy", "held", "away", "quarantined") if counted[now]
    )
    return counts if counted["free"] or counted["busy"] else f"nobody now: {counts}"


def _classes(lanes: Sequence[WaitingLane], devices: Sequence[Standing]) -> Table:
    rows = []
    for name in sorted({standing.device.device_class for standing in devices}):
        of_class = [standing for standing in devices if standing.device.device_class == name]
        takers = {Taker.of(standing.device) for standing in of_class}
        runs = sum(waiting.runs for waiting in lanes if any(taker.may_take(waiting.lane) for taker in takers))
        counted = Counter(standing.now for standing in of_class)
        unavailable = ", ".join(f"{counted[now]} {now}" for now in ("held", "away", "quarantined") if counted[now])
        rows.append(
            Row(
                {
                    "device_class": name,
                    "runs": runs,
                    "free": counted["free"],
                    "busy": counted["busy"],
                    "kept": unavailable or None,
                },
                {"device_class": addresses.page("devices", ("class", name))},
            )
        )
    return table("classes", "By class of board", CLASS_COLUMNS, rows)


def _first(session: Session, lane: Lane, most: int) -> Sequence[Run]:
    """Returns the lane's oldest runs; none if it has been emptied meanwhile."""
    query = select(Run).where(Run.queued_in == lane.id, Run.queue_deadline_at > time.time())
    return session.scalars(query.order_by(Run.created_at, Run.id).limit(most)).all()


def _part(
    session: Session, settings: Settings, waiting: WaitingLane, runs: Sequence[Run], facts: Mapping[str, RunFacts]
) -> LanePart:
    first = runs[0]
    there = standings(session, settings, Wish.of(session, first), first)
    fitting = [standing for standing in there if standing.fits]
    outlook = forecast(session, settings, first, fitting)
    starts = [outlook.start_at, *later_starts(session, first, fitting, outlook, len(runs) - 1)] if outlook else []
    rows = [
        _run_row(facts[run.id], place, starts[place - 1] if starts else None, waiting.lane.id)
        for place, run in enumerate(runs, start=1)
        if run.id in facts
    ]
    name = lane_name(waiting.lane)
    return LanePart(
        name=name,
        id=f"runs-{waiting.lane.id}",
        href=addresses.page("queue", ("lane", waiting.lane.id)),
        message=waiting_words(first, there, outlook)[1],
        is_stuck=not fitting,
        devices=tuple(f"{standing.device.name} {standing.message}" for standing in there[:10]),
        runs=table("runs", f"Waiting for {name}", RUN_COLUMNS, rows),
        more=max(0, waiting.runs - len(rows)),
    )


def _run_row(entry: RunFacts, place: int, start_at: float | None, lane_id: str) -> Row:
    values: dict[str, Value] = {
        "run": entry.title,
        "place": place,
        "start_at": _start(start_at),
        "since": fmt.iso(entry.created_at),
        "id": entry.id,
    }
    cancel = Action(addresses.run(entry.id) + "/cancel", "Cancel", (("back", _back(lane_id)),), of=entry.id)
    notes = {"run": f"{entry.mode} · {fmt.plural(entry.steps, 'step')}"}
    return Row(values, {"run": addresses.run(entry.id)}, notes, actions=_for_senders(cancel))


def _back(lane_id: str) -> str:
    return addresses.page("queue", ("lane", lane_id))


def _start(at: float | None) -> str | None:
    return None if at is None else "now" if at <= time.time() + 1 else f"in {fmt.duration(at - time.time())}"


def _for_senders(*actions: Action) -> tuple[Action, ...]:
    return actions if visitors.current().may("submit") else ()


def _jobs(session: Session, settings: Settings) -> tuple[list[Row], str]:
    """Returns the compiles that wait, and why the first one does."""
    waiting = select(Job).where(Job.state == "queued").order_by(Job.created_at, Job.id).limit(JOB_ROWS)
    jobs = session.scalars(waiting).all()
    if not jobs:
        return [], ""
    explanation = job_why.why(session, settings, jobs[0])
    place = explanation.waiting.position if explanation.waiting else 1
    start_at = explanation.waiting.expected_start_at if explanation.waiting else None
    facts = {job.id: job for job in queries.jobs_by_id(session, [job.id for job in jobs])}
    rows = [
        _job_row(facts[job.id], place + later, start_at if not later else None)
        for later, job in enumerate(jobs)
        if job.id in facts
    ]
    return rows, explanation.message


def _job_row(entry: JobFacts, place: int, start_at: float | None) -> Row:
    values: dict[str, Value] = {
        "job": entry.title,
        "place": place,
        "start_at": _start(start_at),
        "since": fmt.iso(entry.created_at),
        "id": entry.id,
    }
    back = (("back", addresses.page("queue")),)
    cancel = Action(addresses.job(entry.id) + "/cancel", "Cancel", back, of=entry.id)
    return Row(values, {"job": addresses.job(entry.id)}, actions=_for_senders(cancel))
