"""What the pages know of a run, a job and a device: plain values, filled from the rows by `queries.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from device_agents.protocol import Report
from service.dashboard import format as fmt

LAST_LOSSES = 10


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run and, once an attempt has reported, its report."""

    id: str
    state: str
    mode: str
    model_name: str
    model_digest: str
    plan_name: str
    target: str
    bundle_digest: str
    created_at: datetime
    steps: int = 0
    device_id: str | None = None
    device_name: str | None = None
    device_class: str | None = None
    dataset_digest: str | None = None
    start_weights_digest: str | None = None
    batch: int | None = None
    planned_arena_bytes: int | None = None
    bundle_bytes: int | None = None
    seed: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cause: str | None = None
    code: str | None = None
    message: str = ""
    hint: str = ""
    measurement_class: str | None = None
    report: Report | None = None

    @property
    def title(self) -> str:
        """`mobilenet_v2 · sparse · x86-64-v4`."""
        return f"{self.model_name} · {self.plan_name} · {self.target}"

    @property
    def verdict(self) -> str | None:
        """Whether the measurement counts; None when nothing was measured."""
        return self.report.verdict.kind if self.report and self.report.verdict else None

    @property
    def median_ms(self) -> float | None:
        """Median of block medians."""
        return fmt.milliseconds(self.report.measurement.median_us) if self.report and self.report.measurement else None

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """95% interval of the median."""
        if self.report is None or self.report.measurement is None:
            return None
        measured = self.report.measurement
        return measured.interval_low_us / 1000, measured.interval_high_us / 1000

    @property
    def p90_ms(self) -> float | None:
        """90th percentile of the steps."""
        return fmt.milliseconds(self.report.measurement.p90_us) if self.report and self.report.measurement else None

    @property
    def samples_per_second(self) -> float | None:
        """Batch over median."""
        return self.report.measurement.samples_per_second if self.report and self.report.measurement else None

    @property
    def threads(self) -> int | None:
        """Threads of the measured steps."""
        return self.report.measurement.threads if self.report and self.report.measurement else None

    @property
    def arena_bytes(self) -> int | None:
        """The arena that the binary used, or the planned one before it has run."""
        used = self.report.memory.arena_bytes if self.report else None
        return used if used is not None else self.planned_arena_bytes

    @property
    def peak_rss_bytes(self) -> int | None:
        """What the system saw. Absent when emulated: the emulator's own memory would be counted."""
        if self.report is None or self.report.measurement_class == "emulated":
            return None
        return self.report.memory.peak_rss_bytes

    @property
    def energy_mj(self) -> float | None:
        """Energy of one step; None without a sensor."""
        return self.report.energy.per_step_mj if self.report and self.report.energy else None

    @property
    def loss_first(self) -> float | None:
        """Loss of the first step."""
        return self.report.losses[0] if self.report and self.report.losses else None

    @property
    def loss_last(self) -> float | None:
        """Loss of the last step."""
        return self.report.losses[-1] if self.report and self.report.losses else None

    @property
    def final_loss(self) -> float | None:
        """What a training run is ranked by: the loss over the data set afterwards, else the mean of the last steps."""
        if self.report is None or self.mode != "train":
            return None
        if self.report.evaluation_after is not None:
            return self.report.evaluation_after.loss
        last = self.report.losses[-LAST_LOSSES:]
        finite = [loss for loss in last if loss is not None]
        return sum(finite) / len(finite) if finite and len(finite) == len(last) else None

    @property
    def accuracy(self) -> tuple[float | None, float | None]:
        """Accuracy before and after."""
        if self.report is None:
            return None, None
        before, after = self.report.evaluation_before, self.report.evaluation_after
        return before.accuracy if before else None, after.accuracy if after else None

    @property
    def environment(self) -> Mapping[str, str]:
        """Facts that belong beside the number (governor, power mode, kernel)."""
        return self.report.environment if self.report else {}

    @property
    def timing_means_something(self) -> bool:
        """False for emulated and simulated boards: they prove function, never speed."""
        return self.measurement_class in ("hardware", "host")


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One compile job."""

    id: str
    state: str
    model_name: str
    model_digest: str
    plan_name: str
    target: str
    created_at: datetime
    stage: str = ""
    fraction: float = 0.0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    bundle_digest: str | None = None
    bundle_bytes: int | None = None
    reused: bool = False
    cause: str | None = None
    code: str | None = None
    where: str = ""
    message: str = ""
    hint: str = ""
    plan_text: str = ""
    spec_text: str = ""

    @property
    def title(self) -> str:
        """`mobilenet_v2 · sparse · x86-64-v4`."""
        return f"{self.model_name} · {self.plan_name} · {self.target}"


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One enrolled device. `health`: `online`, `busy`, `offline`, `quarantined`."""

    id: str
    name: str
    health: str
    device_class: str
    measurement_class: str
    targets: tuple[str, ...]
    enrolled_at: datetime
    last_seen_at: datetime | None = None
    architecture: str = ""
    cpu_model: str = ""
    cores: int = 0
    memory_bytes: int = 0
    features: tuple[str, ...] = ()
    sensors: tuple[str, ...] = ()
    isolation_level: int = 0
    agent_version: str = ""
    runner: str | None = None
    reason: str = ""
    strikes: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """One attempt of a run on a device."""

    run_id: str
    number: int
    device_id: str
    device_name: str
    state: str
    started_at: datetime
    finished_at: datetime | None = None
    cause: str | None = None
    code: str | None = None
    message: str = ""
