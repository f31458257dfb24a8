"""The findings of an attempt: wire types of `device_agents.wire` that hold no impossible value. Standard library only.

The limits here are those of any machine; `plausibility.py` has those of one device.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Optional

from device_agents.wire.codec import SENT_IF_SET, check, check_loss
from device_agents.wire.comparison_report import LEAST_US, Comparison
from device_agents.wire.own_data import OwnData
from device_agents.wire.settings import MAX_STEPS, MAX_THREADS, Mode
from device_agents.wire.sustained_report import Sustained
from device_agents.wire.training_report import Training
from device_agents.wire.tuning_report import Tuning

MeasurementClass = Literal["hardware", "host", "emulated", "simulated"]
REAL_CLASSES: tuple[MeasurementClass, ...] = ("hardware", "host")
"""Whose times say something: of a board, or of a computer of the farm."""
Cause = Literal["model", "compiler", "limits", "device", "infra", "service", "user", "policy"]
OutcomeState = Literal["succeeded", "failed", "cancelled", "inconclusive"]
VerdictKind = Literal["valid", "noisy", "throttled", "disturbed", "drifting", "function"]
FIRST_PROTOCOL, BENCH_PROTOCOL = PROTOCOLS = ("bench-protocol/1", "bench-protocol/2")
"""The protocols by which a run is measured; the last is this release's."""

