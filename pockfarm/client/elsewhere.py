"""Work that takes its time and asks a farm for things meanwhile: on a thread beside an event loop, or just here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from pockfarm.client.asynchronous.transport import AsyncTransport
    from pockfarm.client.synchronous.client import Client
    from pockfarm.client.synchronous.transport import Transport

Made = TypeVar("Made")


async def async_elsewhere(client: AsyncTransport, work: Callable[[Client], Made]) -> Made:
    """Runs `work` with a plain client of the same farm, on a thread, and returns its result."""
    from pockfarm.client.synchronous.client import Client

    def with_its_own() -> Made:
        with Client(client.url, client._key) as plain:
            return work(plain)

    return await asyncio.to_thread(with_its_own)


def elsewhere(client: Transport, work: Callable[[Client], Made]) -> Made:
    """Runs `work` with this client, and returns its result."""
    return work(cast("Client", client))
