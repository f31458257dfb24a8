"""Rows -> facts. Every read of the dashboard is here; nothing here writes.

Names of rows that pages link to by their ids.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select, true
from sqlalchemy import Row as SqlRow
from sqlalchemy.orm import Session, defer, undefer

from device_agents.wire import REAL_CLASSES, ProtocolError, Report, from_json, without_played_times
from service.artefacts.bundles.manifest import precision
from service.artefacts.bundles.service import built, holds_bundle
from service.artefacts.jobs.filter import JobFilter
from service.dashboard.facts import AttemptFacts, BundleFacts, DeviceFacts, EventFacts, JobFacts, RunFacts
from service.devices.health import busy_devices, health_of
from service.store.database.memory import lasting_of, recalled_if_dear
from service.store.database.models import (
    OPEN_JOB_STATES,
    OPEN_RUN_STATES,
    Attempt,
    Bundle,
    Device,
    DeviceEvent,
    Holding,
    Job,
    Result,
    Run,
)
from service.store.database.models.runs import IS_TAGGED
from service.store.database.scope import organisation_of
from service.work.runs.filter import RunFilter
from service.work.runs.tags import tags_in


def device_names(session: Session, ids: Collection[str | None]) -> dict[str, str]:
    """Returns the names of those of these devices that the session sees, by their ids."""
    distinct = {device_id for device_id in ids if device_id is not None}
    return dict(session.execute(select(Device.id, Device.name).where(Device.id.in_(distinct))).all())


MOST_TAGGED = 500
REPORT_GROWS = 2
"""Bytes of a report in memory, of one as JSON text (1 to 2.6 were measured)."""


ReportKey = tuple[str, str]
RunRows = Select[Run, Bundle, Holding]


def _run_select() -> RunRows:
    """Returns runs with what their organisation calls their bundle; devices and data are looked up beside them, since a
    database takes longer to plan a join of six tables than to read a page of rows.
    """
    return (
        select(Run, Bundle, Holding)
        .join(Bundle, Bundle.digest == Run.bundle_digest)
        .join(Holding, holds_bundle(Run.bundle_digest, Holding.organisation_id == Run.organisation_id))
        .options(defer(Bundle.manifest))  # once for a bundle, not once for a row: it may be long
        .order_by(Run.id.desc())
    )


@dataclass(frozen=True)
class _Names:
    """The names that rows refer to: devices by id as (name, class), data sets by (organisation, digest)."""

    devices: dict[str, tuple[str, str]]
    data: dict[tuple[str, str], str]

    def of_data(self, run: Run, digest: str | None) -> str | None:
        return self.data.get((run.organisation_id, digest)) if digest else None


def _names(session: Session, runs: Sequence[Run]) -> _Names:
    devices = {run.device_id for run in runs if run.device_id}
    digests = {digest for run in runs for digest in (run.dataset_digest, run.validation_dataset_digest) if digest}
    of_devices = select(Device.id, Device.name, Device.device_class).where(Device.id.in_(sorted(devices)))
    of_data = select(Holding.organisation_id, Holding.digest, Holding.name).where(
        Holding.kind == "dataset", Holding.digest.in_(sorted(digests))
    )
    return _Names(
        {row.id: (row.name, row.device_class) for row in session.execute(of_devices)} if devices else {},
        {(row.organisation_id, row.digest): row.name for row in session.execute(of_data)} if digests else {},
    )


def _found_runs(session: Session, statement: RunRows) -> list[RunFacts]:
    rows = session.execute(statement).all()
    names = _names(session, [row[0] for row in rows])
    return [_run_facts(session, row, names) for row in rows]


def _filtered_runs(chosen: RunFilter, before: str) -> RunRows:
    statement = _run_select().where(*chosen.conditions())
    return statement.where(Run.id < before) if before else statement


def runs(session: Session, chosen: RunFilter, limit: int, before: str = "") -> list[RunFacts]:
    """Returns runs, newest first, without their reports; with `before`, those older than that id."""
    return _found_runs(session, _filtered_runs(chosen, before).limit(limit))


def runs_by_id(session: Session, ids: Sequence[str]) -> list[RunFacts]:
    """Returns the runs of these ids, without their reports, in any order."""
    return _found_runs(session, _run_select().where(Run.id.in_(ids)))


def run(session: Session, run_id: str) -> RunFacts | None:
    """Returns a run with its report."""
    rows = _found_runs(session, _run_select().where(Run.id == run_id))
    if not rows:
        return None
    facts = with_reports(session, rows)[0]
    trained = select(Holding.files_removed_at).where(
        Holding.kind == "weights", Holding.digest == facts.trained_weights_digest
    )
    return replace(facts, weights_removed_at=session.scalar(trained))


def measured_runs(session: Session, chosen: RunFilter, limit: int, before: str = "") -> list[RunFacts]:
    """Returns the newest runs that brought a measurement, newest first, without their reports."""
    statement = _filtered_runs(chosen, before).where(Run.state == "succeeded", Run.median_us.is_not(None))
    return _found_runs(session, statement.limit(limit))


def with_reports(session: Session, runs: Sequence[RunFacts]) -> list[RunFacts]:
    """Returns the same runs with the report that counts, if there is one that can be read."""
    reports = reports_of(session, [entry.id for entry in runs])
    return [_with_report(entry, *reports.get(entry.id, (None, None))) for entry in runs]


def with_precision(session: Session, runs: Sequence[RunFacts]) -> list[RunFacts]:
    """Returns the same runs with the precision in which their bundles compute."""
    precisions = {
        digest: precision(built(session, digest).manifest) for digest in {entry.bundle_digest for entry in runs}
    }
    return [replace(entry, precision=precisions[entry.bundle_digest]) for entry in runs]


def reports_of(session: Session, run_ids: Sequence[str]) -> dict[str, tuple[Report, ReportKey]]:
    """Returns the report that counts of each of these runs; each is read once, as it never changes."""
    lasting = lasting_of(session)
    recorded = select(Result.run_id, Result.attempt_id, Result.digest).where(
        Result.run_id.in_(run_ids), Result.state == "recorded"
    )
    keys = {
        run_id: (attempt_id, digest)
        for run_id, attempt_id, digest in session.execute(recorded.order_by(Result.recorded_at))
    }
    reports = {run_id: lasting.get(("report", *key)) for run_id, key in keys.items()}
    unread = [keys[run_id][0] for run_id, cached in reports.items() if cached is None]
    bodies = select(Result.run_id, Result.report).where(Result.attempt_id.in_(unread))
    for run_id, body in session.execute(bodies) if unread else ():
        reports[run_id] = _report(body)
        if reports[run_id] is not None:
            lasting.keep(("report", *keys[run_id]), reports[run_id], REPORT_GROWS * len(json.dumps(body)))
    return {run_id: (report, keys[run_id]) for run_id, report in reports.items() if isinstance(report, Report)}


def _with_report(entry: RunFacts, report: Report | None, key: ReportKey | None) -> RunFacts:
    if report is None:
        return entry
    threads = report.measurement.threads if report.measurement else entry.threads
    return replace(entry, report=without_played_times(report), report_key=key, threads=threads)


def _report(body: Mapping[str, Any]) -> Report | None:
    # An older agent's report may lack what today's protocol demands: the summary columns still stand.
    try:
        return from_json(Report, body)
    except ProtocolError:
        return None


def attempts_of_device(session: Session, device_id: str, limit: int) -> list[AttemptFacts]:
    """Returns the newest attempts on a device, newest first."""
    statement = select(Attempt, Device.name).join(Device, Device.id == Attempt.device_id)
    newest = statement.where(Attempt.device_id == device_id).order_by(Attempt.id.desc()).limit(limit)
    return [_attempt_facts(attempt, name) for attempt, name in session.execute(newest)]


def jobs(session: Session, chosen: JobFilter, limit: int, before: str = "") -> list[JobFacts]:
    """Returns compile jobs, newest first; with `before`, those older than that id."""
    statement = select(Job).where(*chosen.conditions()).order_by(Job.id.desc())
    if before:
        statement = statement.where(Job.id < before)
    return [_job_facts(job) for job in session.scalars(statement.limit(limit))]


def jobs_by_id(session: Session, ids: Sequence[str]) -> list[JobFacts]:
    """Returns the jobs of these ids, in any order."""
    return [_job_facts(job) for job in session.scalars(select(Job).where(Job.id.in_(ids)))]


def job(session: Session, job_id: str) -> JobFacts | None:
    """Returns a compile job."""
    row = session.get(Job, job_id)
    return _job_facts(row) if row is not None else None


def bundle(session: Session, digest: str) -> BundleFacts | None:
    """Returns a bundle with its manifest and compile report."""
    query = select(Bundle, Holding).join(Holding, holds_bundle(Bundle.digest, true()))
    row = session.execute(query.where(Bundle.digest == digest).options(undefer(Bundle.compile_report))).first()
    if row is None:
        return None
    bundle_row, named = row
    return BundleFacts(
        digest=bundle_row.digest,
        size_bytes=bundle_row.size_bytes,
        target=bundle_row.target,
        model_name=named.name,
        plan_name=named.plan_name,
        manifest=bundle_row.manifest,
        compile_report=bundle_row.compile_report,
    )


def devices(session: Session, now: float | None = None) -> list[DeviceFacts]:
    """Returns every device that was not removed, by name."""
    at = time.time() if now is None else now
    statement = select(Device).where(Device.state != "removed").order_by(func.lower(Device.name), Device.id)
    busy = busy_devices(session)
    return [_device_facts(device, device.id in busy, at) for device in session.scalars(statement)]


def device(session: Session, device_id: str, now: float | None = None) -> DeviceFacts | None:
    """Returns a device, removed ones too."""
    row = session.scalar(select(Device).where(Device.id == device_id))
    if row is None:
        return None
    is_busy = device_id in busy_devices(session, [device_id])
    return _device_facts(row, is_busy, time.time() if now is None else now)


def device_history(session: Session, device_id: str, limit: int, *, before: int | None = None) -> list[EventFacts]:
    """Returns a device's health events, newest first; with `before`, those older than that event."""
    statement = select(DeviceEvent).where(DeviceEvent.device_id == device_id).order_by(DeviceEvent.id.desc())
    if before is not None:
        statement = statement.where(DeviceEvent.id < before)
    newest = session.scalars(statement.limit(limit))
    return [EventFacts(event.at, event.kind, event.message, event.id) for event in newest]


