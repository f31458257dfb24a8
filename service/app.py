"""The web application: every router in one list, problems, limits, metrics, sweeper."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI

from service import problems
from service.bundles import endpoints as bundles
from service.dashboard import problem_pages
from service.dashboard import routes as dashboard
from service.farm import open_farm
from service.jobs import endpoints as jobs
from service.keys import endpoints as keys
from service.queue import Queue
from service.schemas import PROBLEMS
from service.settings import Settings

ROUTERS: tuple[APIRouter, ...] = (jobs.router, bundles.router, keys.router, dashboard.router)


def create_app(settings: Settings | None = None, *, queue: Queue | None = None) -> FastAPI:
    """The farm's web application. `queue` replaces the broker (tests)."""
    farm = open_farm(settings or Settings(), queue)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        farm.close()

    app = FastAPI(title="PockFarm", version="1", lifespan=lifespan, responses=PROBLEMS)
    app.state.farm = farm
    problems.install(app)
    problem_pages.install(app)
    for router in ROUTERS:
        app.include_router(router)
    return app
