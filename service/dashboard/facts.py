"""The pages' knowledge of a run, a job and a device: plain values, filled from the rows by `queries.py`.

`_at` values are seconds since 1970-01-01 UTC, as in the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from device_agents.figures.one_run import LEAST_BLOCKS, run_interval
from device_agents.wire import REAL_CLASSES, Report, RunSettings
from service.dashboard import format as fmt

LAST_LOSSES = 10


def what_of(model_name: str, plan_name: str, target: str) -> str:
    """Returns the names in one line: `mobilenet_v2 · sparse · x86-64-v4`."""
    return f"{model_name} · {plan_name} · {target}"


@dataclass(frozen=True, slots=True)
class Measured:
    """The values that tell a run that brought a measurement from others, and no more: the newest of `runs` that are the
    same.
    """

    id: str
    verdict: str | None
    measurement_class: str | None
    model_name: str
    model_digest: str
    plan_name: str
    target: str
    device_id: str | None
    dataset_digest: str | None
    mode: str
    batch: int | None
    threads: int | None
    precision: str = ""
    runs: int = 1


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run, the summary of its result, and (on the pages that need it) the whole report."""

    id: str
    state: str
    model_name: str
    model_digest: str
    plan_name: str
    target: str
    bundle_digest: str
    created_at: float
    settings: RunSettings
    name: str = ""
    """Name that people gave it; so the note and the tags."""
    note: str = ""
    tags: tuple[str, ...] = ()
    steps_done: int = 0
    phase: str = ""
    attempts: int = 0
    device_id: str | None = None
    device_name: str | None = None
    device_class: str | None = None
    wanted: str = ""
    """The device or class that was asked for."""
    dataset_digest: str | None = None
    dataset_name: str | None = None
    validation_dataset_digest: str | None = None
    """Data set that training is validated on; None: a share of the data set, or nothing."""
    validation_dataset_name: str | None = None
    start_weights_digest: str | None = None
    trained_weights_digest: str | None = None
    trained_weights_bytes: int | None = None
    bundle_bytes: int | None = None
    bundle_removed_at: float | None = None
    """When retention took it; so the weights and the events."""
    weights_removed_at: float | None = None
    events_removed_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    cause: str | None = None
    code: str | None = None
    message: str = ""
    hint: str = ""
    measurement_class: str | None = None
    verdict: str | None = None
    batch: int | None = None
    threads: int | None = None
    """Measured by the binary, or asked for before it has run."""
    median_us: float | None = None
    p90_us: float | None = None
    samples_per_second: float | None = None
    arena_bytes: int | None = None
    """Measured by the binary, or planned before it has run."""
    rss_bytes: int | None = None
    energy_mj: float | None = None
    """Energy of one step; None without a sensor."""
    training_outcome: str | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    report: Report | None = None
    report_key: tuple[str, str] | None = None
    """Attempt and digest of the report: what is worked out of it may be remembered by them."""
    precision: str = ""
    """Element types that its step computes with, on the pages that need them."""

    @property
    def mode(self) -> str:
        """Mode of the run."""
        return self.settings.mode

    @property
    def steps(self) -> int:
        """Steps that were asked for."""
        return self.settings.steps

    @property
    def title(self) -> str:
        """Its name; without one, what it is."""
        return self.name or self.what

    @property
    def what(self) -> str:
        """`mobilenet_v2 · sparse · x86-64-v4`."""
        return what_of(self.model_name, self.plan_name, self.target)

    @property
    def median_ms(self) -> float | None:
        """Median of block medians."""
        return fmt.milliseconds(self.median_us)

    @property
    def block_us(self) -> tuple[float, ...]:
        """The median of each block's steps; needs the report."""
        measured = self.report.measurement if self.report else None
        return tuple(median(block.step_us) for block in measured.blocks if block.step_us) if measured else ()

    @property
    def has_interval(self) -> bool:
        """Whether it was measured in enough blocks for one; needs the report."""
        measured = self.report.measurement if self.report else None
        return measured is not None and sum(bool(block.step_us) for block in measured.blocks) >= LEAST_BLOCKS

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """95% interval of the median, from the report's own blocks; None where they are too few."""
        interval = run_interval(self.block_us)
        return (interval.low / 1000, interval.high / 1000) if interval else None

    @property
    def p90_ms(self) -> float | None:
        """90th percentile of the steps."""
        return fmt.milliseconds(self.p90_us)

    @property
    def peak_rss_bytes(self) -> int | None:
        """Peak memory that the system saw. Absent when emulated: the emulator's own memory would be counted."""
        return self.rss_bytes if self.timing_means_something else None

    @property
    def final_loss(self) -> float | None:
        """Loss that ranks a training run: the loss over the data set afterwards, else the mean of the last steps.

        Needs the report.
        """
        if self.report is None or self.mode != "train" or self.training_outcome == "diverged":
            return None
        if self.report.evaluation_after is not None:
            return self.report.evaluation_after.loss
        last = self.report.losses[-LAST_LOSSES:]
        finite = [loss for loss in last if loss is not None]
        return sum(finite) / len(finite) if finite and len(finite) == len(last) else None

    @property
    def environment(self) -> Mapping[str, str]:
        """Facts that belong beside the number (governor, power mode, kernel); from the report."""
        return self.report.environment if self.report else {}

    @property
    def timing_means_something(self) -> bool:
        """False for emulated and simulated boards: they prove function, never speed."""
        return self.measurement_class in REAL_CLASSES


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A compile job."""

    id: str
    state: str
    model_name: str
    model_digest: str
    model_bytes: int
    plan_name: str
    target: str
    created_at: float
    stage: str = ""
    fraction: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    bundle_digest: str | None = None
    cause: str | None = None
    code: str | None = None
    place: str = ""
    message: str = ""
    hint: str = ""
    plan_text: str = ""
    spec_text: str = ""
    compiler_version: str = ""
    attempts: int = 0

    @property
    def title(self) -> str:
        """`mobilenet_v2 · sparse · x86-64-v4`."""
        return f"{self.model_name} · {self.plan_name} · {self.target}"

    @property
    def seconds(self) -> float | None:
        """Time from the start of the compile to its end."""
        if self.started_at is None or self.finished_at is None:
            return None
        return self.finished_at - self.started_at


@dataclass(frozen=True, slots=True)
class BundleFacts:
    """A built bundle, with the two files of it that the pages read."""

    digest: str
    size_bytes: int
    target: str
    model_name: str
    plan_name: str
    manifest: Mapping[str, object]
    compile_report: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """An enrolled device. `health`: `online`, `busy`, `draining`, `drained`, `offline`, `quarantined` or `removed`."""

    id: str
    name: str
    health: str
    device_class: str
    measurement_class: str
    targets: tuple[str, ...]
    enrolled_at: float
    last_seen_at: float
    told_name: str = ""
    architecture: str = ""
    cpu_model: str = ""
    cores: int = 0
    memory_bytes: int = 0
    features: tuple[str, ...] = ()
    sensors: tuple[str, ...] = ()
    isolation_level: int = 0
    agent_version: str = ""
    agent_updates: str = ""
    """`on`, `off`, `installed` or `trial`; empty: its agent is older than that."""
    agent_digest: str = ""
    runner: str | None = None
    reason: str = ""
    strikes: int = 0
    tags: tuple[str, ...] = ()
    own_datasets: tuple[Mapping[str, Any], ...] = ()
    """Its descriptions of data sets that stay on it (`device_agents.wire.OwnDataset`)."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """An attempt of a run on a device."""

    run_id: str
    number: int
    device_id: str
    device_name: str
    state: str
    created_at: float
    finished_at: float | None = None
    cause: str | None = None
    code: str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class EventFacts:
    """A line of history: of a device's health, or of a job or run."""

    at: float
    kind: str
    message: str
    id: int
