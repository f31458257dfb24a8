"""What a campaign has shown: by the database and the API from outside, once everything has come to rest."""

from __future__ import annotations

import json
import math
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from benchmarks.markdown import table
from service.boards.canary import building as canaries
from service.store.database.models import (
    OPEN_JOB_STATES,
    OPEN_RUN_STATES,
    ApiKey,
    Attempt,
    Device,
    DeviceEvent,
    Event,
    Job,
    Result,
    Run,
)
from tests.thorough.chaos import answers
from tests.thorough.chaos.campaign import Record
from tests.thorough.chaos.field import Field
from tests.thorough.chaos.points import WITHIN_S
from tests.thorough.chaos.workload import Request, Workload

FAILED = re.compile(r".*\b(GET|HEAD|POST|PUT|PATCH|DELETE) /\S* failed")
ENDS_ONCE = ("succeeded", "failed", "cancelled", "expired", "inconclusive")


@dataclass(frozen=True)
class Findings:
    """Offenders by what they did; all empty when all is well."""

    lost: Sequence[str]
    doubled: Sequence[str]
    wrong: Sequence[str]
    stuck: Sequence[str]
    slow: Sequence[str]
    refused: Sequence[str]
    broken: Sequence[str] = ()
    """Requests that the farm failed on: an answer of 500, whatever the fault."""

    def beside(self, earlier: Mapping[str, Sequence[str]]) -> Findings:
        """With what earlier sessions of the same campaign have found."""
        return Findings(**{name: [*earlier.get(name, ()), *some] for name, some in asdict(self).items()})

    @property
    def is_good(self) -> bool:
        return not any((self.lost, self.doubled, self.wrong, self.stuck, self.slow, self.refused, self.broken))


def judge(field: Field, workload: Workload, records: Sequence[Record], still: Sequence[str] = ()) -> Findings:
    """Look at every request; `still`: those that made no progress for long while the campaign went on."""
    with field.rows.read() as session:
        jobs = {row.id: row for row in session.scalars(select(Job))}
        runs = {row.id: row for row in session.scalars(select(Run))}
        results = defaultdict(list)
        for result in session.scalars(select(Result).where(Result.state == "recorded")):
            results[result.run_id].append(result)
        query = select(Event.subject, func.count()).where(Event.kind == "state", _is_end(Event)).group_by(Event.subject)
        ends = {subject: count for subject, count in session.execute(query)}  # noqa: C416
        known = {one.id for one in workload.requests} | asked_by_the_farm(session)
    lost, doubled, wrong, stuck = [], [], [], list(still)
    for one in workload.requests:
        row = jobs.get(one.id) or runs.get(one.id)
        if row is None:
            lost.append(f"{one.id}: {one.what}: there is no such row")
        elif row.state in (*OPEN_JOB_STATES, *OPEN_RUN_STATES):
            stuck.append(f"{one.id}: {one.what}: still {row.state}\n{history(field, one.id)}")
        elif row.state != "succeeded":
            lost.append(f"{one.id}: {one.what}: {row.state}: {row.code}: {row.message}\n{history(field, one.id)}")
        else:
            if ends.get(one.id, 0) != 1 or len(results[one.id]) > 1:
                doubled.append(
                    f"{one.id}: {one.what}: {ends.get(one.id, 0)} ends, {len(results[one.id])} results\n"
                    f"{history(field, one.id)}"
                )
            wrong += _wrong(workload, one, row, [result.report for result in results[one.id]])
    doubled += [
        f"{row}: nobody asked for it, or a request was taken twice" for row in (*jobs, *runs) if row not in known
    ]
    slow = [
        f"{record.point}: {record.kind} ({record.part}): {_seconds(record)} [{record.evidence}] {record.note}"
        for record in records
        if record.is_slow
    ]
    return Findings(lost, doubled, wrong, stuck, slow, workload.refused, _broken(field))


