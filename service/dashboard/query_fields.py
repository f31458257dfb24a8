"""The query fields that pages share, as dependencies: which runs, jobs, devices and entries to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, get_args

from fastapi import Depends, Query
from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.wire import MODES, MeasurementClass, VerdictKind
from service.artefacts.bundles.manifest import EVERY_PRECISION
from service.artefacts.jobs.filter import JobFilter
from service.dashboard import queries
from service.dashboard.pages.benchmark_filter import AGES, SYNTHETIC, BenchmarkFilter
from service.dashboard.pages.benchmarks import COLUMNS as BENCHMARK_COLUMNS
from service.dashboard.pages.device_filter import HEALTHS, DeviceFilter
from service.dashboard.pages.devices import COLUMNS as DEVICE_COLUMNS
from service.dashboard.pages.fronts import LABELS
from service.dashboard.pages.jobs import COLUMNS as JOB_COLUMNS
from service.dashboard.pages.run_figures import KERNEL_COLUMNS
from service.dashboard.pages.run_table import COLUMNS as RUN_COLUMNS
from service.dashboard.query_values import Among, Name, OfRow, check_names, name_in, sorts
from service.people.access import FarmDep
from service.people.audit.endpoints import AuditFilterDep
from service.people.audit.service import AuditFilter
from service.store.database.models import (
    JOB_STATES,
    RUN_STATES,
    AuditEntry,
    Bundle,
    Device,
    Holding,
    Job,
    Run,
    RunGroup,
)
from service.store.farm import Farm
from service.work.runs.engines import ENGINES
from service.work.runs.filter import RunFilter
from service.work.runs.tags import has_tag

Text = Annotated[str, Query(max_length=200)]
JobState = Annotated[str, Query(max_length=200), Among("state", ("open", *JOB_STATES))]
RunState = Annotated[str, Query(max_length=200), Among("state", ("open", *RUN_STATES))]
Mode = Annotated[str, Query(max_length=200), Among("mode", MODES)]
Class = Annotated[str, Query(alias="class", max_length=200), Among("class", get_args(MeasurementClass))]
Verdict = Annotated[str, Query(max_length=200), Among("verdict", get_args(VerdictKind))]
Engine = Annotated[str, Query(max_length=200), Among("engine", ENGINES)]
Health = Annotated[str, Query(max_length=200), Among("health", HEALTHS)]
Precision = Annotated[str, Query(max_length=200), Among("precision", EVERY_PRECISION)]
Days = Annotated[str, Query(max_length=200), Among("days", tuple(days for days, _ in AGES))]
Verdicts = Annotated[str, Query(max_length=200), Among("verdicts", ("all",))]
XAxis = Annotated[str, Query(max_length=200), Among("x", tuple(name for name, _ in LABELS))]
YAxis = Annotated[str, Query(max_length=200), Among("y", tuple(name for name, _ in LABELS))]
Scale = Annotated[str, Query(max_length=200), Among("scale", ("log",))]
OfKernels = Annotated[str, Query(max_length=200), Among("of", ("kernels",))]
SortJobs = Annotated[str, Query(max_length=200), Among("sort", sorts(JOB_COLUMNS))]
SortRuns = Annotated[str, Query(max_length=200), Among("sort", sorts(RUN_COLUMNS))]
SortKernels = Annotated[str, Query(max_length=200), Among("sort", sorts(KERNEL_COLUMNS))]
SortDevices = Annotated[str, Query(max_length=200), Among("sort", sorts(DEVICE_COLUMNS))]
SortBenchmarks = Annotated[str, Query(max_length=200), Among("sort", sorts(BENCHMARK_COLUMNS))]
BeforeJob = Annotated[str, Query(max_length=200), OfRow("before", "job")]
BeforeRun = Annotated[str, Query(max_length=200), OfRow("before", "run")]
BeforeEntry = Annotated[str, Query(max_length=200), OfRow("before", "aud")]


def run_filter(
    farm: FarmDep,
    state: RunState = "",
    mode: Mode = "",
    model: Text = "",
    plan: Text = "",
    target: Text = "",
    device: Text = "",
    measurement_class: Class = "",
    verdict: Verdict = "",
    bundle: Text = "",
    group: Text = "",
    code: Text = "",
    tag: Text = "",
    engine: Engine = "",
) -> RunFilter:
    """Returns the run filter of a query."""
    chosen = RunFilter(
        state, mode, bundle, target, device, measurement_class, verdict, model, plan, group, code, tag, engine
    )
    _check(farm, _names_of_runs(chosen))
    return chosen


def benchmark_filter(
    farm: FarmDep,
    runs: Annotated[RunFilter, Depends(run_filter)],
    days: Days = "",
    compiler: Text = "",
    data: Text = "",
    precision: Precision = "",
) -> BenchmarkFilter:
    """Returns the filter of the page of benchmarks."""
    _check(
        farm,
        [
            name_in("compiler", compiler, Job.compiler_version),
            name_in("data", "" if data == SYNTHETIC else data, Run.dataset_digest, is_told=False),
        ],
    )
    return BenchmarkFilter(
        **{name: getattr(runs, name) for name in RunFilter.__slots__},
        days=days,
        compiler=compiler,
        data=data,
        precision=precision,
    )


def job_filter(
    farm: FarmDep, state: JobState = "", model: Text = "", plan: Text = "", target: Text = "", code: Text = ""
) -> JobFilter:
    """Returns the job filter of a query."""
    _check(
        farm,
        [
            name_in("model", model, Job.model_name),
            name_in("plan", plan, Job.plan_name),
            name_in("target", target, Job.target),
            name_in("code", code, Job.code),
        ],
    )
    return JobFilter(state, target, model, plan, code)


def device_filter(
    farm: FarmDep,
    health: Health = "",
    device_class: Annotated[str, Query(alias="class", max_length=200)] = "",
    tag: Text = "",
) -> DeviceFilter:
    """Returns the device filter of a query."""
    _check(
        farm,
        [
            name_in("class", device_class, Device.device_class, Device.state != "removed"),
            Name("tag", tag, lambda session: tag in _device_tags(session), _device_tags),
        ],
    )
    return DeviceFilter(health, device_class, tag)


def audit_filter(farm: FarmDep, chosen: AuditFilterDep) -> AuditFilter:
    """Returns the filter of a query over the audit log."""
    _check(
        farm,
        [
            name_in("action", chosen.action, AuditEntry.action),
            name_in("key", chosen.key, AuditEntry.key_id, is_told=False),
            name_in("user", chosen.user, AuditEntry.user_id, is_told=False),
            name_in("subject", chosen.subject, AuditEntry.subject, is_told=False),
        ],
    )
    return chosen


Runs = Annotated[RunFilter, Depends(run_filter)]
Benchmarks = Annotated[BenchmarkFilter, Depends(benchmark_filter)]
Jobs = Annotated[JobFilter, Depends(job_filter)]
Devices = Annotated[DeviceFilter, Depends(device_filter)]
Entries = Annotated[AuditFilter, Depends(audit_filter)]


def _check(farm: Farm, names: Sequence[Name]) -> None:
    if any(name.value for name in names):
        with farm.database.read() as session:
            check_names(session, names)


def _names_of_runs(chosen: RunFilter) -> list[Name]:
    is_bundle = Holding.kind == "bundle"
    return [
        name_in("model", chosen.model, Holding.name, is_bundle),
        name_in("plan", chosen.plan, Holding.plan_name, is_bundle),
        name_in("target", chosen.target, Bundle.target),
        name_in("device", chosen.device, Device.id, is_told=False),
        name_in("bundle", chosen.bundle, Holding.digest, is_bundle, is_told=False),
        name_in("group", chosen.group, RunGroup.id, is_told=False),
        name_in("code", chosen.code, Run.code),
        Name("tag", chosen.tag, lambda session: _is_tagged(session, chosen.tag), queries.run_tags),
    ]


def _is_tagged(session: Session, tag: str) -> bool:
    return session.scalar(select(Run.id).where(has_tag(tag)).limit(1)) is not None


def _device_tags(session: Session) -> list[str]:
    """Returns `key` and `key=value` of each tag, since filters accept both."""
    every = session.scalars(select(Device.tags).where(Device.state != "removed"))
    pairs = {pair for tags in every for pair in tags.items()}
    return sorted({key for key, _ in pairs} | {f"{key}={value}" for key, value in pairs if value})
