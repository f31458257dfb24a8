"""The dashboard's addresses. Every view is a URL; every table is there as CSV and JSON too."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import RedirectResponse, Response

from service.base.problems import Invalid, NotFound
from service.dashboard import (
    addresses,
    admin_routes,
    device_routes,
    exports,
    model_routes,
    organisation_routes,
    queries,
    queue_routes,
    reference_routes,
    regression_routes,
    render,
    run_routes,
    visitors,
)
from service.dashboard.pages.audit import audit_file, audit_page
from service.dashboard.pages.benchmarks import benchmarks_page
from service.dashboard.pages.compare import compare_page, compare_table, kernels_of
from service.dashboard.pages.device_condition import heat_table
from service.dashboard.pages.devices import device_page, devices_page, first_of
from service.dashboard.pages.fronts import axes_of
from service.dashboard.pages.jobs import job_data, job_page, jobs_page
from service.dashboard.pages.overview import overview_page
from service.dashboard.pages.run_data import run_data
from service.dashboard.pages.runs import runs_page
from service.dashboard.query_fields import (
    BeforeEntry,
    BeforeJob,
    BeforeRun,
    Benchmarks,
    Devices,
    Entries,
    Jobs,
    OfKernels,
    Runs,
    Scale,
    SortBenchmarks,
    SortDevices,
    SortJobs,
    SortKernels,
    SortRuns,
    Text,
    Verdicts,
    XAxis,
    YAxis,
)
from service.devices.conditions import temperatures
from service.people.access import FarmDep
from service.work.runs.filter import RunFilter

router = APIRouter(include_in_schema=False)
private = APIRouter(prefix=addresses.ROOT, dependencies=[Depends(visitors.meet)])

Ending = Literal["csv", "json"]


RunIds = Annotated[list[str] | None, Query(alias="run", max_length=16)]


@router.get("/", response_class=RedirectResponse, status_code=303)
def front_door() -> str:
    """Leads to the dashboard."""
    return addresses.ROOT


@router.get(addresses.STATIC + "/{name}")
def static_file(name: str) -> Response:
    """Returns a style sheet, script or picture of the pages; open to all, since problem pages need them too."""
    response = render.static_file(name)
    if response is None:
        raise NotFound("page.unknown", f"no static file {name!r}")
    return response


@private.get("")
def overview(farm: FarmDep) -> Response:
    """Shows the first page."""
    with farm.database.read() as session:
        return render.page("overview.html", page=overview_page(session, farm), section="overview")


@private.get("/jobs")
def jobs(farm: FarmDep, chosen: Jobs, before: BeforeJob = "", sort: SortJobs = "") -> Response:
    """Shows compile jobs."""
    with farm.database.read() as session:
        return render.page("jobs.html", page=jobs_page(session, chosen, before, sort), section="jobs")


@private.get("/jobs.{ending}")
def jobs_data(ending: Ending, farm: FarmDep, chosen: Jobs, before: BeforeJob = "", sort: SortJobs = "") -> Response:
    """Returns every job that matches the filter, as a file. `before`, which selects a page, is ignored."""
    return render.data(exports.jobs_file(farm.database, chosen, sort), ending, "jobs")


@private.get("/jobs/{job_id}")
def one_job(job_id: str, farm: FarmDep) -> Response:
    """Shows a compile job."""
    with farm.database.read() as session:
        page = job_page(session, farm.settings, job_id)
    if page is None:
        raise NotFound("job.unknown", f"There is no compile job {job_id!r}.")
    return render.page("job.html", page=page, section="jobs")


@private.get("/jobs/{job_id}/{name}.{ending}")
def one_job_data(job_id: str, name: str, ending: Ending, farm: FarmDep) -> Response:
    """Sends one of a job's tables as a file."""
    with farm.database.read() as session:
        job, table = queries.job(session, job_id), job_data(session, job_id, name)
    if name == "runs" and job is not None and job.bundle_digest is not None:
        whole = exports.runs_file(farm.database, RunFilter(bundle=job.bundle_digest))
        return render.data(whole, ending, f"{job_id}-runs")
    if table is None:
        raise NotFound("data.unknown", f"job {job_id!r} has no table {name!r}")
    return render.data(table, ending, f"{job_id}-{name}")


@private.get("/runs")
def runs(farm: FarmDep, chosen: Runs, before: BeforeRun = "", sort: SortRuns = "") -> Response:
    """Shows runs."""
    with farm.database.read() as session:
        return render.page("runs.html", page=runs_page(session, chosen, before, sort), section="runs")


@private.get("/runs.{ending}")
def runs_data(ending: Ending, farm: FarmDep, chosen: Runs, before: BeforeRun = "", sort: SortRuns = "") -> Response:
    """Returns every run that matches the filter, as a file. `before`, which selects a page, is ignored."""
    return render.data(exports.runs_file(farm.database, chosen, sort), ending, "runs")


@private.get("/runs/{run_id}")
def one_run(run_id: str, farm: FarmDep, sort: SortKernels = "", find: Text = "") -> Response:
    """Shows a run; `sort` orders its per-kernel table, `find` is part of the names in it."""
    return run_routes.show(farm, run_id, sort, find=find)


