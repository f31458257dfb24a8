"""`/healthz` (alive), `/readyz` (every part answers) and `/metrics` (Prometheus)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access import FarmDep, PrincipalDep
from service.database.models import DEVICE_STATES, JOB_STATES, OPEN_JOB_STATES, RUN_STATES, Device, Job, Outbox, Run
from service.database.schema import check_schema
from service.disk import DiskFull, check_room
from service.farm import Farm

LOG = logging.getLogger(__name__)
router = APIRouter(tags=["health"])
OPEN_PATHS = ("/healthz", "/readyz")


@router.get("/healthz")
def healthz() -> dict[str, str]:
    """The process is alive."""
    return {"status": "ok"}


@router.get("/readyz", responses={503: {"description": "Some part does not answer"}})
def readyz(farm: FarmDep) -> Response:
    """Every part that a request may need answers: database (and its schema), storage, broker, room on the disk."""
    checks: dict[str, Callable[[], None]] = {
        "database": lambda: check_schema(farm.database),
        "storage": farm.storage.check,
        "broker": farm.queue.check,
        "disk": lambda: check_room(farm.settings),
    }
    parts = {name: _state_of(name, check) for name, check in checks.items()}
    is_ready = all(state == "ok" for state in parts.values())
    body = {"status": "ok" if is_ready else "not ready", "parts": parts}
    return JSONResponse(body, 200 if is_ready else 503, headers={"Cache-Control": "no-store"})


def _state_of(name: str, check: Callable[[], None]) -> str:
    try:
        check()
    except DiskFull as error:
        LOG.warning("not ready: %s", error)
        return "full"
    except Exception as error:  # whatever a driver raises: this is the place that reports it
        LOG.warning("%s is not ready: %s", name, error)
        return "down"
    return "ok"


class Metrics:
    """Request counts and times of this process, and what the database holds, for one application."""

    def __init__(self, farm: Farm) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("pockfarm_requests", "Requests answered", ["method", "route", "status"],
                                registry=self.registry)  # fmt: skip
        self.seconds = Histogram("pockfarm_request_seconds", "Time to answer, long polls included", ["route"],
                                 registry=self.registry)  # fmt: skip
        self.registry.register(FarmCollector(farm))

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)


class FarmCollector(Collector):
    """Jobs, runs and devices by state, counted when asked."""

    def __init__(self, farm: Farm) -> None:
        self._farm = farm

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not touch the database."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The gauges."""
        tables = (("jobs", Job, JOB_STATES), ("runs", Run, RUN_STATES), ("devices", Device, DEVICE_STATES))
        with self._farm.database.read() as session:
            for name, table, states in tables:
                gauge = GaugeMetricFamily(f"pockfarm_{name}", f"{name.capitalize()} by state", labels=["state"])
                query = select(table.state, func.count()).group_by(table.state)
                counts: dict[str, int] = {state: count for state, count in session.execute(query)}  # noqa: C416
                for state in states:
                    gauge.add_metric([state], counts.get(state, 0))
                yield gauge
            oldest = session.scalar(select(func.min(Job.created_at)).where(Job.state.in_(OPEN_JOB_STATES)))
            unsent = session.scalar(select(func.count()).select_from(Outbox)) or 0
        age_s = time.time() - oldest if oldest is not None else 0.0
        yield GaugeMetricFamily("pockfarm_oldest_open_job_seconds", "Age of the oldest open job", value=age_s)
        yield GaugeMetricFamily("pockfarm_outbox", "Doorbells not rung yet", value=unsent)


class CountRequests:
    """ASGI middleware: counts and times requests by route template, so that ids do not become labels."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            self._metrics.requests.labels(scope["method"], route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(time.monotonic() - started)


def metrics_router(metrics: Metrics) -> APIRouter:
    """`GET /metrics` for one application's figures; it needs a key like everything else."""
    found = APIRouter(tags=["health"])

    @found.get("/metrics", response_class=Response)
    def show_metrics(_: PrincipalDep) -> Response:
        """Figures in the Prometheus text format."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return found
