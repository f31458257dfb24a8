"""What a device's timed canaries took, one report after the other, and where that changed by more than its noise."""

from __future__ import annotations

import json
import string
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, exists, func, select
from sqlalchemy.orm import Session, aliased

from device_agents.figures.change import Change, change_in, may_have_changed
from device_agents.figures.digits import faster_or_slower
from device_agents.figures.intervals import Interval
from device_agents.figures.separate_runs import UNKNOWN, Variation, together, variation_of
from device_agents.wire import Report, to_json
from service.base.commit import commit
from service.base.identifiers import clean_text, digest_of
from service.base.settings import Settings
from service.boards.canary import timed
from service.devices import blame
from service.store.announcements import announce_slower
from service.store.database.models import CanaryChange, CanaryTime, Device, Job, Run
from service.work.runs.provenance import device_state

AWAY = 3
"""So many runs to each side of a change: what else changed among them may explain it."""
LONG = 40
"""Characters of a fact; a digest, or a commit, is told from its first twelve."""
MOST_FACTS = 64
"""That a device says of itself; it may be hostile."""
MOST_LOOKED_AT = 365
"""Runs of a series, and as many are shown."""


def take(session: Session, settings: Settings, run: Run, device: Device, report: Report) -> None:
    """Write down what a timed canary took, and whether that shows a change. The caller holds the device's row."""
    job = session.scalar(select(Job).where(Job.bundle_digest == run.bundle_digest).order_by(Job.id.desc()).limit(1))
    if report.measurement is None or report.verdict is None or job is None:
        return
    parts = {
        "model": job.model_digest,
        "plan": job.plan_digest,
        "spec": job.spec_digest,
        "target": run.target,
        "settings": to_json(run.settings),
    }
    told = CanaryTime(
        run_id=run.id,
        device_id=device.id,
        series=digest_of(json.dumps(parts, sort_keys=True).encode()),
        canary=job.model_name,
        target=run.target,
        model_digest=job.model_digest,
        plan_digest=job.plan_digest,
        spec_digest=job.spec_digest,
        median_us=report.measurement.median_us,
        verdict=report.verdict.kind,
        facts=_facts(settings, job, report),
    )
    session.add(told)
    session.flush()
    if told.verdict == "valid":
        _look(session, settings, device, told)
        known = _of_device(session, device.id)
        device.canary_deviation, device.canary_freedom = known.deviation, known.freedom


def _facts(settings: Settings, job: Job, report: Report) -> dict[str, str]:
    """By what they are of; a change of the times has none of them as its proven cause."""
    said = list(device_state(to_json(report)).items())[:MOST_FACTS]
    device = {f"device's {clean_text(name, LONG)}": clean_text(str(value)) for name, value in said}
    return {"compiler": job.compiler_version, "commit": commit(settings), "bundle": job.bundle_digest or "", **device}


def _look(session: Session, settings: Settings, device: Device, newest: CanaryTime) -> None:
    stretches = stretches_of(runs_of(session, device.id, newest.series), starts_of(session, device.id))
    runs, known = stretches[-1], _variation(stretches[:-1])
    times = [one.median_us for one in runs]
    found = change_in(times, known)
    if found is not None:
        _write(session, device, runs, found)
    elif may_have_changed(times, known):
        timed.soon(device, settings)


def runs_of(session: Session, device_id: str, series: str) -> list[CanaryTime]:
    """The newest runs of a series, in order."""
    mine = select(CanaryTime).where(CanaryTime.device_id == device_id, CanaryTime.series == series)
    return list(reversed(session.scalars(mine.order_by(CanaryTime.run_id.desc()).limit(MOST_LOOKED_AT)).all()))


def starts_of(session: Session, device_id: str) -> Collection[str]:
    """The first run after each change of the device's times, in all series."""
    return set(session.scalars(select(CanaryChange.after_run_id).where(CanaryChange.device_id == device_id)))


def stretches_of(runs: Sequence[CanaryTime], starts: Collection[str]) -> list[list[CanaryTime]]:
    """What is valid of a series, in order; each change begins another stretch. The last one may be empty."""
    stretches: list[list[CanaryTime]] = [[]]
    for run in runs:
        if run.run_id in starts:
            stretches.append([])
        if run.verdict == "valid":
            stretches[-1].append(run)
    return stretches


