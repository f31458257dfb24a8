"""The farm from Python, over HTTP: `pockfarm.Client`, and `pockfarm.AsyncClient` for event loops.

Time-outs: 10 s to connect, 60 s between bytes (600 s after a model's data files). Attempts: three, a second apart, when
the farm is busy or silent; writing requests carry the same `Idempotency-Key` each time. Files from 8 MiB on go in
pieces, and on from where a connection was cut (`uploads`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from device_agents.wire import RunSettings

if TYPE_CHECKING:
    from pockfarm.client.asynchronous.client import AsyncClient
    from pockfarm.client.synchronous.client import Client

__all__ = ["AsyncClient", "Client", "RunSettings"]


def __getattr__(name: str) -> Any:
    """The clients, when they are asked for: HTTP takes a third of the time that a command needs to start."""
    if name == "AsyncClient":
        from pockfarm.client.asynchronous.client import AsyncClient

        return AsyncClient
    if name == "Client":
        from pockfarm.client.synchronous.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
