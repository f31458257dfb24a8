"""A job on this device, by its mode (`wire.LocalMode`). Knows nothing of a farm.

Mode compare: the bundles of one job take turns in fresh processes, on made-up samples.

Mode sustained: one process makes one step after the other until its time is over, and the agent ends it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from device_agents.devices.describe import Device
from device_agents.errors import AttemptError, BadData, StepFailed
from device_agents.figures.rounds import LOOKS
from device_agents.figures.sustained import window_count
from device_agents.figures.warm_up import allowance, settled, settled_from
from device_agents.job.checkpoints import CANNOT_KEEP, CheckpointKeeper, Earlier
from device_agents.job.comparison import ComparisonFindings
from device_agents.job.confinement import OUT
from device_agents.job.dataset import DataFiles
from device_agents.job.findings import Findings
from device_agents.job.job import Job, check_fits
from device_agents.job.output import KeptOutput
from device_agents.job.processes import LOGITS, Notify, Processes, StopCheck
from device_agents.job.quota import QuotaWatch, cpu_quota
from device_agents.job.sandbox import Sandbox
from device_agents.job.step import Ending
from device_agents.job.step_events import (
    MAX_PROCESS_STEPS,
    CheckpointLeft,
    Done,
    Evaluated,
    Failed,
    Kernel,
    Resumed,
    Start,
    StepDone,
    StepEvent,
    Validated,
    Variant,
)
from device_agents.job.stopwatch import StepTimes, check_passed, load_us
from device_agents.job.sustained import SustainedFindings
from device_agents.job.training import TrainingFindings, scored_samples
from device_agents.job.words import data_words, profile_words, relative, train_words, weights_words
from device_agents.measure.sampler import Sampler
from device_agents.measure.turns import Prospect, Wanted, take_turns
from device_agents.wire import (
    COMPARE_S,
    EFFECT,
    SUSTAIN_SHARE,
    Block,
    ComparedProcess,
    Evaluation,
    KernelTime,
    ProtocolError,
    RunSettings,
    VariantTime,
    most_checkpoint_bytes,
)
from device_agents.wire.plausibility import check_kernel

TELL_S = 2.0
"""Seconds between two reports of how far the job is."""
OUTPUT_BYTES_PER_S = 1 << 24
"""Bytes a second that a process may write: ten times what the quickest step has written."""


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
    """Returns how long steps follow each other: as long as the settings want, as far as the time of all processes
    allows.
    """
    return min(settings.sustained_s, SUSTAIN_SHARE * limit_s)


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


WANTED_BLOCKS = 5
MIN_BLOCK_STEPS = 4
TUNE_SHARE = 0.8
"""Share of the run's time limit, at most: the last kernel's rounds may pass the end of the measuring time."""
TRAINED, EXPORTED = f"{OUT}/trained.safetensors", f"{OUT}/weights.safetensors"
UNFINISHED = f"{OUT}/unfinished.safetensors"
MAX_NAME_CHARACTERS = 200


class Execution:
    """A job from its first process to its findings, which are also good after a failure."""

    def __init__(
        self,
        job: Job,
        device: Device,
        sandbox: Sandbox,
        *,
        notify: Notify,
        should_stop: StopCheck,
        name: str = "local",
        identity: tuple[str, int, str] = ("local", 1, "local"),
    ) -> None:
        """`identity`: run, attempt and device, which its checkpoints name."""
        self.job = job
        self.device = device
        self.findings = Findings(job.bundle.batch, device.description.cores, device.is_emulated)
        self._notify = notify
        self._identity = identity
        self._keeper: CheckpointKeeper | None = None
        self._sampler = Sampler(device.read, device.power_range)
        self._processes = Processes(
            job,
            device,
            sandbox,
            self.findings,
            sampler=self._sampler,
            notify=notify,
            should_stop=should_stop,
            name=name,
        )

    def run(self) -> None:
        """Runs the job's mode. Raises: `AttemptError`; `findings` then holds the results so far."""
        check_fits(self.job, self.device)
        modes = {
            "profile": self._profile,
            "train": self._train,
            "eval": self._evaluate_only,
            "infer": self._infer,
            "tune": self._tune,
            "compare": self._compare,
            "sustained": self._sustain,
        }
        with self._processes.ready(), self._sampler:
            watch = QuotaWatch(cpu_quota())
            try:
                modes[self.job.settings.mode]()
            finally:
                self.findings.states, self.findings.clock = self._sampler.states(), self._sampler.clock()
                self.findings.throttling = watch.throttling()
                self.findings.energy_use = None if self.device.is_emulated else self._sampler.energy()

    def keep(self, name: str) -> KeptOutput:
        """Takes a file of the job out of its reach. Raises: `BadOutput`, `Stopped`."""
        return self._processes.keep(name)

    def _profile(self) -> None:
        settings = self.job.settings
        counts = block_steps(settings.steps, emulated=self.device.is_emulated)
        job_words = [*weights_words(self.job), *data_words(self.job, self.job.data)]
        for index, steps in enumerate(counts):
            # Where nobody says how many steps are warm-up, more are made, and their times tell. An emulator's do not.
            by_rule = settings.warmup is None and not self.device.is_emulated
            spare = allowance(steps) if by_rule else 0
            arguments = [*job_words, *profile_words(self.job, steps + spare, settings.warmup or 0)]
            self.findings.warmup_steps = max(self.findings.warmup_steps, settings.warmup or 0)
            self._block("profile", arguments, sum(counts[:index]), steps, sum(counts), spare)

    def _train(self) -> None:
        if not (self.job.earlier and self._goes_on(self.job.earlier)):
            self._start_training()
        training, data = self.findings.training, self.job.data
        assert training is not None, "it was started"
        if self.findings.losses and self.findings.losses[-1] is None and training.outcome != "diverged":
            training.diverge("the loss is not a finite number any more")
        if training.saved_step is None:
            return
        weights = ["--weights", TRAINED]
        self.findings.evaluation_after = self._evaluate("after", weights, data)
        self._processes.run("export", [*weights, "--out", EXPORTED], lambda _: None)
        self.findings.exported = self.keep(EXPORTED)

    def _start_training(self) -> None:
        """Starts training from the first step."""
        self.findings.evaluation_before = self._evaluate("before", weights_words(self.job), self.job.data)
        if self.job.validation is not None:
            # What is wrong with it ends the run now, and not at the first validation.
            self._evaluate("of the validation data", weights_words(self.job), self.job.validation)
        self._train_from(None)

    def _goes_on(self, earlier: Earlier) -> bool:
        """Trains from where another attempt stood. Returns False if the binary does not take what that one has left."""
        past, findings = earlier.past, self.findings
        findings.losses, findings.evaluation_before = list(past.losses), past.evaluation_before
        try:
            self._train_from(earlier)
        except (BadData, StepFailed) as error:
            if earlier.must_fit or findings.training is None or findings.training.is_expected:
                raise
            self._notify(
                "log",
                message=f"the checkpoint of step {past.step:,} is refused, so training starts from its "
                f"first step: {error.code}: {error.message:.500}",
            )
            findings.losses, findings.evaluation_before, findings.training = [], None, None
            findings.blocks.clear()
            return False
        return True

    def _train_from(self, earlier: Earlier | None) -> None:
        job, settings = self.job, self.job.settings
        training = TrainingFindings(settings, job.validated, job.bundle.batch)
        self.findings.training = training
        arguments = train_words(job, save=TRAINED, checkpoint=UNFINISHED, earlier=earlier)
        if job.on_checkpoint is not None:
            most_bytes = most_checkpoint_bytes(job.bundle.weights_bytes)
            self._keeper = CheckpointKeeper(
                job.folder, UNFINISHED, job.keep, uid=self._processes.uid, max_bytes=most_bytes
            )
        if earlier is not None:
            training.go_on(earlier.past)
        try:
            self._block("train", arguments, training.steps, settings.steps - training.steps, settings.steps)
        except BadData:
            if training.outcome != "diverged":
                raise

    def _evaluate_only(self) -> None:
        self.findings.evaluation_before = self._evaluate("before", weights_words(self.job), self.job.data)

    def _infer(self) -> None:
        data = data_words(self.job, self.job.data, labels=False)
        self._processes.run("infer", [*weights_words(self.job), *data, "--out", LOGITS], lambda _: None)

    def _compare(self) -> None:
        comparing = Comparing(self.job, self._processes, self._sampler, self._notify)
        self.findings.comparison = comparing.findings
        comparing.run()

    def _sustain(self) -> None:
        sustaining = Sustaining(self.job, self._processes, self._sampler, self._notify)
        self.findings.sustained = sustaining.findings
        sustaining.run()

    def _tune(self) -> None:
        trials = self.job.bundle.trials or ()

        def on_event(event: StepEvent) -> None:
            if not isinstance(event, Variant):
                return
            if event.trial >= len(trials) or event.variant >= len(trials[event.trial].choices):
                raise ProtocolError("variant", f"trial {event.trial}, variant {event.variant} is not in the bundle")
            low, ratio, high = event.ratio
            self.findings.variants[event.trial, event.variant] = VariantTime(
                choice=trials[event.trial].choices[event.variant],
                rounds=event.rounds,
                median_us=event.us[1],
                ratio_low=low,
                ratio=ratio,
                ratio_high=high,
                difference=event.difference,
            )
            if event.variant == 0:
                self._notify("progress", fraction=(event.trial + 1) / len(trials))

        self._notify("phase", message="tune")
        seconds = min(self.job.settings.tune_s or 0.0, TUNE_SHARE * self._processes.limit_s)
        self._processes.run("tune", ["--seconds", repr(seconds)], on_event)
        if not self.findings.variants:
            raise AttemptError("step.incomplete", "the binary ended without the time of any kernel", cause="compiler")

    def _evaluate(self, moment: str, weights: Sequence[str], data: DataFiles | None) -> Evaluation:
        evaluations: list[Evaluation] = []

        def on_event(event: StepEvent) -> None:
            if isinstance(event, Evaluated):
                evaluations[:] = [self._evaluation(event, data)]

        self._notify("phase", message=f"eval {moment}")
        self._processes.run("eval", [*weights, *data_words(self.job, data)], on_event)
        if not evaluations:
            raise AttemptError("step.incomplete", "the binary ended without an evaluation", cause="compiler")
        last = evaluations[-1]
        self._notify("eval", message=moment, loss=last.loss, accuracy=last.accuracy, samples=last.samples)
        return last

    def _evaluation(self, event: Evaluated, data: DataFiles | None) -> Evaluation:
        samples = data.samples if data else 0
        if event.samples not in scored_samples(samples, self.job.bundle.batch):
            raise ProtocolError("eval.samples", f"{event.samples:,}, the data set has {samples:,}")
        return Evaluation(event.samples, event.loss, event.accuracy)

    def _block(
        self, command: str, arguments: Sequence[str], done_before: int, steps: int, total: int, spare: int = 0
    ) -> None:
        """Runs a process that times steps; its findings are kept even when it fails. It makes `spare` steps beside
        those that count: left out are first steps that its times show to be warm-up, and what is too much at the end.
        """
        times = StepTimes(steps + spare)
        training = self.findings.training
        ending: Ending | None = None

        def on_event(event: StepEvent) -> None:
            if isinstance(event, StepDone):
                times.take(event.us)
                if len(times.us) > spare:
                    self._take_step(event, done_before + len(times.us) - spare, total)
            elif isinstance(event, Kernel):
                self._sampler.end()
                self._take_kernel(event)
            elif training is not None:
                self._take_training(event, training)

        self._notify("phase", message=command)
        is_cold = not self.findings.blocks
        try:
            ending = self._processes.run(command, arguments, on_event)
        finally:
            self._sampler.end()
            self._keep_block(times.us, steps, spare, load_us(ending), is_cold)
        if not (training and training.outcome == "stopped_early"):
            times.check_whole()

    def _keep_block(
        self, step_us: Sequence[float], steps: int, spare: int, load_us: float | None, is_cold: bool
    ) -> None:
        warm = settled_from(step_us, most=spare)
        self.findings.warmup_steps = max(self.findings.warmup_steps, warm)
        self.findings.blocks.append(Block(tuple(step_us[warm : warm + steps]), load_us, is_cold))

    def _take_step(self, event: StepDone, number: int, total: int) -> None:
        self._sampler.begin()
        if self.findings.training:
            self.findings.training.take_step(event)
        if not self.findings.blocks:
            # Each block starts from the same weights: a second curve would only be stuck to the first.
            self.findings.losses.append(event.loss)
        self._notify("step", step=number, loss=event.loss, step_us=event.us)
        self._notify("progress", fraction=min(1.0, number / max(1, total)))

    def _take_training(self, event: StepEvent, training: TrainingFindings) -> None:
        if isinstance(event, Validated):
            validation = training.take_validation(event)
            self._notify(
                "eval",
                message="validation",
                step=validation.step,
                loss=validation.loss,
                accuracy=validation.accuracy,
                samples=validation.samples,
            )
        elif isinstance(event, Resumed):
            training.take_resume(event)
            self._notify("log", message=f"goes on after step {event.step:,}")
        elif isinstance(event, CheckpointLeft):
            training.take_checkpoint(event)
            self._keep_checkpoint(training)
        elif isinstance(event, Done):
            training.take_end(event)
        elif isinstance(event, Failed):
            training.take_error(event)

    def _keep_checkpoint(self, training: TrainingFindings) -> None:
        """Hands on what another attempt could go on from. A run that has none of it goes on itself."""
        if self._keeper is None or self.job.on_checkpoint is None:
            raise ProtocolError("checkpoint", "none was asked for")
        past = training.past(self.job.key, self._identity, self.findings.losses, self.findings.evaluation_before)
        try:
            self._keeper.hand_on(past, self.job.on_checkpoint)
        except CANNOT_KEEP as error:
            self._notify("log", message=f"the checkpoint of step {past.step:,} is not kept: {error!s:.500}")

    def _take_kernel(self, event: Kernel) -> None:
        row = KernelTime(
            index=event.index,
            name=event.name[:MAX_NAME_CHARACTERS],
            phase=event.phase[:MAX_NAME_CHARACTERS],
            us=event.us,
            flops=event.flops,
            bytes_read=event.bytes_read,
            bytes_written=event.bytes_written,
        )
        if row.index >= self.job.bundle.max_kernels:
            raise ProtocolError(
                "kernel.index", f"{row.index:,}, the bundle has {self.job.bundle.max_kernels:,} kernels"
            )
        check_kernel(row, self.device.description, "kernel")
        rows = self.findings.kernels.setdefault(row.index, [])
        if len(rows) > len(self.findings.blocks):
            raise ProtocolError("kernel.index", f"kernel {row.index:,} is reported twice")
        rows.append(row)


def block_steps(steps: int, *, emulated: bool) -> tuple[int, ...]:
    """Measured steps of each block: five blocks when each gets at least four steps, one under emulation."""
    count = 1 if emulated else max(1, min(WANTED_BLOCKS, steps // MIN_BLOCK_STEPS))
    return tuple(steps // count + (index < steps % count) for index in range(count))
