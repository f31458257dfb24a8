"""Rows -> facts. Every read of the dashboard is here; nothing here writes."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select, true
from sqlalchemy import Row as SqlRow
from sqlalchemy.orm import Session, defer, undefer

from device_agents.wire import REAL_CLASSES, ProtocolError, Report, from_json, without_played_times
from service.artefacts.bundles.manifest import precision
from service.artefacts.bundles.service import built, held_bundle
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

MOST_TAGGED = 500
REPORT_GROWS = 2
"""Bytes of a report in memory, of one as JSON text (1 to 2.6 were measured)."""


ReportKey = tuple[str, str]
RunRows = Select[Run, Bundle, Holding]


def _run_select() -> RunRows:
    """Runs with what their organisation calls their bundle; devices and data are looked up beside them, since a
    database takes longer to plan a join of six tables than to read a page of rows."""
    return (
        select(Run, Bundle, Holding)
        .join(Bundle, Bundle.digest == Run.bundle_digest)
        .join(Holding, held_bundle(Run.bundle_digest, Holding.organisation_id == Run.organisation_id))
        .options(defer(Bundle.manifest))  # once for a bundle, not once for a row: it may be long
        .order_by(Run.id.desc())
    )


@dataclass(frozen=True)
class _Names:
    """What rows are called: devices by id as (name, class), data sets by (organisation, digest)."""

    devices: dict[str, tuple[str, str]]
    data: dict[tuple[str, str], str]

    def of_data(self, found: Run, digest: str | None) -> str | None:
        return self.data.get((found.organisation_id, digest)) if digest else None


def _names(session: Session, found: Sequence[Run]) -> _Names:
    devices = {run.device_id for run in found if run.device_id}
    digests = {digest for run in found for digest in (run.dataset_digest, run.validation_dataset_digest) if digest}
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
    """Runs, newest first, without their reports; with `before`, those older than that id."""
    return _found_runs(session, _filtered_runs(chosen, before).limit(limit))


def runs_by_id(session: Session, ids: Sequence[str]) -> list[RunFacts]:
    """The runs of these ids, without their reports, in any order."""
    return _found_runs(session, _run_select().where(Run.id.in_(ids)))


def run(session: Session, run_id: str) -> RunFacts | None:
    """One run with its report."""
    rows = _found_runs(session, _run_select().where(Run.id == run_id))
    if not rows:
        return None
    found = with_reports(session, rows)[0]
    trained = select(Holding.files_removed_at).where(
        Holding.kind == "weights", Holding.digest == found.trained_weights_digest
    )
    return replace(found, weights_removed_at=session.scalar(trained))


def measured_runs(session: Session, chosen: RunFilter, limit: int, before: str = "") -> list[RunFacts]:
    """The newest runs that brought a measurement, newest first, without their reports."""
    statement = _filtered_runs(chosen, before).where(Run.state == "succeeded", Run.median_us.is_not(None))
    return _found_runs(session, statement.limit(limit))


def with_reports(session: Session, found: Sequence[RunFacts]) -> list[RunFacts]:
    """The same runs with the report that counts, where there is one that can be read."""
    reports = reports_of(session, [entry.id for entry in found])
    return [_with_report(entry, *reports.get(entry.id, (None, None))) for entry in found]


def with_precision(session: Session, found: Sequence[RunFacts]) -> list[RunFacts]:
    """The same runs with what their bundles compute with."""
    said = {digest: precision(built(session, digest).manifest) for digest in {entry.bundle_digest for entry in found}}
    return [replace(entry, precision=said[entry.bundle_digest]) for entry in found]


def reports_of(session: Session, run_ids: Sequence[str]) -> dict[str, tuple[Report, ReportKey]]:
    """The report that counts of each of these runs; each is read once, as it never changes."""
    lasting = lasting_of(session)
    recorded = select(Result.run_id, Result.attempt_id, Result.digest).where(
        Result.run_id.in_(run_ids), Result.state == "recorded"
    )
    keys = {
        run_id: (attempt_id, digest)
        for run_id, attempt_id, digest in session.execute(recorded.order_by(Result.recorded_at))
    }
    reports = {run_id: lasting.known(("report", *key)) for run_id, key in keys.items()}
    unread = [keys[run_id][0] for run_id, known in reports.items() if known is None]
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
    """The newest attempts on a device, newest first."""
    statement = select(Attempt, Device.name).join(Device, Device.id == Attempt.device_id)
    newest = statement.where(Attempt.device_id == device_id).order_by(Attempt.id.desc()).limit(limit)
    return [_attempt_facts(attempt, name) for attempt, name in session.execute(newest)]


def jobs(session: Session, chosen: JobFilter, limit: int, before: str = "") -> list[JobFacts]:
    """Compile jobs, newest first; with `before`, those older than that id."""
    statement = select(Job).where(*chosen.conditions()).order_by(Job.id.desc())
    if before:
        statement = statement.where(Job.id < before)
    return [_job_facts(found) for found in session.scalars(statement.limit(limit))]


def jobs_by_id(session: Session, ids: Sequence[str]) -> list[JobFacts]:
    """The jobs of these ids, in any order."""
    return [_job_facts(found) for found in session.scalars(select(Job).where(Job.id.in_(ids)))]


def job(session: Session, job_id: str) -> JobFacts | None:
    """One compile job."""
    found = session.get(Job, job_id)
    return _job_facts(found) if found is not None else None


def bundle(session: Session, digest: str) -> BundleFacts | None:
    """A bundle with its manifest and compile report."""
    query = select(Bundle, Holding).join(Holding, held_bundle(Bundle.digest, true()))
    row = session.execute(query.where(Bundle.digest == digest).options(undefer(Bundle.compile_report))).first()
    if row is None:
        return None
    found, named = row
    return BundleFacts(
        digest=found.digest,
        size_bytes=found.size_bytes,
        target=found.target,
        model_name=named.name,
        plan_name=named.plan_name,
        manifest=found.manifest,
        compile_report=found.compile_report,
    )


def devices(session: Session, now: float | None = None) -> list[DeviceFacts]:
    """Every device that was not removed, by name."""
    at = time.time() if now is None else now
    statement = select(Device).where(Device.state != "removed").order_by(func.lower(Device.name), Device.id)
    busy = busy_devices(session)
    return [_device_facts(found, found.id in busy, at) for found in session.scalars(statement)]


def device(session: Session, device_id: str, now: float | None = None) -> DeviceFacts | None:
    """One device, removed ones too."""
    found = session.scalar(select(Device).where(Device.id == device_id))
    if found is None:
        return None
    is_busy = device_id in busy_devices(session, [device_id])
    return _device_facts(found, is_busy, time.time() if now is None else now)


def device_history(session: Session, device_id: str, limit: int, *, before: int | None = None) -> list[EventFacts]:
    """A device's health events, newest first; with `before`, those older than that event."""
    statement = select(DeviceEvent).where(DeviceEvent.device_id == device_id).order_by(DeviceEvent.id.desc())
    if before is not None:
        statement = statement.where(DeviceEvent.id < before)
    newest = session.scalars(statement.limit(limit))
    return [EventFacts(found.at, found.kind, found.message, found.id) for found in newest]


