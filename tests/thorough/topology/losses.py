"""The loss of each part: when it is in the middle of something, how it goes, and how it comes back."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import select

from service.store.database.models import Job
from tests.thorough.topology.farm import Deployed
from tests.thorough.topology.work import Work
from tests.waiting import HANG_S


@dataclass(frozen=True)
class Loss:
    """One part that is lost. `is_due` looks whether it has something in flight; `go` gives the processes to start."""

    is_due: Callable[[Work], bool]
    go: Callable[[Deployed, Work], tuple[str, ...]]
    come_back: Callable[[Deployed], None] = lambda _: None
    """What a part of this kind needs once it is up again."""


def all_in_flight(work: Work) -> bool:
    """Both trainings make steps, and the compile is under way."""
    return work.is_training() and work.is_compiling()


def killed(*processes: str) -> Callable[[Deployed, Work], tuple[str, ...]]:
    """kill -9 of whole containers."""

    def go(farm: Deployed, _: Work) -> tuple[str, ...]:
        for process in processes:
            farm.kill(process)
        return processes

    return go


def restarted(*processes: str) -> Callable[[Deployed, Work], tuple[str, ...]]:
    """Asked to end, as by `docker compose restart`."""

    def go(farm: Deployed, _: Work) -> tuple[str, ...]:
        farm.stop(*processes)
        return processes

    return go


def compiling_worker(farm: Deployed, work: Work) -> tuple[str, ...]:
    """The worker that compiles, by the job's row."""
    with work.rows.read() as session:
        owner = session.scalar(select(Job.worker).where(Job.id == work.jobs[0])) or ""
    [process] = [name for name in farm.running if name.startswith("worker") and f".{farm.watched_pid(name)}." in owner]
    return killed(process)(farm, work)


def training_agent(farm: Deployed, work: Work) -> tuple[str, ...]:
    """The agent of the first training: its own process only, so that what it started has to end by itself.

    The container ends with it.
    """
    device = work.device_of(work.runs[0])
    [process] = [name for name in farm.running if name.startswith("agent") and identity(farm, name) == device]
    os.kill(farm.watched_pid(process), signal.SIGKILL)
    farm.running.pop(process).wait(HANG_S)
    return (process,)


def identity(farm: Deployed, agent: str) -> str:
    """The device that an agent is."""
    return str(json.loads((farm.places.volume("agent", agent) / "identity.json").read_text())["device_id"])


LOSSES = {
    "one API process": Loss(all_in_flight, killed("api-1")),
    "the proxy": Loss(Work.is_training, killed("proxy")),
    "the worker that compiles": Loss(Work.is_compiling, compiling_worker),
    "the agent that trains": Loss(Work.is_training, training_agent),
    "the database, restarted": Loss(all_in_flight, restarted("database")),
    "the database, killed": Loss(all_in_flight, killed("database")),
    "the broker with what it holds": Loss(lambda _: True, killed("broker")),
    "the storage": Loss(all_in_flight, killed("storage"), Deployed.restore_storage),
}