def asked_by_the_farm(session: Session) -> set[str]:
    """The canary runs of boards that were quarantined, one at a time for each, and the compiles of their bundle."""
    compiles = select(Job.id).join(ApiKey, ApiKey.id == Job.api_key_id).where(ApiKey.name == canaries.OWNER)
    own = set(session.scalars(compiles))
    quarantined = select(DeviceEvent.device_id, func.min(DeviceEvent.at)).where(DeviceEvent.kind == "quarantined")
    next_from: dict[str | None, float] = {  # noqa: C416
        device_id: at for device_id, at in session.execute(quarantined.group_by(DeviceEvent.device_id))
    }
    for run in session.scalars(select(Run).where(Run.is_canary).order_by(Run.created_at)):
        if run.created_at >= next_from.get(run.wanted_device_id, math.inf):
            own.add(run.id)
            next_from[run.wanted_device_id] = math.inf if run.finished_at is None else run.finished_at
    return own


def quarantines(field: Field) -> list[str]:
    """What happened to boards that were quarantined: a fault that takes a board down so often costs it its work."""
    told = ("strike", "quarantined", "canary", "released")
    with field.rows.read() as session:
        ill = select(DeviceEvent.device_id).where(DeviceEvent.kind == "quarantined")
        query = select(Device.name, DeviceEvent).join(Device, Device.id == DeviceEvent.device_id)
        query = query.where(Device.id.in_(ill), DeviceEvent.kind.in_(told)).order_by(DeviceEvent.id)
        return [
            f"{name}: {time.strftime('%H:%M:%S', time.localtime(line.at))} {line.kind}: {line.message}"
            for name, line in session.execute(query)
        ]


def _broken(field: Field) -> list[str]:
    """By the logs of the API processes."""
    logs = sorted((field.topology.state / "logs").glob("api-*.log*"))
    return [
        f"{log.name}: {line}"
        for log in logs
        for line in log.read_text(errors="replace").splitlines()
        if FAILED.fullmatch(line)
    ]


def _is_end(event: type[Event]):  # type: ignore[no-untyped-def]
    return event.body["state"].as_string().in_(ENDS_ONCE)


def _wrong(workload: Workload, request: Request, row: Job | Run, reports: Sequence[dict]) -> list[str]:  # type: ignore[type-arg]
    """What differs from the undisturbed result, to the bit."""
    if isinstance(row, Job):
        expected_bundle = request.bundle or answers.real_bundle(answers.real_model(request.seed))
        return [] if row.bundle_digest == expected_bundle else [f"{row.id}: bundle {row.bundle_digest}"]
    if not reports:
        return [f"{row.id}: succeeded without a result"]
    if request.what == "profile":
        return []
    if request.what == "train-real":
        assert workload.real_learned is not None
        right, weights_digest = workload.real_learned
    else:
        script = answers.learned(request.label, request.steps, start=request.start)
        right, weights_digest = script.losses, script.weights_digest
    losses, found = tuple(reports[0]["losses"]), []
    if losses != right:
        found.append(f"{row.id}: {len(losses)} losses differ from the {len(right)} undisturbed ones")
    if row.trained_weights_digest != weights_digest:
        found.append(f"{row.id}: weights {row.trained_weights_digest}, undisturbed {weights_digest}")
    return found


def learned_of(field: Field, run_id: str) -> tuple[tuple[float, ...], str]:
    """Losses, and the digest of the weights, of a training that has ended well."""
    with field.rows.read() as session:
        run = session.get_one(Run, run_id)
        report = session.scalars(select(Result).where(Result.run_id == run_id, Result.state == "recorded")).one().report
    assert run.trained_weights_digest is not None
    return tuple(report["losses"]), run.trained_weights_digest


