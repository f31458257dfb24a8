"""Methods that parts of a client call of each other, for both kinds: an `AsyncClient` awaits them, a `Client` gets
their results at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Optional, Union

import httpx

from pockfarm.values import Json

Filters = Mapping[str, Union[str, int, None]]

AsyncAsk = Callable[[], Awaitable[httpx.Response]]
Ask = Callable[[], httpx.Response]
"""Sends one request."""

AsyncGet = Callable[[str, Filters], Awaitable[Json]]
Get = Callable[[str, Filters], Json]
"""Gets a JSON object of the farm's."""

AsyncLook = Callable[[Optional[Mapping[str, float]], Optional[str]], Awaitable[httpx.Response]]
Look = Callable[[Optional[Mapping[str, float]], Optional[str]], httpx.Response]
"""Sends a query; the second is what the farm's answer was called (its ETag) that is known already."""
