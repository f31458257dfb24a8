"""The connection to a farm, and what every call of the client goes through."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Optional, TypeVar, Union

import httpx

from pockfarm.client.answers import json_of
from pockfarm.client.asynchronous.asking import answered
from pockfarm.client.asynchronous.looks import Seen, looks
from pockfarm.client.credentials import address_and_key
from pockfarm.errors import Failed, Unreachable, UsageError
from pockfarm.own_farm.state import StateFolder
from pockfarm.values import Ending, Job, Json, Run

Watched = TypeVar("Watched", Job, Run)
TIMEOUT = httpx.Timeout(60.0, connect=10.0)
UPLOAD_TIMEOUT = httpx.Timeout(600.0, connect=10.0)
"""Timeout of an upload of a model's data files: the farm answers when it has all of them on disk."""
FilePart = tuple[str, tuple[Optional[str], Union[str, bytes, BinaryIO]]]
CHUNK_BYTES = 1 << 20
Self = TypeVar("Self", bound="AsyncTransport")


class AsyncTransport:
    """A farm's address, one user's key, and the connections between."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        profile: str | None = None,
        state: StateFolder | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Connects to the farm at `url`; of a `profile` (`pockfarm init`); of a `state` folder of this machine; or to
        the one that is found: see `pockfarm.client.credentials`. Raises: UsageError when there is none.
        """
        self.url, self._key = address_and_key(url, api_key, state, profile)
        headers = {
            "Authorization": f"Bearer {self._key}",
            "User-Agent": "pockfarm-client",
            "Accept": "application/json",
        }
        # A farm on this machine must not be asked for through a proxy.
        is_local = self.url.startswith(("http://127.", "http://localhost", "http://[::1]"))
        self._http = httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=TIMEOUT, transport=transport, trust_env=not is_local
        )

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def look(self, path: str) -> httpx.Response:
        """Returns the farm's answer to one request, whatever its status. Raises: Unreachable."""
        try:
            return await self._http.get(path)
        except httpx.HTTPError as problem:
            raise Unreachable(f"no answer from the farm at {self.url}: {problem}") from None

    async def _get(self, path: str, query: Mapping[str, str | int | None] | None = None) -> Json:
        parameters = {name: value for name, value in (query or {}).items() if value is not None}
        return json_of(await self._send("GET", path, query=parameters))

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int | float] | None = None,
        json_body: object = None,
        data: Mapping[str, str] | None = None,
        files: Sequence[FilePart] | None = None,
        timeout: httpx.Timeout = TIMEOUT,
        etag: str | None = None,
    ) -> httpx.Response:
        if path.endswith("/"):
            raise UsageError(
                "the id or digest after it is empty", where=path, hint="the farm's lists have those that there are"
            )
        headers = {"Idempotency-Key": uuid.uuid4().hex} if method == "POST" else {}
        if etag is not None:
            headers["If-None-Match"] = etag
        return await answered(
            self.url,
            lambda: self._http.request(
                method, path, params=query, json=json_body, data=data, files=files, headers=headers, timeout=timeout
            ),
        )

    async def _save(self, path: str, to: Path) -> None:
        """A file of the farm, a chunk at a time; nothing is there until all of it is."""
        part = to.with_name(f"{to.name}.part")

        async def fetched() -> httpx.Response:
            async with self._http.stream("GET", path) as answer:
                if not answer.is_success:
                    await answer.aread()
                    return answer
                with part.open("wb") as file:
                    async for chunk in answer.aiter_bytes(CHUNK_BYTES):
                        file.write(chunk)
            return answer

        try:
            await answered(self.url, fetched)
            part.replace(to)
        except OSError as problem:
            raise UsageError(problem.strerror, where=to) from None
        finally:
            part.unlink(missing_ok=True)

    async def _watch(
        self, path: str, read: Callable[[Json], Watched], on_look: Callable[[Watched], None] | None, timeout_s: float
    ) -> Watched:
        """Follow a job or run to its end; `on_look` is told what is seen, every few seconds at least."""
        deadline = time.monotonic() + timeout_s
        async for now in self._looks(path, read):
            if on_look is not None:
                on_look(now)
            if not now.is_open:
                return now
            if time.monotonic() > deadline:
                raise Failed(f"{path} has not ended after {timeout_s:.0f} s", state="running")
        raise AssertionError("looks have no end")

    def _looks(self, path: str, read: Callable[[Json], Seen]) -> AsyncIterator[Seen]:
        return looks(lambda query, etag: self._send("GET", path, query=query, etag=etag), read)


def failure(what: str, state: str, ending: Ending | None) -> Failed:
    if ending is None:
        return Failed(f"{what} ended as {state}", state=state)
    message = f"{what} {state}: {ending.place}{ending.message}"
    return Failed(message, state=state, cause=ending.cause, hint=ending.hint, code=ending.code)
