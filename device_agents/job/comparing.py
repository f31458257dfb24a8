"""Mode compare: the bundles of one job take turns in fresh processes, on made-up samples."""

from __future__ import annotations

import statistics
import time

from device_agents.figures.rounds import LOOKS
from device_agents.figures.warm_up import allowance, settled
from device_agents.job.asked import Job
from device_agents.job.comparison import ComparisonFindings
from device_agents.job.processes import Notify, Processes
from device_agents.job.step_events import Start, StepDone, StepEvent
from device_agents.job.stopwatch import StepTimes
from device_agents.job.words import profile_words, relative
from device_agents.measure.sampler import Sampler
from device_agents.measure.turns import Prospect, Wanted, take_turns
from device_agents.wire import COMPARE_S, EFFECT, ComparedProcess

TIME_SHARE = 0.9
"""Share of the run's time limit, at most."""


class Comparing:
    """A comparison, from its first process to its last."""

    def __init__(self, job: Job, processes: Processes, sampler: Sampler, notify: Notify) -> None:
        self._job = job
        self._bundles = (job.bundle, *job.others)
        self._processes = processes
        self._sampler = sampler
        self._notify = notify
        self._began_s = time.monotonic()
        self.findings = ComparisonFindings(len(self._bundles), job.settings.steps)

    def run(self) -> None:
        """Raises: `AttemptError`; `findings` holds what was found until then."""
        settings = self._job.settings
        self._notify("phase", message="compare")
        self._began_s = time.monotonic()
        wanted = Wanted(len(self._bundles), settings.effect or EFFECT, self._budget_s, settings.seed)
        self.findings.ended = take_turns(wanted, self._process, tell=self._tell).why

    @property
    def _budget_s(self) -> float:
        return min(self._job.settings.compare_s or COMPARE_S, TIME_SHARE * self._processes.limit_s)

    def _process(self, which: int) -> float:
        """A fresh process of the bundle at that place: the median of its settled steps, in microseconds."""
        bundle, steps = self._bundles[which], self.findings.steps
        step_count = steps + allowance(steps)
        times = StepTimes(step_count)

        def on_event(event: StepEvent) -> None:
            if isinstance(event, Start):
                self.findings.threads[which] = event.threads
            elif isinstance(event, StepDone):
                self._sampler.begin()
                times.take(event.us)

        words = ["--weights", relative(self._job, bundle.weights), *profile_words(self._job, step_count)]
        try:
            self._processes.run("profile", words, on_event, bundle=bundle)
        finally:
            self._sampler.end()
        times.check_whole()
        self.findings.processes.append(ComparedProcess(which, tuple(times.us)))
        self._progress()
        return statistics.median(settled(times.us, steps))

    def _progress(self) -> None:
        by_time = (time.monotonic() - self._began_s) / self._budget_s
        by_rounds = len(self.findings.processes) / (2 * self.findings.bundles * LOOKS[-1])
        self._notify("progress", fraction=min(1.0, max(by_time, by_rounds)))

    def _tell(self, prospect: Prospect) -> None:
        self.findings.foreseen_rounds = prospect.rounds
        finds = (
            "too few for any difference"
            if prospect.effect is None
            else (f"a difference of {prospect.effect:.2%} is found nineteen times of twenty")
        )
        self._notify("log", message=f"up to {prospect.rounds} rounds in the time that is left: {finds}")
