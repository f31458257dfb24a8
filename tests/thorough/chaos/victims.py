"""Whom a fault may hit now: found only while there is something in flight, with what shows that.

A finder returns None while there is nothing to hit. `Victim.is_in_flight` is asked once more after the victim has been
stopped, or right before it is hit: only then does a fault count as confirmed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlalchemy import select

from service.store.database.models import OPEN_JOB_STATES, OPEN_RUN_STATES, Job, Outbox
from tests.thorough.chaos.field import Field
from tests.thorough.chaos.processes import below, children, command_of, state_of


@dataclass(frozen=True)
class Work:
    """A job or a run, as it was when the fault ended."""

    id: str
    is_job: bool
    attempts: int
    done: float
    """Steps of a run, the fraction of a job."""


@dataclass(frozen=True)
class Victim:
    """Processes to harm, and the work that they have in flight."""

    part: str
    pids: tuple[int, ...]
    work: tuple[str, ...]
    evidence: str
    is_in_flight: Callable[[], bool]
    is_part: bool = False
    """The part's own process: it must come up again."""
    is_replaced: Callable[[], bool] = lambda: False
    """Whether another process does its work at the same attempt. A part's own is seen by its number anyway."""


Finder = Callable[[Field, str], Victim | None]


def work_of(field: Field, work_id: str) -> Work | None:
    """How far it is; None if the database is away."""
    if work_id.startswith("job"):
        job = field.job(work_id)
        return Work(job.id, True, job.attempts, job.fraction) if job else None
    run = field.run(work_id)
    return Work(run.id, False, run.attempts, run.steps_done) if run else None


def goes_on(field: Field, before: Work) -> bool:
    """Whether it has ended, or is being worked on: further than before, or anew."""
    if before.is_job:
        job = field.job(before.id)
        return job is not None and (
            job.state not in OPEN_JOB_STATES
            or (job.state == "compiling" and (job.attempts, job.fraction) > (before.attempts, before.done))
        )
    run = field.run(before.id)
    return run is not None and (
        run.state not in OPEN_RUN_STATES
        or (run.state == "running" and (run.attempts, run.steps_done) > (before.attempts, before.done))
    )


def agent(field: Field, name: str) -> Victim | None:
    """The agent while its binary makes steps, for a run that no fault has hit."""
    pid, run = field.pid(name), field.run_on(name)
    if pid is None or not state_of(pid) or not field.is_up(name) or run is None or not _may_hit(field, run.id):
        return None
    if run.phase != "run" or run.steps_done < 1 or run.steps_done > run.settings.steps - 15:
        return None
    evidence = f"{run.id} attempt {run.attempts} in phase run at step {run.steps_done}"
    return Victim(name, (pid,), (run.id,), evidence, lambda: _still_runs(field, name, run.id), is_part=True)


def heartbeat(field: Field, name: str) -> Victim | None:
    """The process that renews the lease of such an agent."""
    found = agent(field, name)
    beats = _beats(found.pids[0]) if found else []
    if found is None or not beats:
        return None

    def is_replaced() -> bool:
        now = _beats(found.pids[0])  # asked first: that of a later run is not there before the run is
        return bool(now) and beats[0] not in now and _still_runs(field, name, found.work[0])

    return replace(found, pids=(beats[0],), is_part=False, is_replaced=is_replaced)


def _beats(agent: int) -> list[int]:
    return [one for one in children(agent) if "device_agents.farm.heartbeat" in command_of(one)]


def binary(field: Field, name: str) -> Victim | None:
    """The job's own process."""
    found = agent(field, name)
    steps = [one for one in below(found.pids[0], "bin/step") if "launch.py" not in command_of(one)] if found else []
    return _instead(found, steps[-1:])


def _instead(found: Victim | None, pids: list[int]) -> Victim | None:
    if found is None or not pids:
        return None
    return replace(found, pids=tuple(pids), is_part=False)


def _may_hit(field: Field, work_id: str) -> bool:
    return work_id not in field.hit