def variation_in(runs: Sequence[CanaryTime], starts: Collection[str]) -> Variation:
    """From one run of a series to the next, between changes."""
    return _variation(stretches_of(runs, starts))


def _variation(stretches: Sequence[Sequence[CanaryTime]]) -> Variation:
    return variation_of([one.median_us for one in stretch] for stretch in stretches)


def series_of(session: Session, device_id: str) -> Sequence[str]:
    """The device's series, the one with the newest run first."""
    mine = select(CanaryTime.series).where(CanaryTime.device_id == device_id).group_by(CanaryTime.series)
    return session.scalars(mine.order_by(func.max(CanaryTime.run_id).desc())).all()


def _of_device(session: Session, device_id: str) -> Variation:
    """By all of its series."""
    starts, known = starts_of(session, device_id), UNKNOWN
    for series in series_of(session, device_id):
        known = together(known, variation_in(runs_of(session, device_id, series), starts))
    return known


def last_change(session: Session, device_id: str, series: str) -> CanaryChange | None:
    """The one that says how the series stands now."""
    mine = (CanaryChange.device_id == device_id, CanaryChange.series == series)
    return session.scalar(select(CanaryChange).where(*mine).order_by(CanaryChange.after_run_id.desc()).limit(1))


def _write(session: Session, device: Device, runs: Sequence[CanaryTime], found: Change) -> None:
    newest = runs[-1]
    change = CanaryChange(
        device_id=device.id,
        series=newest.series,
        canary=newest.canary,
        target=newest.target,
        before_run_id=runs[found.at - 1].run_id,
        after_run_id=runs[found.at].run_id,
        ratio=found.ratio,
        ratio_low=found.interval.low,
        ratio_high=found.interval.high,
        deviation=found.deviation,
        differences=differences(runs, found.at),
    )
    session.add(change)
    session.flush()
    said = f"canary {change.canary} on {change.target}: {found.words} from run {change.after_run_id} on"
    kind = "slower" if found.is_slower else "faster"
    blame.note(session, device.id, kind, f"{said}; {explained(change.differences)}")
    if found.is_slower:
        announce_slower(session, change, device.organisation_id)


def differences(runs: Sequence[CanaryTime], at: int) -> list[dict[str, Any]]:
    """What else changed there, or up to `AWAY` runs from there, the nearest first: digests of compiler and bundle, the
    farm's commit, what the device says of itself."""
    found: list[dict[str, Any]] = []
    for place in range(max(1, at - AWAY), min(len(runs), at + AWAY + 1)):
        before, after = runs[place - 1].facts, runs[place].facts
        found += [
            {"what": what, "before": before.get(what, ""), "after": after.get(what, ""), "away": place - at}
            for what in {**before, **after}
            if before.get(what, "") != after.get(what, "")
        ]
    return sorted(found, key=lambda one: abs(one["away"]))


def explained(changes: Sequence[dict[str, Any]]) -> str:
    """`just there changed: compiler from sha256:12ab34cd56 to sha256:...`."""
    there = [
        f"{one['what']} from {_short(one['before'])} to {_short(one['after'])}" for one in changes if not one["away"]
    ]
    if there:
        return "just there changed: " + ", ".join(there)
    near = [f"{one['what']} ({abs(one['away'])} {'later' if one['away'] > 0 else 'before'})" for one in changes]
    if near:
        return "within a few runs of it changed: " + ", ".join(near)
    return "nothing that the farm knows of changed there: look at the device"


def change_words(change: CanaryChange) -> str:
    """`1.052x slower (1.046 to 1.058x)`."""
    return faster_or_slower(change.ratio, Interval(change.ratio_low, change.ratio_high))


def is_open() -> tuple[ColumnElement[bool], ...]:
    """Over `CanaryChange`."""
    later = aliased(CanaryChange)
    is_over = exists().where(
        later.device_id == CanaryChange.device_id,
        later.series == CanaryChange.series,
        later.after_run_id > CanaryChange.after_run_id,
    )
    return CanaryChange.ratio > 1, CanaryChange.acknowledged_at.is_(None), ~is_over


def _short(value: str) -> str:
    digits = value.removeprefix("sha256:")
    is_digest = len(digits) >= LONG and all(letter in string.hexdigits for letter in digits)
    return (digits[:12] if is_digest else value[:LONG]) or "none"
