"""An HTTP client of an application in the test's own process.

Starlette's client calls from thread to thread for each step of a request, which costs more than most requests do.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI
from starlette.testclient import TestClient


class InProcess(httpx.BaseTransport):
    """Carries a request to the application's event loop, and its whole answer back."""

    def __init__(self, app: FastAPI, *, raise_exceptions: bool) -> None:
        self.portal: BlockingPortal | None = None
        """Of the loop in which the application lives; without it, each request has a loop of its own."""
        self._application = httpx.ASGITransport(
            app, raise_app_exceptions=raise_exceptions, client=("testclient", 50000)
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()

        async def answer() -> httpx.Response:
            response = await self._application.handle_async_request(request)
            assert isinstance(response.stream, httpx.AsyncByteStream)
            body = b"".join([part async for part in response.stream])
            return httpx.Response(response.status_code, headers=response.headers, stream=httpx.ByteStream(body))

        if self.portal is not None:
            return self.portal.call(answer)
        with start_blocking_portal() as portal:  # a thread of its own: Playwright's loop runs in this one
            return portal.call(answer)


class Client(httpx.Client):
    """As a context manager it starts the application and stops it. Else `app` runs already, or need not run.

    `beside` is another client of the application, in whose event loop these requests are answered.
    """

    def __init__(
        self,
        app: FastAPI,
        *,
        headers: Mapping[str, str] | None = None,
        raise_exceptions: bool = True,
        beside: Client | None = None,
    ) -> None:
        self.app = app
        self._in_process = InProcess(app, raise_exceptions=raise_exceptions)
        if beside is not None:
            self._in_process.portal = beside.portal
        super().__init__(
            transport=self._in_process,
            base_url="http://testserver",
            headers=headers,
            follow_redirects=True,
        )

    @property
    def portal(self) -> BlockingPortal:
        """Calls what must be called in the event loop of an application that this client or another one started."""
        assert self._in_process.portal is not None, "nothing has started the application"
        return self._in_process.portal

    def __enter__(self) -> Self:
        self._running = TestClient(self.app)
        self._running.__enter__()
        self._in_process.portal = self._running.portal
        return super().__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._in_process.portal = None
        self._running.__exit__(exc_type, exc_value, traceback)
        super().__exit__(exc_type, exc_value, traceback)