def history(field: Field, subject: str) -> str:
    """All that happened to a job or run, for a person."""
    with field.rows.read() as session:
        events = session.scalars(select(Event).where(Event.subject == subject).order_by(Event.id)).all()
        attempts = session.scalars(select(Attempt).where(Attempt.run_id == subject).order_by(Attempt.n)).all()
    lines = [
        f"    {event.at:.1f} {event.kind} {json.dumps(event.body)[:300]}"
        for event in events
        if event.kind in ("state", "phase")
    ]
    lines += [f"    attempt {one.n} on {one.device_id}: {one.state} {one.code} {one.message[:200]}" for one in attempts]
    return "\n".join(lines)


def shown(records: Iterable[Record], findings: Findings) -> str:
    """The table of points and kinds, then whatever is wrong."""
    rows = defaultdict(list)
    for one in records:
        rows[one.point, one.kind].append(one)
    head = ("point: kind", "tried", "confirmed", "recovered", "p50 s", "p95 s", "max s", "limit s")
    lines = [(f"{point}: {kind}", *_figures(some)) for (point, kind), some in sorted(rows.items())]
    every = [one for some in rows.values() for one in some]
    lines.append(("all", *_figures(every)))
    usual = [one for one in every if not one.is_board_gone]
    lines.append(("all but boards that never come back", *_figures(usual)))
    text = [table(head, lines), ""]
    text.append(f"points with a confirmed fault: {len({one.point for one in every if one.evidence})}")
    text += [
        f"{name}: {_spread(some)}"
        for name, some in (
            ("recovery, but of boards that never come back", usual),
            ("boards that never come back, from their death", [wait for wait in every if wait.is_board_gone]),
        )
    ]
    for name in ("lost", "doubled", "wrong", "stuck", "slow", "refused", "broken"):
        offenders = getattr(findings, name)
        text.append(f"{name}: {len(offenders)}")
        text += [f"  {one}" for one in offenders]
    return "\n".join(text)


def missing(records: Sequence[Record], wanted: int, *, fewest_points: int) -> list[str]:
    """What was asked of a campaign and has not come about, however good its findings are."""
    confirmed = [one for one in records if one.evidence]
    points = len({one.point for one in confirmed})
    late_s = p95(one for one in records if not one.is_board_gone)
    found = [f"{len(confirmed)} faults confirmed, {wanted} wanted: go on with the log, or with more MINUTES="]
    found *= len(confirmed) < wanted
    found += [f"{points} points with a confirmed fault, {fewest_points} wanted"] * (points < fewest_points)
    return found + [f"recovery p95 {late_s:.1f} s, at most {WITHIN_S:.0f} s wanted"] * (late_s > WITHIN_S)


def _figures(records: Sequence[Record]) -> tuple[str, ...]:
    confirmed = [one for one in records if one.evidence]
    times = sorted(one.recovery_s for one in confirmed if one.recovery_s is not None)
    marks = [_quantile(times, share) for share in (0.5, 0.95, 1.0)]
    limit = max((one.within_s for one in records), default=0.0)
    return (str(len(records)), str(len(confirmed)), str(len(times)), *marks, f"{limit:.0f}")


def _spread(records: Sequence[Record]) -> str:
    tried, confirmed, recovered, *marks, limit = _figures(records)
    return (
        f"{tried} tried, {confirmed} confirmed, {recovered} recovered; p50 {marks[0]} s, p95 {marks[1]} s, longest "
        f"{marks[2]} s; limit {limit} s"
    )


def p95(records: Iterable[Record]) -> float:
    """Recovery of those that came back, in seconds."""
    times = sorted(one.recovery_s for one in records if one.evidence and one.recovery_s is not None)
    return times[max(0, math.ceil(0.95 * len(times)) - 1)] if times else 0.0


def _quantile(times: Sequence[float], share: float) -> str:
    return f"{times[max(0, math.ceil(share * len(times)) - 1)]:.1f}" if times else "-"


def _seconds(record: Record) -> str:
    return "not recovered" if record.recovery_s is None else f"{record.recovery_s:.1f} s"