MAX_US = 1e12
"""The longest time of anything that is timed: eleven days, more than any run may take."""
MAX_COUNT = 1 << 62
"""The largest number of bytes and operations: the largest integer that a database holds."""
MAX_INDEX = 1 << 20
MAX_AT = 95_000_000_000.0
MAX_READING = 1e15
"""The largest reading of a sensor, which may well be broken; its nonsense is shown, not judged."""
MAX_MJ = 1e15
"""The most energy: a megawatt for as long as `MAX_US`."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def check_digest(where: str, digest: Optional[str]) -> None:
    check(digest is None or bool(_DIGEST.fullmatch(digest)), where, "sha256:<64 hex digits>")


def check_time(where: str, us: float) -> None:
    """A time that passed: nothing takes none. NaN fails too."""
    check(LEAST_US <= us <= MAX_US, where, f"more than {LEAST_US:g}, at most {MAX_US:g}")


def check_times(where: str, times_us: tuple[float, ...]) -> None:
    for number, us in enumerate(times_us):
        check_time(f"{where}[{number}]", us)


def check_moment(where: str, at: float) -> None:
    check(0 <= at <= MAX_AT, where, "a time after 1970 and before the year 5000")


def check_count(where: str, count: Optional[int]) -> None:
    check(count is None or 0 <= count <= MAX_COUNT, where, "0 to 2^62")


@dataclass(frozen=True)
class Blob:
    """Something to download or that was uploaded."""

    digest: str
    size_bytes: int
    url: Optional[str] = None
    """A path on the farm, or an absolute URL (presigned storage); the credential is sent to the farm's own origin only.
    Null in reports."""

    def __post_init__(self) -> None:
        check_digest("digest", self.digest)
        check(self.size_bytes >= 0, "size_bytes", "at least 0")


@dataclass(frozen=True)
class Block:
    """A process of a profile run: raw step times after its warm-up, in order."""

    step_us: tuple[float, ...]
    load_us: Optional[float] = None
    """Microseconds from the start of the process to its `start` event (weights read, arena ready)."""
    cold: bool = False
    """True for the first process after the bundle was unpacked."""

    def __post_init__(self) -> None:
        check_times("step_us", self.step_us)
        check(self.load_us is None or 0 <= self.load_us <= MAX_US, "load_us", f"0 to {MAX_US:g}")


@dataclass(frozen=True)
class Measurement:
    """Step times of a run (`bench-protocol/2`, docs/measurement.md; agents of earlier releases say `/1`). Statistics
    are over steps after the warm-up."""

    batch: int
    step_us: tuple[float, ...]
    """The times of all steps as raw samples, block after block."""
    blocks: tuple[Block, ...]
    median_us: float
    """Median of block medians."""
    interval_low_us: Optional[float]
    interval_high_us: Optional[float]
    """95% interval around it (`device_agents/figures/one_run.py`); null below five blocks."""
    p90_us: float
    p99_us: float
    mean_us: float
    samples_per_second: float
    """Samples of all measured steps divided by all their time: batch / mean."""
    cv_within: float
    """Median over blocks of (standard deviation / mean) in the block."""
    cv_between: float
    """Standard deviation / mean of block medians; 0 with one block."""
    warmup_steps: int
    """Warm-up steps of the process that had most of them."""
    threads: int
    protocol: str = FIRST_PROTOCOL

    def __post_init__(self) -> None:
        check(1 <= self.batch <= MAX_COUNT, "batch", "at least 1")
        check_times("step_us", self.step_us)
        for name in ("median_us", "interval_low_us", "interval_high_us", "p90_us", "p99_us", "mean_us"):
            us = getattr(self, name)
            check(us is not None or name.startswith("interval"), name, "a time")
            if us is not None:
                check_time(name, us)
        check(
            (self.interval_low_us is None) == (self.interval_high_us is None), "interval_low_us", "null with the other"
        )
        check(self.protocol in PROTOCOLS, "protocol", f"one of {', '.join(PROTOCOLS)}")
        for name in ("samples_per_second", "cv_within", "cv_between"):
            check(getattr(self, name) >= 0, name, "at least 0")
        check(0 <= self.warmup_steps <= MAX_STEPS, "warmup_steps", f"0 to {MAX_STEPS:,}")
        check(0 <= self.threads <= MAX_THREADS, "threads", f"0 to {MAX_THREADS:,}")


@dataclass(frozen=True)
class KernelTime:
    """A row of the per-kernel table: the median time of one call."""

    index: int
    name: str
    phase: str
    """`forward`, `backward` or `update`."""
    us: float
    flops: int
    bytes_read: int
    bytes_written: int

    def __post_init__(self) -> None:
        check(0 <= self.index < MAX_INDEX, "index", f"0 to {MAX_INDEX - 1:,}")
        check_time("us", self.us)
        for name in ("flops", "bytes_read", "bytes_written"):
            check_count(name, getattr(self, name))


@dataclass(frozen=True)
class Evaluation:
    samples: int
    loss: Optional[float]
    """Mean over samples; null when not finite."""
    accuracy: Optional[float] = None
    """0..1; null unless the loss is a cross-entropy."""

    def __post_init__(self) -> None:
        check(1 <= self.samples <= MAX_COUNT, "samples", "at least 1")
        check_loss("loss", self.loss)
        check(self.accuracy is None or 0 <= self.accuracy <= 1, "accuracy", "0 to 1")


@dataclass(frozen=True)
class Memory:
    """Memory as the binary planned it, and as the system saw it."""

    arena_bytes: Optional[int] = None
    weights_bytes: Optional[int] = None
    optimizer_bytes: Optional[int] = None
    peak_rss_bytes: Optional[int] = None
    """`VmHWM` of the binary, largest over its processes."""
    cgroup_peak_bytes: Optional[int] = None
    """`memory.peak` of its cgroup (counts page cache); null without one."""

    def __post_init__(self) -> None:
        for name in ("arena_bytes", "weights_bytes", "optimizer_bytes", "peak_rss_bytes", "cgroup_peak_bytes"):
            check_count(name, getattr(self, name))


@dataclass(frozen=True)
class Energy:
    """Energy of the measured part of a run."""

    total_mj: float
    per_step_mj: float
    sensor: str
    """The counter that it was read from: `rapl package-0`, `ina3221 VDD_IN`, `pmic`; of several counters joined by ` +
    `.
    """

    def __post_init__(self) -> None:
        for name in ("total_mj", "per_step_mj"):
            check(0 <= getattr(self, name) <= MAX_MJ, name, f"0 to {MAX_MJ:g}")


@dataclass(frozen=True)
class DeviceState:
    """A sample of the board's state. Null: no such sensor."""

    at: float
    temperature_c: Optional[float] = None
    """The hottest CPU zone."""
    frequency_hz: Optional[float] = None
    """Mean of the cores' current frequency."""
    throttled: Optional[bool] = None
    """True while the board says that it holds its speed back."""
    power_mw: Optional[float] = None
    load: Optional[float] = None
    """CPU time of *other* processes on the board, in cores (0.5 = half a core), since the sample before."""

    def __post_init__(self) -> None:
        check_moment("at", self.at)
        for name in ("temperature_c", "frequency_hz", "power_mw", "load"):
            value = getattr(self, name)
            check(value is None or abs(value) <= MAX_READING, name, f"at most {MAX_READING:g}")