def counts(session: Session) -> dict[str, dict[str, int]]:
    """How many jobs and runs are in each state. Those that have ended may be millions: where counting them takes long,
    they are as of some seconds ago; open ones never. Canary runs are the farm's own, and counted nowhere."""
    return {"jobs": _by_state(session, Job, OPEN_JOB_STATES), "runs": _by_state(session, Run, OPEN_RUN_STATES)}


def _by_state(session: Session, table: type[Job | Run], open_states: tuple[str, ...]) -> dict[str, int]:
    def counted(*conditions: ColumnElement[bool]) -> Counter[str]:
        rows = session.execute(select(table.state, func.count()).where(*conditions).group_by(table.state))
        return Counter({str(state): int(count) for state, count in rows})

    def found(condition: ColumnElement[bool]) -> dict[str, int]:
        # Canaries have an index of their own; to leave them out row by row would read all runs.
        return counted(condition) - (counted(condition, Run.is_canary == true()) if table is Run else Counter())

    key, is_open = ("ended", table.__tablename__, organisation_of(session)), table.state.in_(open_states)
    return found(is_open) | recalled_if_dear(session, key, lambda: found(~is_open))


def bundle_values(session: Session) -> dict[str, tuple[str, ...]]:
    """Model names, plan names and targets that bundles have, for filters."""
    return {
        "model": _distinct(session, Holding.name, Holding.kind == "bundle"),
        "plan": _distinct(session, Holding.plan_name, Holding.kind == "bundle"),
        "target": _distinct(session, Bundle.target),
    }


def job_values(session: Session) -> dict[str, tuple[str, ...]]:
    """Model names, plan names and targets that jobs asked for, for filters."""
    return {
        "model": _distinct(session, Job.model_name),
        "plan": _distinct(session, Job.plan_name),
        "target": _distinct(session, Job.target),
    }


def run_tags(session: Session) -> tuple[str, ...]:
    """Tags of the newest runs that have any."""
    texts = session.scalars(select(Run.tags).where(IS_TAGGED).order_by(Run.id.desc()).limit(MOST_TAGGED))
    return tuple(sorted({tag for text in texts for tag in tags_in(text)}))


def device_choices(session: Session) -> tuple[tuple[str, str], ...]:
    """(id, name) of every device that ever enrolled."""
    statement = select(Device.id, Device.name).order_by(func.lower(Device.name))
    return tuple((str(device_id), str(name)) for device_id, name in session.execute(statement))


