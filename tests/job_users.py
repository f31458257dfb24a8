"""User numbers for the jobs of tests: those of no other process, so that tests beside each other do not share any."""

from __future__ import annotations

import os

from device_agents.job.users import JobUsers

FIRST, MOST = 1_910_000_000, 4
"""Above those of agents; a process has so many."""


def job_users(count: int) -> JobUsers:
    """Numbers of this process."""
    assert count <= MOST
    first = FIRST + MOST * os.getpid()
    return JobUsers(first, first + count - 1)
