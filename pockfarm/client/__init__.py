"""The farm from Python, over HTTP: `pockfarm.Client`."""

from __future__ import annotations

from device_agents.wire import RunSettings
from pockfarm.client.synchronous.client import Client

__all__ = ["Client", "RunSettings"]
