"""The processes of one job's binaries: how each is started, confined and watched, and what it says of its sizes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Optional

from device_agents.devices.describe import Device
from device_agents.errors import Stopped
from device_agents.job.bundle import UnpackedBundle
from device_agents.job.confinement import OUT, Confinement, confined
from device_agents.job.findings import Findings
from device_agents.job.job import Job
from device_agents.job.output import KeptOutput, keep_output
from device_agents.job.quota import cpu_quota, usable_processors
from device_agents.job.sandbox import Sandbox
from device_agents.job.step import MAX_OUTPUT_BYTES, Ending, never, run_process
from device_agents.job.step_events import Done, Start, StepEvent
from device_agents.job.words import relative
from device_agents.measure.sampler import Sampler
from device_agents.wire import EMULATION_TIME_FACTOR
from device_agents.wire.plausibility import check_memory

Notify = Callable[..., None]
"""`notify(kind, **fields)`: kinds and fields of `wire.Event`."""
StopCheck = Callable[[], Optional[Stopped]]
OnEvent = Callable[[StepEvent], None]

LOGITS = f"{OUT}/logits.npy"
CHECKPOINT_FACTOR = 4
CHECKPOINT_SLACK_BYTES = 1 << 20
"""A checkpoint is the bundle's own, with up to two more tensors for each parameter, and other names."""


class Processes:
    """The processes of a job, one after the other, while it is `ready`."""

    def __init__(
        self,
        job: Job,
        device: Device,
        sandbox: Sandbox,
        findings: Findings,
        *,
        sampler: Sampler,
        notify: Notify,
        should_stop: StopCheck,
        name: str,
    ) -> None:
        self._job = job
        self._device = device
        self._sandbox = sandbox
        self._findings = findings
        self._sampler = sampler
        self._notify = notify
        self._should_stop = should_stop
        self._name = name
        self._confinement: Confinement | None = None
        factor = EMULATION_TIME_FACTOR if device.is_emulated else 1.0
        self.limit_s = min(job.limits.run_s, job.settings.time_limit_s or job.limits.run_s) * factor
        """Time limit of all processes together."""
        self._deadline_s = 0.0

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Confine the job; its time begins. Raises: `AttemptError`, `OSError`."""
        self._deadline_s = time.monotonic() + self.limit_s
        with confined(self._sandbox, self._job, self._name) as self._confinement:
            self._sandbox = self._confinement.sandbox
            try:
                yield
            finally:
                group = self._confinement.group
                if group:
                    memory = self._findings.memory
                    self._findings.memory = replace(memory, cgroup_peak_bytes=group.peak_bytes())

    def run(
        self,
        command: str,
        arguments: Sequence[str],
        on_event: OnEvent,
        *,
        bundle: UnpackedBundle | None = None,
        is_enough: Callable[[], bool] = never,
        most_bytes: int = MAX_OUTPUT_BYTES,
    ) -> Ending:
        """Runs a process, of the job's bundle or of another that it holds. Raises: `AttemptError`.

        `is_enough`, asked several times a second, ends it; `most_bytes` is what it may say.
        """
        assert self._confinement is not None, "it is ready"
        confinement = self._confinement
        argv = self._argv(command, arguments, bundle or self._job.bundle)
        process = confinement.process(argv, self._job, self._device, run_s=self.limit_s, deadline_s=self._deadline_s)
        process = replace(process, most_bytes=most_bytes)
        started_s = time.monotonic()

        def watch(pid: int) -> None:
            self._sampler.watch(pid)
            confinement.disk.pid = pid

        def take(event: StepEvent) -> None:
            self._take_sizes(event, is_own=bundle in (None, self._job.bundle))
            on_event(event)

        try:
            ending = run_process(
                process,
                on_event=take,
                on_stderr=lambda line: self._notify("log", message=line[:2000]),
                should_stop=confinement.stops(self._should_stop),
                is_enough=is_enough,
                on_pid=watch,
            )
        finally:
            self._findings.run_s += time.monotonic() - started_s
        confinement.check(ending, process)
        return ending

    def keep(self, name: str) -> KeptOutput:
        """Takes a file of the job out of its reach. Raises: `BadOutput`, `Stopped`."""
        job = self._job
        most = job.limits.disk_bytes
        if name != LOGITS:
            most = min(most, CHECKPOINT_FACTOR * job.bundle.weights_bytes + CHECKPOINT_SLACK_BYTES)
        to = job.keep / Path(name).name
        return keep_output(job.folder, name, to, uid=self.uid, max_bytes=most, should_stop=self._should_stop)

    @property
    def uid(self) -> int:
        """Returns the user that the processes run as."""
        return self._sandbox.uid if self._sandbox.uid is not None else os.geteuid()

    def _argv(self, command: str, arguments: Sequence[str], bundle: UnpackedBundle) -> Sequence[str]:
        threads = self._job.settings.threads
        if threads is None and bundle.threads:
            threads = min(bundle.threads, usable_processors(cpu_quota()))
        words = [] if threads is None or command == "export" else ["--threads", str(threads)]
        return [*self._device.runner, f"./{relative(self._job, bundle.step)}", command, *arguments, *words]

    def _take_sizes(self, event: StepEvent, *, is_own: bool) -> None:
        """Takes the sizes of the job's own bundle; of another it only checks that they are possible."""
        memory = self._findings.memory
        if isinstance(event, Start):
            memory = replace(
                memory,
                arena_bytes=event.arena_bytes,
                weights_bytes=event.weights_bytes,
                optimizer_bytes=event.optimizer_bytes,
            )
        elif isinstance(event, Done) and event.peak_rss_bytes:
            memory = replace(memory, peak_rss_bytes=max(memory.peak_rss_bytes or 0, event.peak_rss_bytes))
        else:
            return
        check_memory(memory, self._device.description)
        if is_own:
            self._findings.memory = memory
            self._findings.threads = event.threads if isinstance(event, Start) else self._findings.threads
