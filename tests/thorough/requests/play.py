"""One campaign of requests, from the first process to the findings."""

from __future__ import annotations

import contextlib

from tests.thorough.requests.callers import settle
from tests.thorough.requests.campaign import Campaign, Findings
from tests.workers.live import live_farm

MANY = "1000000"


def play(cases: int, seed: int, database_url: str | None = None) -> Findings:
    """Start a farm whose quotas do not stand in the way, and send `cases` requests to its API."""
    with live_farm(database_url, OPEN_JOBS_PER_KEY=MANY, OPEN_RUNS_PER_KEY=MANY, COMPILE_LEASE_S="120") as farm:
        callers, names, turns = settle(farm)
        pid = farm.processes["api"].pid
        with contextlib.closing(turns.board.http):
            return Campaign(str(farm.http.base_url), pid, callers, names, cases, seed, turns).run()
