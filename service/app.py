"""The web application: every router in one list, optional features, problems, limits, metrics, sweeper."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import iter_route_contexts
from sqlalchemy.exc import OperationalError, ProgrammingError
from starlette.concurrency import run_in_threadpool
from starlette.routing import BaseRoute

from service.artefacts.bundles import endpoints as bundles
from service.artefacts.datasets import endpoints as datasets
from service.artefacts.jobs import endpoints as jobs
from service.artefacts.tunings import endpoints as tunings
from service.artefacts.uploads import endpoints as uploads
from service.base import problems
from service.base.compression import CompressPages
from service.base.disk import find_temporary_folder
from service.base.logs import LogRequests, set_up_logs
from service.base.schemas import PROBLEMS, Problem
from service.base.settings import Settings
from service.base.text import RefuseNul
from service.boards.agents import endpoints as agents
from service.boards.canary import endpoints as canaries
from service.boards.fleet import endpoints as devices
from service.boards.installation import endpoints as boards
from service.boards.releases import endpoints as releases
from service.dashboard import problem_pages
from service.dashboard import routes as dashboard
from service.dashboard.documents import endpoints as documents
from service.dashboard.manual import endpoints as manual
from service.devices.maintenance import endpoints as maintenance
from service.farm import open_farm
from service.feature_list import FEATURES
from service.operations.alive import Pulse
from service.operations.health import endpoints as health
from service.operations.health.checks import Readiness, farm_checks
from service.operations.health.metrics import CountRequests, Metrics
from service.operations.organisations import endpoints as organisations
from service.operations.result_log import endpoints as result_log
from service.operations.retention import endpoints as retention
from service.operations.sweeper import Sweeper
from service.people.access import authorise
from service.people.audit import endpoints as audit
from service.people.audit.recording import RecordRequests
from service.people.keys import endpoints as keys
from service.people.limits import BodyLimits
from service.people.permissions import Permissions
from service.people.query import refuse_unknown_fields
from service.people.users import endpoints as users
from service.store import signing_keys
from service.store.database.schema import refuse_other_schema
from service.store.farm import Farm
from service.store.queue import Queue
from service.work.groups import endpoints as groups
from service.work.lanes.dispatch import Dispatcher
from service.work.runs import endpoints as runs

ROUTERS: tuple[APIRouter, ...] = (
    agents.router,  # asked most often, and addresses are looked for in this order
    jobs.router,
    bundles.router,
    datasets.router,
    uploads.router,
    runs.router,
    groups.router,
    retention.router,
    tunings.router,
    result_log.router,
    documents.router,
    devices.router,
    canaries.router,
    maintenance.router,
    releases.router,
    keys.router,
    users.router,
    organisations.router,
    audit.router,
    boards.router,
    health.router,
    dashboard.router,
    manual.router,
    *(router for feature in FEATURES for router in feature.routers),
)
EVERY_ADDRESS: dict[str, Any] = {
    "responses": PROBLEMS,
    "dependencies": [Depends(authorise), Depends(refuse_unknown_fields)],
}
LOG = logging.getLogger(__name__)
GARBAGE_THRESHOLDS = (20_000, 20, 20)
"""New objects after which garbage is looked for among the youngest, and how often that is done before the older ones
are looked through too (`gc.set_threshold`; CPython: 700, 10, 10)."""
THREADS = 100
"""Requests that may use the database at once; held requests (long polls, streams) use a thread only while they look."""


class Application(FastAPI):
    """FastAPI with our problem documents in its description."""

    def openapi(self) -> dict[str, Any]:
        """Returns the API's description (OpenAPI 3.1)."""
        if self.openapi_schema is None:
            described = super().openapi()
            described["components"]["schemas"].setdefault("Problem", Problem.model_json_schema())
        assert self.openapi_schema is not None
        return self.openapi_schema


@cache
def _routes() -> tuple[Sequence[BaseRoute], Sequence[str]]:
    """Returns the routes of `ROUTERS` and their addresses, worked out once in a process: they hold nothing of a
    farm.
    """
    described = FastAPI(openapi_url=None, **EVERY_ADDRESS)
    for router in ROUTERS:
        described.include_router(router)
    return described.routes, addresses(described)


def _confirm_key(farm: Farm) -> None:
    """Checks that the signing key is the farm's. A database that is behind or away is left to `/readyz`."""
    try:
        with farm.database.transaction() as session:
            signing_keys.confirm(session, farm.signer, farm.settings.signing_key_path)
    except (OperationalError, ProgrammingError) as error:
        LOG.warning("the signing key could not be compared with the database: %s", error)


def _alive_path(settings: Settings) -> Path | None:
    return Path(settings.alive_file) if settings.alive_file else None


def create_app(settings: Settings | None = None, *, queue: Queue | None = None) -> FastAPI:
    """Returns the farm's web application. `queue` replaces the broker (tests)."""
    chosen = settings or Settings()
    find_temporary_folder()
    farm = open_farm(chosen, queue)
    metrics = Metrics(farm)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        await run_in_threadpool(_confirm_key, farm)
        sweeper = Sweeper(farm, [step for feature in FEATURES for step in feature.sweeps])
        services = [create(farm) for feature in FEATURES for create in feature.services]
        for service in (sweeper, *services):
            service.start()
        tasks = [
            asyncio.create_task(Pulse(_alive_path(chosen), sweeper.is_well).run()),
            asyncio.create_task(farm.part(Dispatcher).run()),
        ]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for service in (*services, sweeper):
            service.stop()
        farm.close()

    app = Application(title="PockFarm", version="1", lifespan=lifespan, docs_url=None, redoc_url=None, **EVERY_ADDRESS)
    app.state.farm = farm
    app.state.metrics = metrics
    app.state.readiness = Readiness(farm_checks(farm), keep_s=chosen.ready_s)
    app.add_middleware(CompressPages)
    app.add_middleware(RecordRequests, database=farm.database)
    app.add_middleware(RefuseNul)
    app.add_middleware(BodyLimits, settings=chosen)
    app.add_middleware(LogRequests)
    app.add_middleware(CountRequests, requests=metrics.requests)
    problems.install(app)
    problem_pages.install(app)
    routes, addresses_of_routes = _routes()
    farm.part(Permissions).refuse_gaps([*addresses(app), *addresses_of_routes])
    app.router.routes.extend(routes)
    return app


def addresses(app: FastAPI) -> list[str]:
    """Returns `METHOD /path` of every route that the application serves; HEAD goes with GET."""
    routes = iter_route_contexts(app.routes)
    return [f"{method} {route.path}" for route in routes for method in route.methods or () if method != "HEAD"]


def served() -> FastAPI:
    """Returns the application as uvicorn serves it: logs set up, and no start on a database of another schema."""
    settings = Settings()
    set_up_logs(settings, "api")
    refuse_other_schema(settings.database, "the farm")
    app = create_app(settings)
    _collect_seldom()
    return app


def _collect_seldom() -> None:
    """Freezes the objects of the start and collects garbage seldom: looking through them again and again costs requests
    dearly.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