def counts(session: Session) -> dict[str, dict[str, int]]:
    """Returns how many jobs and runs are in each state. There may be millions that have ended: if counting them takes
    long, their counts are some seconds old; those of open ones never are. Canary runs belong to the farm and are not
    counted.
    """
    return {"jobs": _by_state(session, Job, OPEN_JOB_STATES), "runs": _by_state(session, Run, OPEN_RUN_STATES)}


def _by_state(session: Session, table: type[Job | Run], open_states: tuple[str, ...]) -> dict[str, int]:
    def counted(*conditions: ColumnElement[bool]) -> Counter[str]:
        rows = session.execute(select(table.state, func.count()).where(*conditions).group_by(table.state))
        return Counter({str(state): int(count) for state, count in rows})

    def counts(condition: ColumnElement[bool]) -> dict[str, int]:
        # Canaries have an index of their own; to leave them out row by row would read all runs.
        return counted(condition) - (counted(condition, Run.is_canary == true()) if table is Run else Counter())

    key, is_open = ("ended", table.__tablename__, organisation_of(session)), table.state.in_(open_states)
    return counts(is_open) | recalled_if_dear(session, key, lambda: counts(~is_open))


def bundle_values(session: Session) -> dict[str, tuple[str, ...]]:
    """Returns the model names, plan names and targets that bundles have, for filters."""
    return {
        "model": _distinct(session, Holding.name, Holding.kind == "bundle"),
        "plan": _distinct(session, Holding.plan_name, Holding.kind == "bundle"),
        "target": _distinct(session, Bundle.target),
    }


