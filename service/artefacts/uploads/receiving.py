"""Takes the body of a piece as it arrives: a few megabytes at a time go to disk and into the row.

So a connection may be cut anywhere, and a process may die: what was confirmed stays, and the sender goes on from there.
Memory is bounded whatever the size of the file and however many send: a request holds `HELD_BYTES`, and when all of a
process hold `TOTAL_BYTES`, each writes what it has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from service.artefacts.uploads import service
from service.artefacts.uploads.ranges import HEADER, Span
from service.base.problems import Invalid, TooSlow
from service.store.farm import Farm

HELD_BYTES = 4 << 20
TOTAL_BYTES = 16 << 20
DRAINED_BYTES = 64 << 20
"""Bytes of a refused body that are still read, so that its sender hears the reason and not of a broken connection."""


class BufferedBytes:
    """Bytes that the requests of one process hold."""

    def __init__(self) -> None:
        self.total_bytes = 0

    def is_enough(self, buffer: bytearray) -> bool:
        """Whether a request that holds these should write them."""
        return len(buffer) >= HELD_BYTES or self.total_bytes >= TOTAL_BYTES

    def add(self, count: int) -> None:
        """Adds to the number of bytes held; `count` is negative once bytes are written."""
        self.total_bytes += count


ALL_HELD = BufferedBytes()


async def receive(body: AsyncIterator[bytes], farm: Farm, upload_id: str, span: Span) -> int:
    """Stores a piece of an upload and returns how far the upload has come. Bytes that arrived before the connection was
    cut, or stalled, stay stored.

    Raises: TooSlow, Invalid for more or fewer bytes than the span, OSError when the disk is full but for its reserve,
    Forbidden when the organisation's room is, Conflict when another request goes on with the upload.
    """
    buffer = bytearray()
    at, is_cut, stalled = span.start, False, None
    try:
        try:
            async for chunk in body:
                buffer += chunk
                ALL_HELD.add(len(chunk))
                if at + len(buffer) > span.end:
                    raise Invalid("upload.range", "the body has more bytes than it says", where=HEADER)
                if ALL_HELD.is_enough(buffer):
                    at = await _keep(farm, upload_id, at, buffer)
        except ClientDisconnect:
            is_cut = True
        except TooSlow as problem:
            stalled = problem
        if buffer:
            at = await _keep(farm, upload_id, at, buffer)
        if stalled is not None:
            raise stalled
    except Exception:
        await _drain(body)
        raise
    finally:
        ALL_HELD.add(-len(buffer))
    if at < span.end and not is_cut:
        raise Invalid(
            "upload.range",
            f"the body ends at byte {at}, its range at {span.end}",
            where=HEADER,
            hint="what came is kept: go on from there",
        )
    return at


async def _keep(farm: Farm, upload_id: str, at: int, buffer: bytearray) -> int:
    def write() -> None:
        farm.storage.append(upload_id, buffer, at_bytes=at, reserve_bytes=farm.settings.disk_reserve_bytes)
        service.advance(farm, upload_id, at, at + len(buffer))

    await run_in_threadpool(write)
    end = at + len(buffer)
    ALL_HELD.add(-len(buffer))
    buffer.clear()
    return end


async def _drain(body: AsyncIterator[bytes]) -> None:
    left_bytes = DRAINED_BYTES
    try:
        async for chunk in body:
            left_bytes -= len(chunk)
            if left_bytes < 0:
                return
    except (ClientDisconnect, RuntimeError):  # the latter: the body has come to its end
        return
