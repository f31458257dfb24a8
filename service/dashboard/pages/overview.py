"""The first page: what is going on, what came back last, what needs somebody."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.canary.history import change_words, explained
from service.canary.service import regressed
from service.dashboard import addresses, queries
from service.dashboard.facts import DeviceFacts, JobFacts
from service.dashboard.pages.devices import device_table
from service.dashboard.pages.jobs import job_table
from service.dashboard.pages.run_table import run_table
from service.dashboard.tables import Table
from service.database.models import CanaryChange
from service.jobs.filter import JobFilter
from service.releases.publishing import halted
from service.runs.filter import RunFilter

OPEN_ROWS = 20
RECENT_ROWS = 10
ATTENTION_ROWS = 8


@dataclass(frozen=True, slots=True)
class Count:
    """A number with what it counts and where those are listed."""

    number: int
    label: str
    href: str


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that a person should look at."""

    title: str
    detail: str
    href: str
    icon: str


@dataclass(frozen=True, slots=True)
class OverviewPage:
    """What the first page shows."""

    counts: tuple[Count, ...]
    open_runs: Table
    open_jobs: Table
    recent: Table
    devices: Table
    concerns: tuple[Concern, ...]
    is_new: bool
    """Nothing was ever compiled here."""
    public_url: str


def overview_page(session: Session, public_url: str) -> OverviewPage:
    """Everything of the first page."""
    counts = queries.counts(session)
    devices = queries.devices(session)
    failed_jobs = queries.jobs(session, JobFilter(state="failed"), 4)
    return OverviewPage(
        counts=_counts(counts, devices),
        open_runs=run_table(queries.runs(session, RunFilter(state="open"), OPEN_ROWS), "Open runs", short=True),
        open_jobs=job_table(queries.jobs(session, JobFilter(state="open"), OPEN_ROWS), "Open compile jobs"),
        recent=run_table(
            queries.runs(session, RunFilter(state="succeeded"), RECENT_ROWS), "Latest results", short=True
        ),
        devices=device_table(devices, "Devices"),
        concerns=_concerns(session, devices, failed_jobs)[:ATTENTION_ROWS],
        is_new=not counts["jobs"] and not counts["runs"],
        public_url=public_url,
    )


def _counts(counts: dict[str, dict[str, int]], devices: list[DeviceFacts]) -> tuple[Count, ...]:
    runs, jobs = counts["runs"], counts["jobs"]
    online = sum(1 for device in devices if device.health in ("online", "busy"))
    return (
        Count(online, f"of {len(devices)} devices online", addresses.page("devices")),
        Count(runs.get("running", 0) + runs.get("leased", 0), "running", addresses.page("runs", ("state", "running"))),
        Count(runs.get("queued", 0), "queued", addresses.page("runs", ("state", "queued"))),
        Count(jobs.get("compiling", 0) + jobs.get("queued", 0), "compiling", addresses.page("jobs", ("state", "open"))),
        Count(runs.get("succeeded", 0), "succeeded", addresses.page("runs", ("state", "succeeded"))),
        Count(runs.get("failed", 0), "failed", addresses.page("runs", ("state", "failed"))),
    )


def _concerns(session: Session, devices: list[DeviceFacts], failed_jobs: list[JobFacts]) -> tuple[Concern, ...]:
    found = [
        Concern(f"{device.name} is {device.health}", device.reason, addresses.device(device.id), "warning")
        for device in devices
        if device.health == "quarantined"
    ]
    found += [_slower(change, device) for change, device in regressed(session, ATTENTION_ROWS)]
    found += [
        Concern(f"Agent {one.version} is halted", one.halt_reason, addresses.page("devices"), "warning")
        for one in halted(session)
    ]
    found += [
        Concern(f"Compile failed: {job.title}", _reason(job.cause, job.message), addresses.job(job.id), "cross")
        for job in failed_jobs
    ]
    found += [
        Concern(f"Run failed: {run.title}", _reason(run.cause, run.message), addresses.run(run.id), "cross")
        for run in queries.runs(session, RunFilter(state="failed"), 4)
    ]
    return tuple(found)


def _slower(change: CanaryChange, device: str) -> Concern:
    detail = f"{change_words(change)}; {explained(change.differences)}"
    title = f"{device} has become slower, by its canary {change.canary}"
    return Concern(title, detail, addresses.device(change.device_id), "warning")


def _reason(cause: str | None, message: str) -> str:
    return f"{cause}: {message}" if cause else message