@private.get("/runs/{run_id}/{name}.{ending}")
def one_run_data(run_id: str, name: str, ending: Ending, farm: FarmDep, sort: SortKernels = "") -> Response:
    """Sends one of a run's tables as a file, all of its rows."""
    if sort and name != "kernels":
        raise Invalid(
            "query.unknown",
            f"the table {name!r} has no other order",
            where="query.sort",
            hint="leave sort out; kernels have it",
        )
    with farm.database.read() as session:
        table = run_data(session, farm.settings, run_id, name, sort)
    if table is None:
        raise NotFound("data.unknown", f"run {run_id!r} has no table {name!r}")
    return render.data(table, ending, f"{run_id}-{name}")


@private.get("/devices")
def devices(farm: FarmDep, chosen: Devices, sort: SortDevices = "") -> Response:
    """Shows enrolled devices."""
    with farm.database.read() as session:
        page = first_of(devices_page(session, sort, chosen))
        return render.page("devices.html", page=page, section="devices")


@private.get("/devices.{ending}")
def devices_data(ending: Ending, farm: FarmDep, chosen: Devices, sort: SortDevices = "") -> Response:
    """Returns the same rows as a file."""
    with farm.database.read() as session:
        return render.data(devices_page(session, sort, chosen).table, ending, "devices")


@private.get("/devices/{device_id}")
def one_device(device_id: str, farm: FarmDep) -> Response:
    """Shows a device with its history."""
    with farm.database.read() as session:
        page = device_page(session, farm.settings, device_id)
    if page is None:
        raise NotFound("device.unknown", f"There is no device {device_id!r}.")
    return render.page("device.html", page=page, section="devices")


@private.get("/devices/{device_id}/{name}.{ending}")
def one_device_data(device_id: str, name: str, ending: Ending, farm: FarmDep) -> Response:
    """Returns a device's whole `history`, all of its `runs`, or its `temperatures`, as a file."""
    with farm.database.read() as session:
        device = queries.device(session, device_id)
        points = temperatures(session, device_id) if name == "temperatures" else []
    if device is not None and name == "temperatures":
        return render.data(heat_table(points), ending, f"{device_id}-temperatures")
    if device is None or name not in ("history", "runs"):
        raise NotFound("data.unknown", f"device {device_id!r} has no table {name!r}")
    if name == "history":
        return render.data(exports.history_file(farm.database, device.id), ending, f"{device_id}-history")
    whole = exports.runs_file(farm.database, RunFilter(device=device.id))
    return render.data(whole, ending, f"{device_id}-runs")


@private.get("/audit")
def audit(farm: FarmDep, chosen: Entries, before: BeforeEntry = "") -> Response:
    """Shows who did what in the caller's organisation."""
    with farm.database.read() as session:
        return render.page("audit.html", page=audit_page(session, chosen, before), section="audit")


@private.get("/audit.{ending}")
def audit_data(ending: Ending, farm: FarmDep, chosen: Entries, before: BeforeEntry = "") -> Response:
    """Returns every entry that matches the filter, as a file."""
    return render.data(audit_file(farm.database, chosen), ending, "audit")


@private.get("/benchmarks")
def benchmarks(
    farm: FarmDep,
    chosen: Benchmarks,
    verdicts: Verdicts = "",
    sort: SortBenchmarks = "",
    x: XAxis = "",
    y: YAxis = "",
    scale: Scale = "",
) -> Response:
    """Shows the newest run of each configuration, ranked among its like."""
    with farm.database.read() as session:
        page = benchmarks_page(session, chosen, all_verdicts=verdicts == "all", sort=sort, axes=axes_of(x, y, scale))
    return render.page("benchmarks.html", page=page, section="benchmarks")


@private.get("/benchmarks.{ending}")
def benchmarks_data(
    ending: Ending, farm: FarmDep, chosen: Benchmarks, verdicts: Verdicts = "", sort: SortBenchmarks = ""
) -> Response:
    """Returns the same table as a file, for all runs that were ever measured."""
    table = exports.benchmarks_file(farm.database, chosen, all_verdicts=verdicts == "all", sort=sort)
    return render.data(table, ending, "benchmarks")


@private.get("/compare")
def compare(farm: FarmDep, run: RunIds = None) -> Response:
    """Shows two to four runs side by side."""
    with farm.database.read() as session:
        return render.page("compare.html", page=compare_page(session, run or []), section="benchmarks")


@private.get("/compare.{ending}")
def compare_data(ending: Ending, farm: FarmDep, run: RunIds = None, of: OfKernels = "") -> Response:
    """Returns the same figures as a file. `of=kernels`: kernel by kernel."""
    with farm.database.read() as session:
        page = compare_page(session, run or [])
    if of != "kernels":
        return render.data(compare_table(page.runs), ending, "compare")
    kernels = kernels_of(page.runs)
    if kernels is None:
        raise NotFound("data.unknown", "these runs have no times by kernel that may stand beside each other")
    return render.data(kernels, ending, "compare-kernels")


router.include_router(private)
for other in (
    admin_routes.router,
    device_routes.router,
    model_routes.router,
    organisation_routes.router,
    queue_routes.router,
    reference_routes.router,
    regression_routes.router,
    run_routes.router,
):
    router.include_router(other)
