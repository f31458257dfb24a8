"""Large files go to the farm in pieces: what a cut connection has brought is not sent again.

A file is looked for by its digest first, so one that this key has sent before is not sent at all. The same file sent
again later, by another process, goes on where the first one stopped.

Time-outs: as `pockfarm.client`; while a connection fails the farm is asked again and again, with pauses that grow to
30 s; after `FRUITLESS` attempts without one byte more it is given up, and the next call goes on from there.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass
from typing import BinaryIO

import httpx

from pockfarm.client.answers import BUSY, checked, json_of
from pockfarm.errors import NotFound, PockfarmError, Refused, Unreachable
from pockfarm.values import Json, number, text

LOG = logging.getLogger("pockfarm.uploads")
LARGE_BYTES = 8 << 20
"""A file from this size on goes in pieces of its own; a smaller one goes along in the request that needs it."""
PIECE_BYTES = 32 << 20
"""Bytes of one request; the farm can refuse the upload between two of them."""
CHUNK_BYTES = 1 << 20
FRUITLESS = 10
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
TIMEOUT = httpx.Timeout(60.0, connect=10.0)
FINISH_TIMEOUT = httpx.Timeout(900.0, connect=10.0)
"""The farm reads the whole file before it answers."""
MEBIBYTE = 1 << 20


def digest_of(stream: BinaryIO) -> str:
    """`sha256:<hex>` of a file from its beginning."""
    digest = hashlib.sha256()
    for chunk in _chunks(stream, 0, None):
        digest.update(chunk)
    return "sha256:" + digest.hexdigest()


def size_of(stream: BinaryIO) -> int:
    """Bytes of the whole file."""
    return stream.seek(0, os.SEEK_END)


def _chunks(stream: BinaryIO, start: int, end: int | None) -> Generator[bytes, None, None]:
    stream.seek(start)
    remaining = None if end is None else end - start
    while chunk := stream.read(CHUNK_BYTES if remaining is None else min(remaining, CHUNK_BYTES)):
        remaining = None if remaining is None else remaining - len(chunk)
        yield chunk


async def _async_chunks(stream: BinaryIO, start: int, end: int) -> AsyncIterator[bytes]:
    for chunk in _chunks(stream, start, end):
        yield chunk


@dataclass
class AsyncSending:
    """A file that is being sent. `http` is the farm's client, with its key; `name` is what people call the file."""

    http: httpx.AsyncClient
    stream: BinaryIO
    kind: str
    name: str
    digest: str = ""
    size_bytes: int = 0
    fruitless: int = 0

    async def send(self) -> str:
        """The file's digest, by which the farm has it then.

        Raises: Unreachable after many attempts without progress; Refused, and its kinds.
        """
        self.digest, self.size_bytes = self.digest or digest_of(self.stream), size_of(self.stream)
        if await is_there(self.http, self.digest):
            return self.digest
        while True:
            upload = await self._begin()
            try:
                return await self._send_from(upload)
            except NotFound as problem:  # the farm has forgotten it meanwhile
                await self._pause(problem, 0)

    async def _begin(self) -> Json:
        body = {"kind": self.kind, "size_bytes": self.size_bytes, "digest": self.digest}
        while True:
            answer = await self._try("POST", "/uploads", json=body)
            if answer is not None:
                return json_of(answer)

    async def _send_from(self, upload: Json) -> str:
        path, at = f"/uploads/{text(upload, 'id')}", int(number(upload, "received_bytes"))
        if at:
            LOG.warning("%s: %s are there already; going on from there", self.name, _amount(at, self.size_bytes))
        while at < self.size_bytes:
            at = await self._send_piece(path, at)
        while True:
            answer = await self._try("PUT", path, params={"digest": self.digest}, timeout=FINISH_TIMEOUT)
            if answer is not None:
                return self.digest

    async def _send_piece(self, path: str, at: int) -> int:
        """How far the file has come with one more piece, or with what came of it."""
        end = min(at + PIECE_BYTES, self.size_bytes)
        headers = {"Content-Range": f"bytes {at}-{end - 1}/{self.size_bytes}", "Content-Length": str(end - at)}
        answer = await self._try("PATCH", path, content=_async_chunks(self.stream, at, end), headers=headers, at=at)
        if answer is not None:
            return end
        reached = await self._offset(path)
        if reached > at:
            self.fruitless = 0
        return reached

    async def _offset(self, path: str) -> int:
        while True:
            answer = await self._try("HEAD", path)
            if answer is not None:
                return int(answer.headers["Upload-Offset"])

    async def _try(self, method: str, path: str, *, at: int | None = None, **request: object) -> httpx.Response | None:
        """The answer; None when there was none, or one that says to ask for the offset, after a pause.

        Raises: as `checked`, for any other refusal.
        """
        request.setdefault("timeout", TIMEOUT)
        try:
            answer = await self.http.request(method, path, **request)  # type: ignore[arg-type]
        except httpx.HTTPError as problem:
            await self._pause(problem, at)
            return None
        if answer.status_code in BUSY or _is_elsewhere(answer):
            await self._pause(PockfarmError(_refusal(answer)), at)
            return None
        self.fruitless = 0
        return checked(answer)

    async def _pause(self, problem: Exception, at: int | None) -> None:
        self.fruitless += 1
        if self.fruitless >= FRUITLESS:
            raise Unreachable(
                f"{FRUITLESS} attempts without progress: {problem}",
                where=self.name,
                hint="the same command goes on where it stopped",
            )
        pause_s = min(FIRST_PAUSE_S * 2 ** (self.fruitless - 1), LONGEST_PAUSE_S)
        where = "" if at is None else f" after {_amount(at, self.size_bytes)}"
        LOG.warning("%s: cut off%s (%s); trying again in %.1f s", self.name, where, problem, pause_s)
        await asyncio.sleep(pause_s)


async def is_there(http: httpx.AsyncClient, digest: str) -> bool:
    """Whether the farm has a file that this key has sent. A farm that does not answer does not say so."""
    try:
        return (await http.head(f"/files/{digest}", timeout=TIMEOUT)).is_success
    except httpx.HTTPError:
        return False


def _is_elsewhere(answer: httpx.Response) -> bool:
    """Another request goes on with the upload, or this one was believed lost and was not: the offset says more."""
    if answer.status_code == 416:
        return True
    return answer.status_code == 409 and _code(answer) == "upload.elsewhere"


def _code(answer: httpx.Response) -> str:
    try:
        return text(answer.json(), "code")
    except ValueError:
        return ""


def _refusal(answer: httpx.Response) -> str:
    try:
        checked(answer)
    except Refused as problem:
        return str(problem)
    return f"{answer.status_code}"


def _amount(at: int, size_bytes: int) -> str:
    return f"{at / MEBIBYTE:,.0f} of {size_bytes / MEBIBYTE:,.0f} MiB"
