"""Logs of the service's processes: set up once, and one line for each request (`device_agents/wire/log_lines.py`)."""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from device_agents.wire import log_lines
from service.base.settings import Settings

LOG = logging.getLogger(__name__)
REQUEST_ID = "X-Request-Id"
_GIVEN = re.compile(r"[A-Za-z0-9._-]{8,60}")
SECRET_VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "POCKFARM_ENROL_TOKEN", "POCKFARM_BACKUP_PASSPHRASE")
ROUTINE = ("/agent/", "/healthz", "/readyz", "/metrics")
"""Paths that machines ask for all the time: told at level debug, unless they fail."""


def set_up_logs(settings: Settings, part: str) -> None:
    """Sends this process's log to the standard error, as the settings say. Raises: ValueError."""
    for url in (settings.database, settings.broker, settings.s3_endpoint_url):
        log_lines.hide(urlsplit(url).password)
    for name in SECRET_VARIABLES:
        log_lines.hide(os.environ.get(name))
    log_lines.configure(part, level=settings.log_level, form=settings.log_format)
    logging.captureWarnings(True)
    for name in ("botocore", "boto3", "urllib3", "s3transfer", "kombu", "amqp", "asyncio", "httpx", "multipart"):
        logging.getLogger(name).setLevel(max(logging.INFO, log_lines.LEVELS[settings.log_level.lower()]))


class LogRequests:
    """ASGI middleware: names the request in every line that is about it, and in its answer, and tells how it ended."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, started, status = _id_of(scope), time.monotonic(), 500

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = request
            await send(message)

        with log_lines.bind(request=request):
            try:
                await self._app(scope, receive, named)
            finally:
                _tell(scope, status, time.monotonic() - started)


def _id_of(scope: Scope) -> str:
    """Returns the caller's id for the request if it is a plain one, else a new one."""
    given = dict(scope["headers"]).get(REQUEST_ID.lower().encode(), b"").decode("latin-1")
    return given if _GIVEN.fullmatch(given) else f"req-{secrets.token_hex(6)}"


def _tell(scope: Scope, status: int, seconds: float) -> None:
    route = getattr(scope.get("route"), "path", "none")
    is_routine = route.startswith(ROUTINE) and status < 500
    fields = {"method": scope["method"][:20], "route": route, "status": status, "ms": round(1000 * seconds, 1)}
    LOG.log(logging.DEBUG if is_routine else logging.INFO, "request", extra={"fields": fields})
