"""The first page: what is going on, what came back last, what needs somebody."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.artefacts.jobs.filter import JobFilter
from service.dashboard import addresses, queries
from service.dashboard.extensions import Concern
from service.dashboard.facts import DeviceFacts
from service.dashboard.pages.attention import concerns_lately
from service.dashboard.pages.devices import short_table
from service.dashboard.pages.jobs import job_table
from service.dashboard.pages.run_table import run_table
from service.dashboard.tables import Table
from service.store.farm import Farm
from service.work.runs.filter import RunFilter

OPEN_ROWS = 10
RECENT_ROWS = 8
DEVICE_ROWS = 20


@dataclass(frozen=True, slots=True)
class Count:
    """A number with what it counts and where those are listed."""

    number: int
    label: str
    href: str


@dataclass(frozen=True, slots=True)
class OverviewPage:
    """The contents of the first page."""

    counts: tuple[Count, ...]
    open_runs: Table
    open_jobs: Table
    recent: Table
    devices: Table
    concerns: tuple[Concern, ...]
    is_new: bool
    """Whether nothing was ever compiled here."""
    public_url: str


def overview_page(session: Session, farm: Farm) -> OverviewPage:
    """Reads everything that the first page shows."""
    counts = queries.counts(session)
    devices = queries.devices(session)
    return OverviewPage(
        counts=_counts(counts, devices),
        open_runs=run_table(queries.runs(session, RunFilter(state="open"), OPEN_ROWS), "Open runs", short=True),
        open_jobs=job_table(queries.jobs(session, JobFilter(state="open"), OPEN_ROWS), "Open compile jobs"),
        recent=run_table(
            queries.runs(session, RunFilter(state="succeeded"), RECENT_ROWS), "Latest results", short=True
        ),
        devices=short_table(devices[:DEVICE_ROWS], "Devices"),
        concerns=concerns_lately(session, farm, devices),
        is_new=not counts["jobs"] and not counts["runs"],
        public_url=farm.settings.public_url,
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