def _still_runs(field: Field, name: str, run_id: str) -> bool:
    run = field.run_on(name)
    return run is not None and run.id == run_id and run.phase == "run"


def worker(field: Field, name: str) -> Victim | None:
    """The worker's main process while one of its processes compiles."""
    pid, job = field.pid(name), field.job_of(name)
    if pid is None or not field.is_up(name) or job is None or not _may_hit(field, job.id):
        return None
    if not 0.05 < job.fraction < 0.3:
        return None
    evidence = f"{job.id} attempt {job.attempts} compiling in {job.worker}, {job.fraction:.0%}"
    return Victim(name, (pid,), (job.id,), evidence, lambda: _still_compiles(field, name, job.id), is_part=True)


def pool_process(field: Field, name: str) -> Victim | None:
    """The worker's process that waits for the compile, by the folder that the job's row names."""
    found = worker(field, name)
    job = field.job_of(name) if found else None
    pid = int(job.worker.split(".")[-2]) if job and job.worker else 0
    return _instead(found, [pid] if pid and state_of(pid) else [])


def compile_child(field: Field, name: str) -> Victim | None:
    """The confined process that compiles."""
    found = worker(field, name)
    return _instead(found, below(found.pids[0], "workers.compile_child")[:1] if found else [])


def _still_compiles(field: Field, name: str, job_id: str) -> bool:
    job = field.job_of(name)
    return job is not None and job.id == job_id


def api(field: Field, name: str) -> Victim | None:
    """An API process while an agent waits for its answer."""
    pid, port = field.pid(name), field.topology.api_ports[name]
    waiting = [agent for agent, link in field.farm.items() if link.open[port] > 0]
    if pid is None or not field.is_up(name) or not waiting:
        return None
    runs = [run for run in map(field.run_on, field.farm) if run is not None and run.phase == "run"]
    work = tuple(run.id for run in runs if _may_hit(field, run.id))[:1]
    return Victim(
        name,
        (pid,),
        work,
        f"requests of {', '.join(waiting)} open",
        lambda: any(link.open[port] > 0 for link in field.farm.values()),
        is_part=True,
    )


def server(field: Field, name: str) -> Victim | None:
    """The broker or the database, while a job compiles and a run makes steps."""
    pid = field.pid(name)
    runs = [found for found in (agent(field, one) for one in field.farm) if found]
    jobs = [found for found in (worker(field, one) for one in ("worker-1", "worker-2")) if found]
    if pid is None or not field.is_up(name) or not runs or not jobs:
        return None
    if name == "postgres":
        pid = children(pid)[0] if "setpriv" in command_of(pid) else pid
    return Victim(
        name,
        (pid,),
        (*runs[0].work, *jobs[0].work),
        f"{runs[0].evidence}; {jobs[0].evidence}",
        lambda: runs[0].is_in_flight() and jobs[0].is_in_flight(),
        is_part=True,
    )


def disk(field: Field, name: str) -> Victim | None:
    """A disk of the farm, while a job compiles and a run makes steps that are to end with weights."""
    runs = [found for found in (agent(field, one) for one in field.farm) if found]
    jobs = [found for found in (worker(field, one) for one in ("worker-1", "worker-2")) if found]
    if not runs or not jobs:
        return None
    return Victim(
        name,
        (),
        (*runs[0].work, *jobs[0].work),
        f"{runs[0].evidence}; {jobs[0].evidence}",
        lambda: runs[0].is_in_flight() and jobs[0].is_in_flight(),
    )


def pending_doorbells(field: Field) -> list[str]:
    """Jobs whose doorbell is in the outbox."""
    return list(field.look(lambda session: session.scalars(select(Outbox.argument)).all()) or [])


def queued_jobs(field: Field) -> list[str]:
    """Jobs that wait for a worker."""
    return list(field.look(lambda session: session.scalars(select(Job.id).where(Job.state == "queued")).all()) or [])
