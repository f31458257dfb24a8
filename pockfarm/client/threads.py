"""Work that takes its time and asks a farm for things meanwhile: on a thread beside an event loop, or just here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from pockfarm.client.asynchronous.transport import AsyncTransport
    from pockfarm.client.synchronous.api import Api
    from pockfarm.client.synchronous.transport import Transport

Result = TypeVar("Result")


async def run_in_thread(client: AsyncTransport, work: Callable[[Api], Result]) -> Result:
    """Runs `work` with a plain client of the same farm, on a thread, and returns its result."""
    from pockfarm.client.synchronous.api import Api

    def call() -> Result:
        with Api(client.url, client._key) as plain:
            return work(plain)

    return await asyncio.to_thread(call)


def run_here(client: Transport, work: Callable[[Api], Result]) -> Result:
    """Runs `work` with this client, and returns its result."""
    return work(cast("Api", client))
