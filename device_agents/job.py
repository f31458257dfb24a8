"""One job of an unpacked bundle on this device: profile, train, eval, infer or tune. Knows nothing of a farm."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Optional

from device_agents import cgroup
from device_agents.bundle import UnpackedBundle
from device_agents.dataset import DataFiles
from device_agents.describe import Device
from device_agents.errors import AttemptError, BadBundle, BadData, Stopped
from device_agents.findings import Findings
from device_agents.protocol import (
    EMULATION_TIME_FACTOR,
    Block,
    Evaluation,
    KernelTime,
    Limits,
    VariantTime,
)
from device_agents.sampler import Sampler
from device_agents.sandbox import Sandbox, job_rlimits
from device_agents.step import Ending, Event, Process, check, run_process

JobMode = Literal["profile", "train", "eval", "infer", "tune"]
Notify = Callable[..., None]
"""`notify(kind, **fields)`: kinds and fields of `protocol.Event`."""
StopCheck = Callable[[], Optional[Stopped]]

WANTED_BLOCKS = 5
MIN_BLOCK_STEPS = 4
DEFAULT_TUNE_S = 60.0
TUNE_SHARE = 0.8
"""Of the run's time limit, at most: the last kernel's rounds may pass the end of the measuring time."""
OUT = "out"


@dataclass(frozen=True)
class Job:
    """What to run. All paths lie under `folder`, the working directory of the binary."""

    folder: Path
    bundle: UnpackedBundle
    mode: JobMode
    steps: int = 20
    warmup: int = 3
    seed: int = 0
    learning_rate: float | None = None
    threads: int | None = None
    data: DataFiles | None = None
    weights: Path | None = None
    """Starting weights; tensors it lacks (constants) come from the bundle's own."""
    tune_s: float = DEFAULT_TUNE_S
    """Seconds that measuring schedules may take; mode tune only."""
    limits: Limits = field(default_factory=Limits)


