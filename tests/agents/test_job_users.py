"""Users of jobs where an agent's locks cannot be seen: in a container, say, of which the machine sees the processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from device_agents.job.users import borrowed, processes
from tests.job_users import job_users

USERS = job_users(2)
SLEEPER = ["sleep", "600"]
AGENT = """
import subprocess, sys
subprocess.Popen(["sleep", "600"], user=int(sys.argv[1]), group=int(sys.argv[1]), stdin=subprocess.DEVNULL)
print("started", flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@contextmanager
def another_agent(uid: int) -> Iterator[subprocess.Popen[str]]:
    """A process, root's, that has started one of a user and lives. Both are gone in the end."""
    command = [sys.executable, "-c", AGENT, str(uid)]
    agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "started\n"
        yield agent
    finally:
        for pid in processes(uid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        agent.communicate()


def python(code: str) -> list[str]:
    """Runs code beside the agent above: neither is the other's parent."""
    users = f"users = JobUsers({USERS.first}, {USERS.last})"
    return [sys.executable, "-c", f"from device_agents.job.users import JobUsers, borrowed\n{users}\n{code}"]


def test_a_number_that_another_agents_job_has_is_left_to_it() -> None:
    with another_agent(USERS.first):
        (job,) = processes(USERS.first)
        command = python("with borrowed(users) as uid: print(uid)")
        assert subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout == f"{USERS.last}\n"
        assert processes(USERS.first) == [job]


def test_a_job_that_another_agent_starts_meanwhile_survives_the_end() -> None:
    command = python("with borrowed(users) as uid: print(uid, flush=True), input()")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as borrower:
        assert borrower.stdout is not None
        assert borrower.stdout.readline() == f"{USERS.first}\n"
        with another_agent(USERS.first):
            (job,) = processes(USERS.first)
            borrower.communicate("\n")
            assert borrower.returncode == 0
            assert processes(USERS.first) == [job]


def test_what_a_dead_agent_left_is_killed() -> None:
    with another_agent(USERS.first) as agent:
        agent.kill()
        agent.wait()
        assert len(processes(USERS.first)) == 1
        with borrowed(USERS) as uid:
            assert uid == USERS.first
            assert processes(USERS.first) == []


def test_what_a_job_left_is_killed_in_the_end() -> None:
    with borrowed(USERS) as uid:
        child = subprocess.Popen(SLEEPER, user=uid, group=uid)
    assert child.wait() == -signal.SIGKILL
