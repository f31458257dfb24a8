"""Every call of the API, one by one. What is done with them is above: `submitting`, `jobs`, `client`."""

from __future__ import annotations

from pockfarm.client.asynchronous.fleet import AsyncFleet
from pockfarm.client.asynchronous.keeping import AsyncKeeping
from pockfarm.client.asynchronous.lists import AsyncLists
from pockfarm.client.asynchronous.record import AsyncRecord
from pockfarm.client.asynchronous.reports import AsyncReports
from pockfarm.client.asynchronous.running import AsyncRunning
from pockfarm.client.asynchronous.tenants import AsyncTenants


class AsyncApi(AsyncRunning, AsyncFleet, AsyncKeeping, AsyncLists, AsyncTenants, AsyncRecord, AsyncReports):
    """The farm's answers, as frozen values and mappings."""