class Execution:
    """One job from its first process to its findings, which are also good after a failure."""

    def __init__(
        self, job: Job, device: Device, sandbox: Sandbox, *, notify: Notify, should_stop: StopCheck, name: str = "local"
    ) -> None:
        self.job = job
        self.device = device
        self.sandbox = sandbox
        self.findings = Findings(job.bundle.batch, device.description.cores)
        self._notify = notify
        self._should_stop = should_stop
        self._name = name
        self._sampler = Sampler(device.read)
        self._group: cgroup.JobCgroup | None = None
        factor = EMULATION_TIME_FACTOR if device.is_emulated else 1.0
        self._run_limit_s = job.limits.run_s * factor
        self._deadline_s = time.monotonic() + self._run_limit_s

    def run(self) -> None:
        """Run the job's mode. Raises: `AttemptError`; `findings` holds what was found until then."""
        check_fits(self.job, self.device)
        out = self.job.folder / OUT
        out.mkdir(exist_ok=True)
        if self.sandbox.uid is not None:
            os.chown(out, self.sandbox.uid, self.sandbox.uid)
        modes = {
            "profile": self._profile,
            "train": self._train,
            "eval": self._evaluate_only,
            "infer": self._infer,
            "tune": self._tune,
        }
        self._deadline_s = time.monotonic() + self._run_limit_s
        with self._confined(), self._sampler:
            try:
                modes[self.job.mode]()
            finally:
                self.findings.states = self._sampler.states()
                self.findings.energy_use = None if self.device.is_emulated else self._sampler.energy()
                if self._group:
                    self.findings.memory = replace(self.findings.memory, cgroup_peak_bytes=self._group.peak_bytes())

    def _profile(self) -> None:
        job = self.job
        self.findings.warmup_steps = job.warmup
        counts = block_steps(job.steps, emulated=self.device.is_emulated)
        for index, steps in enumerate(counts):
            arguments = ["--steps", str(steps), "--warmup", str(job.warmup), "--batch-seed", str(job.seed)]
            done_before = sum(counts[:index])
            self._block("profile", [*self._weights(), *self._data(), *arguments], done_before, sum(counts))

    def _train(self) -> None:
        job, trained = self.job, self.job.folder / OUT / "trained.safetensors"
        self.findings.evaluation_before = self._evaluate("before", self._weights())
        arguments = ["--steps", str(job.steps), "--batch-seed", str(job.seed), "--save", self._relative(trained)]
        if job.learning_rate is not None:
            arguments += ["--learning-rate", repr(job.learning_rate)]
        self._block("train", [*self._weights(), *self._data(), *arguments], 0, job.steps)
        if self.findings.losses and self.findings.losses[-1] is None:
            hint = "lower the learning rate, or look for extreme values in the data"
            raise BadData("train.diverged", "the loss is not a finite number any more", hint=hint)
        self.findings.trained = trained
        weights = ["--weights", self._relative(trained)]
        self.findings.evaluation_after = self._evaluate("after", weights)
        exported = job.folder / OUT / "weights.safetensors"
        self._run("export", [*weights, "--out", self._relative(exported)], lambda _: None)
        self.findings.exported = exported

    def _evaluate_only(self) -> None:
        self.findings.evaluation_before = self._evaluate("before", self._weights())

    def _infer(self) -> None:
        data = self._data(labels=False)
        self._run("infer", [*self._weights(), *data, "--out", f"{OUT}/logits.npy"], lambda _: None)

    def _tune(self) -> None:
        trials = self.job.bundle.trials or ()

        def on_event(event: Event) -> None:
            if event["event"] != "variant":
                return
            trial, variant = event["trial"], event["variant"]
            self.findings.variants[trial, variant] = VariantTime(
                choice=trials[trial].choices[variant],
                rounds=event["rounds"],
                median_us=float(event["us"][1]),
                ratio_low=float(event["ratio"][0]),
                ratio=float(event["ratio"][1]),
                ratio_high=float(event["ratio"][2]),
                difference=event["difference"],
            )
            if variant == 0:
                self._notify("progress", fraction=(trial + 1) / len(trials))

        self._notify("phase", message="tune")
        seconds = min(self.job.tune_s, TUNE_SHARE * self._run_limit_s)
        self._run("tune", ["--seconds", repr(seconds)], on_event)

    def _evaluate(self, moment: str, weights: Sequence[str]) -> Evaluation:
        found: list[Evaluation] = []

        def on_event(event: Event) -> None:
            if event["event"] == "eval":
                found.append(Evaluation(event["samples"], event["loss"], event.get("accuracy")))

        self._notify("phase", message=f"eval {moment}")
        self._run("eval", [*weights, *self._data()], on_event)
        if not found:
            raise AttemptError("step.incomplete", "the binary ended without an evaluation", cause="compiler")
        last = found[-1]
        self._notify("eval", message=moment, loss=last.loss, accuracy=last.accuracy, samples=last.samples)
        return last

    def _block(self, command: str, arguments: Sequence[str], done_before: int, total: int) -> None:
        """One process that times steps; its findings are kept even when it fails."""
        step_us: list[float] = []
        ending: Ending | None = None

        def on_event(event: Event) -> None:
            if event["event"] == "step":
                self._take_step(event, step_us, done_before, total)
            elif event["event"] == "kernel":
                self._sampler.end()
                self._take_kernel(event)

        self._notify("phase", message=command)
        is_cold = not self.findings.blocks
        try:
            ending = self._run(command, arguments, on_event)
        finally:
            self._sampler.end()
            self.findings.blocks.append(Block(tuple(step_us), _load_us(ending), is_cold))

    def _take_step(self, event: Event, step_us: list[float], done_before: int, total: int) -> None:
        self._sampler.begin()
        step_us.append(float(event["us"]))
        if not self.findings.blocks:
            # Each block starts from the same weights: a second curve would only be stuck to the first.
            self.findings.losses.append(event["loss"])
        number = done_before + len(step_us)
        self._notify("step", step=number, loss=event["loss"], step_us=float(event["us"]))
        self._notify("progress", fraction=min(1.0, number / max(1, total)))

    def _take_kernel(self, event: Event) -> None:
        row = KernelTime(
            index=event["index"],
            name=event["name"],
            phase=event["phase"],
            us=float(event["us"]),
            flops=event["flops"],
            bytes_read=event["bytes_read"],
            bytes_written=event["bytes_written"],
        )
        self.findings.kernels.setdefault(row.index, []).append(row)

    def _run(self, command: str, arguments: Sequence[str], on_event: Callable[[Event], None]) -> Ending:
        """One process of the binary. Raises: `AttemptError`."""
        process = self._process(command, arguments)
        started_s = time.monotonic()

        def take(event: Event) -> None:
            self._take_sizes(event)
            on_event(event)

        try:
            ending = run_process(
                process,
                on_event=take,
                on_stderr=lambda line: self._notify("log", message=line[:2000]),
                should_stop=self._should_stop,
                on_pid=self._sampler.watch,
            )
        finally:
            self.findings.run_s += time.monotonic() - started_s
        check(ending, process)
        return ending

    def _process(self, command: str, arguments: Sequence[str]) -> Process:
        job = self.job
        threads = [] if self._threads() is None or command == "export" else ["--threads", str(self._threads())]
        step = f"./{self._relative(job.bundle.step)}"
        rlimits = job_rlimits(
            memory_bytes=job.limits.memory_bytes,
            disk_bytes=job.limits.disk_bytes,
            cpu_s=self._run_limit_s * (os.cpu_count() or 1) + 10,
            emulated=self.device.is_emulated,
        )
        argv = [*self.device.runner, step, command, *arguments, *threads]
        return Process(argv, job.folder, self.sandbox, rlimits, self._deadline_s, group=self._group)

    def _take_sizes(self, event: Event) -> None:
        memory = self.findings.memory
        if event["event"] == "start":
            self.findings.threads = event["threads"]
            sizes = {name: event.get(name) for name in ("arena_bytes", "weights_bytes", "optimizer_bytes")}
            self.findings.memory = replace(memory, **sizes)
        elif event["event"] in ("done", "stopped") and event.get("peak_rss_bytes"):
            peak_bytes = max(memory.peak_rss_bytes or 0, event["peak_rss_bytes"])
            self.findings.memory = replace(memory, peak_rss_bytes=peak_bytes)

    def _threads(self) -> int | None:
        if self.job.threads is not None:
            return self.job.threads
        return min(self.job.bundle.threads, os.cpu_count() or 1) if self.job.bundle.threads else None

    def _weights(self) -> list[str]:
        files = [self.job.bundle.weights, *([self.job.weights] if self.job.weights else [])]
        return [word for file in files for word in ("--weights", self._relative(file))]

    def _data(self, *, labels: bool = True) -> list[str]:
        data = self.job.data
        if data is None:
            return []
        words = [word for name, file in data.inputs.items() for word in ("--input", f"{name}={self._relative(file)}")]
        return [*words, "--labels", self._relative(data.labels)] if labels and data.labels else words

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self.job.folder))

    @contextmanager
    def _confined(self) -> Iterator[None]:
        parent = self.sandbox.cgroup_parent
        if parent is None:
            yield
            return
        self._group = cgroup.create(parent, self._name, self.job.limits.memory_bytes)
        try:
            yield
        finally:
            if self._group:
                self._group.remove()