def _distinct(session: Session, column: Any, *conditions: ColumnElement[bool]) -> tuple[str, ...]:
    query = select(column).where(*conditions).distinct().order_by(column)
    return tuple(str(value) for value in session.scalars(query))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _run_facts(session: Session, row: SqlRow[Run, Bundle, Holding], names: _Names) -> RunFacts:
    found, made, named = row
    on_name, on_class = names.devices.get(found.device_id or "", (None, None))
    dataset_name = names.of_data(found, found.dataset_digest)
    arena_bytes, batch = found.arena_bytes, found.batch
    if arena_bytes is None or batch is None:  # of no report: as planned
        manifest = built(session, made.digest).manifest
        arena_bytes = _manifest_memory(manifest, "arena_bytes") if arena_bytes is None else arena_bytes
        batch = manifest_batch(manifest) if batch is None else batch
    is_real = found.measurement_class in REAL_CLASSES
    return RunFacts(
        id=found.id,
        state=found.state,
        settings=found.settings,
        model_name=named.name,
        model_digest=made.model_digest,
        plan_name=named.plan_name,
        target=found.target,
        bundle_digest=found.bundle_digest,
        created_at=found.created_at,
        name=found.name,
        note=found.note,
        tags=tuple(tags_in(found.tags)),
        steps_done=found.steps_done,
        phase=found.phase,
        attempts=found.attempts,
        device_id=found.device_id,
        device_name=on_name,
        device_class=on_class,
        wanted=found.wanted_device_id or found.wanted_device_class or _wishes(found.wants),
        dataset_digest=found.dataset_digest or own_data(found),
        dataset_name=dataset_name or (f"{found.own_data}, on the device" if found.own_data else None),
        start_weights_digest=found.weights_digest,
        validation_dataset_digest=found.validation_dataset_digest,
        validation_dataset_name=names.of_data(found, found.validation_dataset_digest),
        trained_weights_digest=found.trained_weights_digest,
        trained_weights_bytes=found.trained_weights_bytes,
        bundle_bytes=made.size_bytes,
        bundle_removed_at=named.files_removed_at,
        events_removed_at=found.events_removed_at,
        started_at=found.started_at,
        finished_at=found.finished_at,
        cause=found.cause,
        code=found.code,
        message=found.message,
        hint=found.hint,
        measurement_class=found.measurement_class,
        verdict=found.verdict,
        batch=batch,
        threads=found.settings.threads,
        median_us=found.median_us if is_real else None,
        p90_us=found.p90_us if is_real else None,
        samples_per_second=found.samples_per_second if is_real else None,
        arena_bytes=arena_bytes,
        rss_bytes=found.peak_rss_bytes,
        energy_mj=found.energy_per_step_mj,
        training_outcome=found.training_outcome,
        loss_first=found.loss_first,
        loss_last=found.loss_last,
        accuracy_before=found.accuracy_before,
        accuracy_after=found.accuracy_after,
    )


def _wishes(wants: str | None) -> str:
    """`any with tag rack=7`: of a run that may go to whatever device has what it wants."""
    return "any with " + wants.replace(":", " ").replace("\n", ", ") if wants else ""


def own_data(found: Any) -> str | None:
    """What tells a data set that stays on a device from others: two devices may have other data under one name."""
    if found.own_data is None:
        return None
    return found.own_data_digest or f"{found.own_data} on {found.device_id or found.wanted_device_id or 'a device'}"


def _manifest_memory(manifest: Mapping[str, Any], name: str) -> int | None:
    memory = manifest.get("memory")
    value = memory.get(name) if isinstance(memory, dict) else None
    return value if isinstance(value, int) else None


def manifest_batch(manifest: Mapping[str, Any]) -> int | None:
    """As planned; None where the manifest tells none."""
    batch = manifest.get("batch")
    return batch if isinstance(batch, int) else None


def _job_facts(found: Job) -> JobFacts:
    return JobFacts(
        id=found.id,
        state=found.state,
        model_name=found.model_name,
        model_digest=found.model_digest,
        model_bytes=found.model_bytes,
        plan_name=found.plan_name,
        target=found.target,
        created_at=found.created_at,
        stage=found.stage,
        fraction=found.fraction,
        started_at=found.started_at,
        finished_at=found.finished_at,
        bundle_digest=found.bundle_digest,
        cause=found.cause,
        code=found.code,
        place=found.place,
        message=found.message,
        hint=found.hint,
        plan_text=found.plan_json,
        spec_text=found.spec_json,
        compiler_version=found.compiler_version,
        attempts=found.attempts,
    )


def _device_facts(found: Device, is_busy: bool, now: float) -> DeviceFacts:
    return DeviceFacts(
        id=found.id,
        name=found.name,
        told_name=found.told_name,
        health=health_of(found, is_busy=is_busy, now=now),
        device_class=found.device_class,
        measurement_class=found.measurement_class,
        targets=tuple(found.targets),
        enrolled_at=found.created_at,
        last_seen_at=found.last_seen_at,
        architecture=found.architecture,
        cpu_model=found.cpu_model,
        cores=found.cores,
        memory_bytes=found.memory_bytes,
        features=tuple(found.features),
        sensors=tuple(found.sensors),
        isolation_level=found.isolation_level,
        agent_version=found.agent_version,
        agent_updates=found.agent_updates,
        agent_digest=found.agent_digest,
        runner=found.runner,
        reason=found.state_reason or found.drain_reason,
        strikes=found.strikes,
        tags=tuple(f"{key}={value}" if value else key for key, value in sorted(found.tags.items())),
        own_datasets=tuple(found.own_datasets),
        environment={str(name): str(value) for name, value in found.environment.items()},
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