@dataclass(frozen=True)
class Verdict:
    """Whether the measurement counts. Only `valid` ranks by default; `function` says that the step works, no more."""

    kind: VerdictKind
    rule: str
    """The rule that fired, with its figures; or, for valid, what was checked."""


@dataclass(frozen=True)
class Outcome:
    """The end of an attempt. `cause` and `code` are public contract; null for success."""

    state: OutcomeState
    cause: Optional[Cause] = None
    code: Optional[str] = None
    """Stable dotted identifier: `data.shape`, `envelope.signature`, `bundle.unsafe`, `limits.time`, `step.killed`..."""
    message: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Report:
    """The report of one attempt with all its findings, signed by the device. Also sent when it failed, with what there
    is.
    """

    run_id: str
    attempt: int
    device_id: str
    bundle_digest: str
    mode: Mode
    outcome: Outcome
    measurement_class: MeasurementClass
    started_at: float
    finished_at: float
    transfer_s: float
    run_s: float
    """Wall-clock time of the binary's processes."""
    measurement: Optional[Measurement] = None
    """Measurement of profile, and of train (its steps, as one block), once a step was timed; null of other modes."""
    kernels: tuple[KernelTime, ...] = ()
    losses: tuple[Optional[float], ...] = ()
    """Loss of each step in order; null where not finite. Of a profile: its first block (each starts afresh)."""
    evaluation_before: Optional[Evaluation] = None
    evaluation_after: Optional[Evaluation] = None
    """Eval mode fills `evaluation_before` only."""
    memory: Memory = field(default_factory=Memory)
    energy: Optional[Energy] = None
    """Null without a sensor, and always when emulated."""
    device_states: tuple[DeviceState, ...] = ()
    verdict: Optional[Verdict] = None
    """Null when there is no measurement."""
    weights: Optional[Blob] = None
    """Trained weights that were uploaded before this report."""
    isolation_level: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    schema: str = "pockfarm.report/1"
    tuning: Optional[Tuning] = None
    """Mode tune only."""
    training: Optional[Training] = None
    """Mode train only, from the first step on."""
    own_limits: Optional[Mapping[str, float]] = field(default=None, metadata=SENT_IF_SET)
    """Limits that the board's owner set below the signed ones, by their names in `Limits`. Null: none."""
    own_data: Optional[OwnData] = field(default=None, metadata=SENT_IF_SET)
    """The device's own data set that was used, if one was: it stayed there."""
    comparison: Optional[Comparison] = field(default=None, metadata=SENT_IF_SET)
    """Mode compare only, from the first whole round on."""
    sustained: Optional[Sustained] = field(default=None, metadata=SENT_IF_SET)
    """Mode sustained only, from the first whole window on."""
    energy_notes: Optional[tuple[str, ...]] = field(default=None, metadata=SENT_IF_SET)
    """Gaps in the energy, corrected units, or why there is no energy. Null: no note."""

    def __post_init__(self) -> None:
        check(self.attempt >= 1, "attempt", "at least 1")
        check_moment("started_at", self.started_at)
        check_moment("finished_at", self.finished_at)
        for name in ("transfer_s", "run_s"):
            check(0 <= getattr(self, name) <= MAX_US * 1e-6, name, f"0 to {MAX_US * 1e-6:,.0f}")
        check(len(self.losses) <= MAX_STEPS, "losses", f"at most {MAX_STEPS:,}")
        for loss in self.losses:
            check_loss("losses", loss)
        if self.training is not None:
            check(self.mode == "train", "training", "absent but of mode train")
            check(self.training.steps == len(self.losses), "training.steps", f"{len(self.losses):,}, as many as losses")
        check(self.comparison is None or self.mode == "compare", "comparison", "absent but of mode compare")
        check(self.sustained is None or self.mode == "sustained", "sustained", "absent but of mode sustained")
        check(0 <= self.isolation_level <= 4, "isolation_level", "0 to 4")


OF_REAL_BOARDS = ("measurement", "kernels", "energy", "tuning", "comparison", "sustained")
"""Fields of a report whose figures come from a clock or a meter: of a played board they say nothing."""


def without_played_times(report: Report) -> Report:
    """The report as a result: of an emulated or simulated board without times, energy and peak memory."""
    if report.measurement_class in REAL_CLASSES:
        return report
    memory = replace(report.memory, peak_rss_bytes=None)  # the emulator's own memory would be counted
    empty: dict[str, Any] = {part.name: part.default for part in fields(report) if part.name in OF_REAL_BOARDS}
    return replace(report, memory=memory, **empty)