def job_values(session: Session) -> dict[str, tuple[str, ...]]:
    """Returns the model names, plan names and targets that jobs asked for, for filters."""
    return {
        "model": _distinct(session, Job.model_name),
        "plan": _distinct(session, Job.plan_name),
        "target": _distinct(session, Job.target),
    }


def run_tags(session: Session) -> tuple[str, ...]:
    """Returns the tags of the newest runs that have any."""
    texts = session.scalars(select(Run.tags).where(IS_TAGGED).order_by(Run.id.desc()).limit(MOST_TAGGED))
    return tuple(sorted({tag for text in texts for tag in tags_in(text)}))


def device_choices(session: Session) -> tuple[tuple[str, str], ...]:
    """Returns (id, name) of every device that ever enrolled."""
    statement = select(Device.id, Device.name).order_by(func.lower(Device.name))
    return tuple((str(device_id), str(name)) for device_id, name in session.execute(statement))


def _distinct(session: Session, column: Any, *conditions: ColumnElement[bool]) -> tuple[str, ...]:
    query = select(column).where(*conditions).distinct().order_by(column)
    return tuple(str(value) for value in session.scalars(query))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _run_facts(session: Session, row: SqlRow[Run, Bundle, Holding], names: _Names) -> RunFacts:
    run, bundle, named = row
    on_name, on_class = names.devices.get(run.device_id or "", (None, None))
    dataset_name = names.of_data(run, run.dataset_digest)
    arena_bytes, batch = run.arena_bytes, run.batch
    if arena_bytes is None or batch is None:  # of no report: as planned
        manifest = built(session, bundle.digest).manifest
        arena_bytes = _manifest_memory(manifest, "arena_bytes") if arena_bytes is None else arena_bytes
        batch = manifest_batch(manifest) if batch is None else batch
    is_real = run.measurement_class in REAL_CLASSES
    return RunFacts(
        id=run.id,
        state=run.state,
        settings=run.settings,
        model_name=named.name,
        model_digest=bundle.model_digest,
        plan_name=named.plan_name,
        target=run.target,
        bundle_digest=run.bundle_digest,
        created_at=run.created_at,
        name=run.name,
        note=run.note,
        tags=tuple(tags_in(run.tags)),
        steps_done=run.steps_done,
        phase=run.phase,
        attempts=run.attempts,
        device_id=run.device_id,
        device_name=on_name,
        device_class=on_class,
        wanted=run.wanted_device_id or run.wanted_device_class or _wishes(run.wants),
        dataset_digest=run.dataset_digest or own_data(run),
        dataset_name=dataset_name or (f"{run.own_data}, on the device" if run.own_data else None),
        start_weights_digest=run.weights_digest,
        validation_dataset_digest=run.validation_dataset_digest,
        validation_dataset_name=names.of_data(run, run.validation_dataset_digest),
        trained_weights_digest=run.trained_weights_digest,
        trained_weights_bytes=run.trained_weights_bytes,
        bundle_bytes=bundle.size_bytes,
        bundle_removed_at=named.files_removed_at,
        events_removed_at=run.events_removed_at,
        started_at=run.started_at,
        finished_at=run.finished_at,
        cause=run.cause,
        code=run.code,
        message=run.message,
        hint=run.hint,
        measurement_class=run.measurement_class,
        verdict=run.verdict,
        batch=batch,
        threads=run.settings.threads,
        median_us=run.median_us if is_real else None,
        p90_us=run.p90_us if is_real else None,
        samples_per_second=run.samples_per_second if is_real else None,
        arena_bytes=arena_bytes,
        rss_bytes=run.peak_rss_bytes,
        energy_mj=run.energy_per_step_mj,
        training_outcome=run.training_outcome,
        loss_first=run.loss_first,
        loss_last=run.loss_last,
        accuracy_before=run.accuracy_before,
        accuracy_after=run.accuracy_after,
    )


