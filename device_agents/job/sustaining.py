"""Mode sustained: one process makes one step after the other until its time is over, and the agent ends it."""

from __future__ import annotations

import time

from device_agents.errors import AttemptError
from device_agents.figures.sustained import window_count
from device_agents.job.asked import Job
from device_agents.job.processes import Notify, Processes
from device_agents.job.step_events import MAX_PROCESS_STEPS, Start, StepDone, StepEvent
from device_agents.job.stopwatch import check_passed
from device_agents.job.sustained import SustainedFindings
from device_agents.job.words import data_words, profile_words, weights_words
from device_agents.measure.sampler import Sampler
from device_agents.wire import SUSTAIN_SHARE, RunSettings

TELL_S = 2.0
"""Between two words of how far it is."""
OUTPUT_BYTES_PER_S = 1 << 24
"""That a process may write: ten times what the quickest step has written."""


class Sustaining:
    """A sustained process, from its first step to the end of its time."""

    def __init__(self, job: Job, processes: Processes, sampler: Sampler, notify: Notify) -> None:
        self._job = job
        self._processes = processes
        self._sampler = sampler
        self._notify = notify
        lasts = lasts_s(job.settings, processes.limit_s)
        count = window_count(lasts)
        self.findings = SustainedFindings(job.bundle.batch, count, lasts / count)
        self._started_s = time.monotonic()
        self._began_s: float | None = None
        self._sum_us = 0.0
        self._told_s = 0.0

    def run(self) -> None:
        """Raises: `AttemptError`; `findings` holds what was found until then."""
        self._notify("phase", message="sustain")
        job_words = [*weights_words(self._job), *data_words(self._job, self._job.data)]
        words = [*job_words, *profile_words(self._job, MAX_PROCESS_STEPS)]
        self._started_s = time.monotonic()
        most_bytes = int((self.findings.lasts_s + 60.0) * OUTPUT_BYTES_PER_S)
        try:
            self._processes.run("profile", words, self._on_event, is_enough=self._is_over, most_bytes=most_bytes)
        finally:
            self._sampler.end()
        if not self.findings.steps:
            message = f"no step came to its end in {self.findings.lasts_s:,.0f} s"
            raise AttemptError("step.incomplete", message, cause="limits", hint="sustain it for longer")
        if len(self.findings.windows) < self.findings.count:
            message = f"the binary said that it is done before its {self.findings.lasts_s:,.0f} s were over"
            raise AttemptError("step.incomplete", message, cause="compiler")
        self.findings.ended = "time"

    def _on_event(self, event: StepEvent) -> None:
        if isinstance(event, StepDone):
            self._take(event.us)
        elif isinstance(event, Start):
            self.findings.threads = event.threads

    def _take(self, us: float) -> None:
        now_s = time.monotonic()
        self._sum_us += us
        check_passed(self._sum_us, self._started_s)
        if self._began_s is None:
            self._sampler.begin()
            self._began_s = now_s - us * 1e-6
            self.findings.began_at = time.time() - us * 1e-6
        self.findings.take(us, now_s - self._began_s)

    def _is_over(self) -> bool:
        """Asked several times a second: steps may well be too slow to notice that a window is over."""
        now_s = time.monotonic()
        if self._began_s is None:
            return now_s - self._started_s >= self.findings.lasts_s
        self.findings.pass_to(now_s - self._began_s)
        if now_s - self._told_s >= TELL_S:
            self._told_s = now_s
            self._notify("progress", fraction=min(1.0, (now_s - self._began_s) / self.findings.lasts_s))
        if len(self.findings.windows) < self.findings.count:
            return False
        self._sampler.end()
        return True


def lasts_s(settings: RunSettings, limit_s: float) -> float:
    """How long steps follow each other: as long as is asked for, as far as the time of all processes allows."""
    return min(settings.sustained_s, SUSTAIN_SHARE * limit_s)
