"""The times of a device's timed canaries, one report after the other, and the points where they changed by more than
their noise.
"""

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
"""Number of runs on each side of a change in which other differences may explain it."""
LONG = 40
"""Characters of a fact; a digest, or a commit, is told from its first twelve."""
MOST_FACTS = 64
"""Most facts that a device may state about itself; it may be hostile."""
MOST_LOOKED_AT = 365
"""Runs of a series, and as many are shown."""


def take(session: Session, settings: Settings, run: Run, device: Device, report: Report) -> None:
    """Records what a timed canary took, and whether that shows a change. The caller holds the device's row."""
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
    canary_time = CanaryTime(
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
    session.add(canary_time)
    session.flush()
    if canary_time.verdict == "valid":
        _look(session, settings, device, canary_time)
        variation = _of_device(session, device.id)
        device.canary_deviation, device.canary_freedom = variation.deviation, variation.freedom


def _facts(settings: Settings, job: Job, report: Report) -> dict[str, str]:
    """Returns the facts around a canary run, by name. None of them is ever the proven cause of a change of the
    times.
    """
    state = list(device_state(to_json(report)).items())[:MOST_FACTS]
    device = {f"device's {clean_text(name, LONG)}": clean_text(str(value)) for name, value in state}
    return {"compiler": job.compiler_version, "commit": commit(settings), "bundle": job.bundle_digest or "", **device}


def _look(session: Session, settings: Settings, device: Device, newest: CanaryTime) -> None:
    stretches = stretches_of(runs_of(session, device.id, newest.series), starts_of(session, device.id))
    runs, variation = stretches[-1], _variation(stretches[:-1])
    times = [run.median_us for run in runs]
    change = change_in(times, variation)
    if change is not None:
        _write(session, device, runs, change)
    elif may_have_changed(times, variation):
        timed.soon(device, settings)


def runs_of(session: Session, device_id: str, series: str) -> list[CanaryTime]:
    """Returns the newest runs of a series, in order."""
    query = select(CanaryTime).where(CanaryTime.device_id == device_id, CanaryTime.series == series)
    return list(reversed(session.scalars(query.order_by(CanaryTime.run_id.desc()).limit(MOST_LOOKED_AT)).all()))


def starts_of(session: Session, device_id: str) -> Collection[str]:
    """Returns the first run after each change of the device's times, in all series."""
    return set(session.scalars(select(CanaryChange.after_run_id).where(CanaryChange.device_id == device_id)))


def stretches_of(runs: Sequence[CanaryTime], starts: Collection[str]) -> list[list[CanaryTime]]:
    """Returns the valid runs of a series, in order; each change begins another stretch. The last one may be empty."""
    stretches: list[list[CanaryTime]] = [[]]
    for run in runs:
        if run.run_id in starts:
            stretches.append([])
        if run.verdict == "valid":
            stretches[-1].append(run)
    return stretches


def variation_in(runs: Sequence[CanaryTime], starts: Collection[str]) -> Variation:
    """Returns how much the times vary from one run of a series to the next, between changes."""
    return _variation(stretches_of(runs, starts))


def _variation(stretches: Sequence[Sequence[CanaryTime]]) -> Variation:
    return variation_of([run.median_us for run in stretch] for stretch in stretches)


def series_of(session: Session, device_id: str) -> Sequence[str]:
    """Returns the device's series, the one with the newest run first."""
    query = select(CanaryTime.series).where(CanaryTime.device_id == device_id).group_by(CanaryTime.series)
    return session.scalars(query.order_by(func.max(CanaryTime.run_id).desc())).all()


def _of_device(session: Session, device_id: str) -> Variation:
    """Returns the device's variation over all of its series."""
    starts, variation = starts_of(session, device_id), UNKNOWN
    for series in series_of(session, device_id):
        variation = together(variation, variation_in(runs_of(session, device_id, series), starts))
    return variation


def last_change(session: Session, device_id: str, series: str) -> CanaryChange | None:
    """Returns the change that says how the series stands now."""
    conditions = (CanaryChange.device_id == device_id, CanaryChange.series == series)
    return session.scalar(select(CanaryChange).where(*conditions).order_by(CanaryChange.after_run_id.desc()).limit(1))


def _write(session: Session, device: Device, runs: Sequence[CanaryTime], shift: Change) -> None:
    newest = runs[-1]
    change = CanaryChange(
        device_id=device.id,
        series=newest.series,
        canary=newest.canary,
        target=newest.target,
        before_run_id=runs[shift.at - 1].run_id,
        after_run_id=runs[shift.at].run_id,
        ratio=shift.ratio,
        ratio_low=shift.interval.low,
        ratio_high=shift.interval.high,
        deviation=shift.deviation,
        differences=differences(runs, shift.at),
    )
    session.add(change)
    session.flush()
    message = f"canary {change.canary} on {change.target}: {shift.words} from run {change.after_run_id} on"
    kind = "slower" if shift.is_slower else "faster"
    blame.note(session, device.id, kind, f"{message}; {explained(change.differences)}")
    if shift.is_slower:
        announce_slower(session, change, device.organisation_id)


def differences(runs: Sequence[CanaryTime], at: int) -> list[dict[str, Any]]:
    """Lists what else changed there, or up to `AWAY` runs from there, the nearest first: digests of compiler and
    bundle, the farm's commit, what the device says of itself.
    """
    changes: list[dict[str, Any]] = []
    for place in range(max(1, at - AWAY), min(len(runs), at + AWAY + 1)):
        before, after = runs[place - 1].facts, runs[place].facts
        changes += [
            {"what": what, "before": before.get(what, ""), "after": after.get(what, ""), "away": place - at}
            for what in {**before, **after}
            if before.get(what, "") != after.get(what, "")
        ]
    return sorted(changes, key=lambda change: abs(change["away"]))


def explained(changes: Sequence[dict[str, Any]]) -> str:
    """Says what changed: `just there changed: compiler from sha256:12ab34cd56 to sha256:...`."""
    there = [
        f"{change['what']} from {_short(change['before'])} to {_short(change['after'])}"
        for change in changes
        if not change["away"]
    ]
    if there:
        return "just there changed: " + ", ".join(there)
    near = [
        f"{change['what']} ({abs(change['away'])} {'later' if change['away'] > 0 else 'before'})" for change in changes
    ]
    if near:
        return "within a few runs of it changed: " + ", ".join(near)
    return "nothing that the farm knows of changed there: look at the device"


def change_words(change: CanaryChange) -> str:
    """Returns the change in words: `1.052x slower (1.046 to 1.058x)`."""
    return faster_or_slower(change.ratio, Interval(change.ratio_low, change.ratio_high))


def is_open() -> tuple[ColumnElement[bool], ...]:
    """Returns the conditions on `CanaryChange` for an open regression."""
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
