"""The metrics that one process counts itself (requests), and the exposition of these and of the farm's figures.

Requests are counted by each process; several uvicorn workers behind one address are added up when
`PROMETHEUS_MULTIPROC_DIR` names a folder (prometheus_client's own way). What the database says is the same whichever
process is asked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.operations.health.figures import FarmCollector
from service.store.farm import Farm

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


class Requests:
    """Requests answered by this process, and the time to answer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.count = Counter("pockfarm_requests", "Requests answered", ["method", "route", "status"], registry=registry)
        self.seconds = Histogram(
            "pockfarm_request_seconds", "Time to answer, long polls included", ["route"], registry=registry
        )

    def note(self, scope: Mapping[str, Any], status: int, seconds: float) -> None:
        """Counts a request. Labels are route templates, known methods and our own statuses: a client cannot make new
        ones.
        """
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.count.labels(method, route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)


class Metrics:
    """The figures of one application."""

    def __init__(self, farm: Farm) -> None:
        self.registry = CollectorRegistry()
        self.requests = Requests(self.registry)
        self._farm = FarmCollector(farm)

    def text(self) -> bytes:
        """Returns the metrics in the exposition format."""
        registry = self.registry
        if os.environ.get(MULTIPROCESS):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        farm = CollectorRegistry()
        farm.register(self._farm)
        return generate_latest(registry) + generate_latest(farm)


class CountRequests:
    """ASGI middleware: counts and times requests."""

    def __init__(self, app: ASGIApp, requests: Requests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        noted: MutableMapping[str, int] = {"status": 500}

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                noted["status"] = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            self._requests.note(scope, noted["status"], time.monotonic() - started)