def check_fits(job: Job, device: Device) -> None:
    """That this device may run this bundle in this mode. Raises: `BadBundle`, `BadData`."""
    description = device.description
    if job.bundle.target not in description.targets:
        known = ", ".join(description.targets) or "none"
        raise BadBundle("bundle.target", f"built for {job.bundle.target}; this device runs {known}", cause="user")
    missing = sorted(set(job.bundle.required_features) - set(description.features))
    if missing:
        message = f"the binary needs CPU features that this device lacks: {', '.join(missing)}"
        raise BadBundle("bundle.features", message, cause="user")
    if (job.bundle.trials is not None) != (job.mode == "tune"):
        kind = "trains" if job.bundle.trials is None else "measures schedules"
        raise BadBundle("bundle.kind", f"mode {job.mode} does not go with a bundle that {kind}", cause="user")
    if job.data is None and job.mode not in ("profile", "tune"):
        raise BadData("data.missing", f"mode {job.mode} needs a data set")
    if job.mode in ("profile", "train") and job.steps < 1:
        raise BadData("steps.missing", f"mode {job.mode} needs at least one step")


def block_steps(steps: int, *, emulated: bool) -> tuple[int, ...]:
    """Measured steps of each block: five blocks when each gets at least four steps, one under emulation."""
    count = 1 if emulated else max(1, min(WANTED_BLOCKS, steps // MIN_BLOCK_STEPS))
    return tuple(steps // count + (index < steps % count) for index in range(count))


def _load_us(ending: Ending | None) -> float | None:
    if ending is None or ending.launched_s is None or ending.started_s is None:
        return None
    return max(0.0, (ending.started_s - ending.launched_s) * 1e6)