def _wishes(wants: str | None) -> str:
    """Describes the device of a run that may go to whatever device has what it wants: `any with tag rack=7`."""
    return "any with " + wants.replace(":", " ").replace("\n", ", ") if wants else ""


def own_data(run: Any) -> str | None:
    """Identifies a data set that stays on a device: two devices may have other data under one name."""
    if run.own_data is None:
        return None
    return run.own_data_digest or f"{run.own_data} on {run.device_id or run.wanted_device_id or 'a device'}"


def _manifest_memory(manifest: Mapping[str, Any], name: str) -> int | None:
    memory = manifest.get("memory")
    value = memory.get(name) if isinstance(memory, dict) else None
    return value if isinstance(value, int) else None


def manifest_batch(manifest: Mapping[str, Any]) -> int | None:
    """Returns the planned batch; None if the manifest has none."""
    batch = manifest.get("batch")
    return batch if isinstance(batch, int) else None


def _job_facts(job: Job) -> JobFacts:
    return JobFacts(
        id=job.id,
        state=job.state,
        model_name=job.model_name,
        model_digest=job.model_digest,
        model_bytes=job.model_bytes,
        plan_name=job.plan_name,
        target=job.target,
        created_at=job.created_at,
        stage=job.stage,
        fraction=job.fraction,
        started_at=job.started_at,
        finished_at=job.finished_at,
        bundle_digest=job.bundle_digest,
        cause=job.cause,
        code=job.code,
        place=job.place,
        message=job.message,
        hint=job.hint,
        plan_text=job.plan_json,
        spec_text=job.spec_json,
        compiler_version=job.compiler_version,
        attempts=job.attempts,
    )


def _device_facts(device: Device, is_busy: bool, now: float) -> DeviceFacts:
    return DeviceFacts(
        id=device.id,
        name=device.name,
        told_name=device.told_name,
        health=health_of(device, is_busy=is_busy, now=now),
        device_class=device.device_class,
        measurement_class=device.measurement_class,
        targets=tuple(device.targets),
        enrolled_at=device.created_at,
        last_seen_at=device.last_seen_at,
        architecture=device.architecture,
        cpu_model=device.cpu_model,
        cores=device.cores,
        memory_bytes=device.memory_bytes,
        features=tuple(device.features),
        sensors=tuple(device.sensors),
        isolation_level=device.isolation_level,
        agent_version=device.agent_version,
        agent_updates=device.agent_updates,
        agent_digest=device.agent_digest,
        runner=device.runner,
        reason=device.state_reason or device.drain_reason,
        strikes=device.strikes,
        tags=tuple(f"{key}={value}" if value else key for key, value in sorted(device.tags.items())),
        own_datasets=tuple(device.own_datasets),
        environment={str(name): str(value) for name, value in device.environment.items()},
    )


def _attempt_facts(attempt: Attempt, device_name: str) -> AttemptFacts:
    return AttemptFacts(
        run_id=attempt.run_id,
        number=attempt.n,
        device_id=attempt.device_id,
        device_name=device_name,
        state=attempt.state,
        created_at=attempt.created_at,
        finished_at=attempt.finished_at,
        cause=attempt.cause,
        code=attempt.code,
        message=attempt.message,
    )
