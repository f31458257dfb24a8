# Made from pockfarm/client/asynchronous/api.py by scripts/synchronous.py: change that one, then `make golden`.
"""Every call of the API, one by one. What is done with them is above: `submitting`, `jobs`, `client`."""

from __future__ import annotations

from pockfarm.client.synchronous.fleet import Fleet
from pockfarm.client.synchronous.keeping import Keeping
from pockfarm.client.synchronous.lists import Lists
from pockfarm.client.synchronous.record import Record
from pockfarm.client.synchronous.reports import Reports
from pockfarm.client.synchronous.running import Running
from pockfarm.client.synchronous.tenants import Tenants


class Api(Running, Fleet, Keeping, Lists, Tenants, Record, Reports):
    """The farm's answers, as frozen values and mappings."""
