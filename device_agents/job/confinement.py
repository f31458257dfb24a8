"""The confinement of a job from its first process to its last: its user, cgroup, limits and share of the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from device_agents.devices.describe import Device
from device_agents.errors import StepFailed, Stopped
from device_agents.job import step
from device_agents.job.cgroup import JobCgroup
from device_agents.job.disk import DiskWatch
from device_agents.job.job import Job
from device_agents.job.sandbox import Sandbox
from device_agents.job.scratch import let_read
from device_agents.job.step import Ending, Process

OUT = "out"
"""The one folder that a job writes in."""


@dataclass(frozen=True)
class Confinement:
    """The confinement of a job. Made by `confined`."""

    sandbox: Sandbox
    disk: DiskWatch
    group: JobCgroup | None

    def process(self, argv: Sequence[str], job: Job, device: Device, *, run_s: float, deadline_s: float) -> Process:
        """Returns a process of the job, within all that holds for it."""
        rlimits = self.sandbox.job_rlimits(
            memory_bytes=job.limits.memory_bytes,
            disk_bytes=min(job.limits.disk_bytes, self.disk.room_bytes()),
            cpu_s=run_s * (os.cpu_count() or 1) + 10,
            emulated=device.is_emulated,
        )
        return Process(argv, job.folder, self.sandbox, rlimits, deadline_s, step.GRACE_S, self.group)

    def stops(self, should_stop: Callable[[], Stopped | None]) -> Callable[[], Stopped | None]:
        """Told from outside, or out of disk."""
        return lambda: should_stop() or self.disk.check()

    def check(self, ending: Ending, process: Process) -> None:
        """Checks how a process ended, and what it wrote between the last look and its end. Raises: `AttemptError`."""
        try:
            step.check(ending, process)
        except StepFailed as error:
            raise self.disk.put_down(error, process.rlimits["RLIMIT_FSIZE"]) from None
        self.disk.pid = None
        stopped = self.disk.look()
        if stopped is not None:
            raise stopped


@contextmanager
def confined(sandbox: Sandbox, job: Job, name: str) -> Iterator[Confinement]:
    """Sets the confinement up for one job, and in the end takes it down with all that it left running. Raises:
    `AttemptError`, `OSError`.
    """
    with sandbox.of_one_job() as job_sandbox:
        out = job.folder / OUT
        out.mkdir(exist_ok=True)
        if job_sandbox.uid is not None:
            let_read(job.folder)
            os.chown(out, job_sandbox.uid, job_sandbox.uid)
        group = job_sandbox.cgroup_parent.make(name, job.limits.memory_bytes) if job_sandbox.cgroup_parent else None
        # Where the rest of its folder is out of a job's reach, what it cannot have written is not counted.
        watched = out if job_sandbox.namespaces or job_sandbox.landlock or job_sandbox.is_own_user else job.folder
        try:
            yield Confinement(job_sandbox, DiskWatch(watched, job.limits.disk_bytes), group)
        finally:
            if group:
                group.remove()
