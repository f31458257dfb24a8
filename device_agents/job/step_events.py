"""The events of a training binary as typed values. The binary is not trusted: a line is one of these, or refused.

The events are those of `docs/contracts.md`; fields that are not listed here are passed over, other events are refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Optional, Union

from device_agents.wire.codec import ProtocolError, check, from_json, parse
from device_agents.wire.comparison_report import LEAST_US, MAX_US
from device_agents.wire.log_lines import visible
from device_agents.wire.report import check_count, check_time, check_times
from device_agents.wire.settings import MAX_STEPS, MAX_THREADS
from device_agents.wire.training_report import TrainingOutcome

MAX_PROCESS_STEPS = 1_000_000_000
"""The most steps that one process of a binary may be asked for. The number that it was asked for is known to its
caller.
"""
MAX_LINE_BYTES = 1 << 16
"""Bytes of an event, at most; the longest that a binary of ours writes, the text of an error, has some kilobytes."""


@dataclass(frozen=True)
class Start:
    """Weights are read, the arena is ready. A tuning binary has no sizes."""

    threads: int
    arena_bytes: Optional[int] = None
    weights_bytes: Optional[int] = None
    optimizer_bytes: Optional[int] = None

    def __post_init__(self) -> None:
        check(1 <= self.threads <= MAX_THREADS, "threads", f"1 to {MAX_THREADS:,}")
        for name in ("arena_bytes", "weights_bytes", "optimizer_bytes"):
            check_count(name, getattr(self, name))


@dataclass(frozen=True)
class WeightsTaken:
    """The part of a weights file that the build has a place for, if not all of it; for people who read the log."""

    taken: int
    parameters: int
    ignored: int


@dataclass(frozen=True)
class StepDone:
    """A step of train or profile is done."""

    step: int
    loss: Optional[float]
    us: float
    learning_rate: Optional[float] = None

    def __post_init__(self) -> None:
        if 1 <= self.step <= MAX_PROCESS_STEPS and LEAST_US <= self.us <= MAX_US and self.learning_rate is None:
            return  # the words for what is wrong take longer to write than all else of a step
        check(1 <= self.step <= MAX_PROCESS_STEPS, "step", f"1 to {MAX_PROCESS_STEPS:,}")
        check_time("us", self.us)
        check(self.learning_rate is None or self.learning_rate >= 0, "learning_rate", "at least 0")


@dataclass(frozen=True)
class Kernel:
    """The median time of one call of the step; `report.KernelTime` has the limits."""

    index: int
    name: str
    phase: str
    us: float
    flops: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True)
class Overhead:
    """The cost of the runtime itself; for people who read the log."""

    share: Optional[float] = None


@dataclass(frozen=True)
class Evaluated:
    """The scores of a whole data set; `report.Evaluation` has the limits."""

    samples: int
    loss: Optional[float]
    accuracy: Optional[float] = None


@dataclass(frozen=True)
class Validated:
    """The scores of what is held out, between training steps; `training_report.Validation` has the limits."""

    step: int
    samples: int
    loss: float
    accuracy: Optional[float] = None


@dataclass(frozen=True)
class CheckpointLeft:
    """A checkpoint that another process continues from is in place."""

    step: int
    us: float

    def __post_init__(self) -> None:
        check(1 <= self.step <= MAX_STEPS, "step", f"1 to {MAX_STEPS:,}")
        check_time("us", self.us)


@dataclass(frozen=True)
class Resumed:
    """The binary goes on after so many steps of the run."""

    step: int


@dataclass(frozen=True)
class Variant:
    """Quartiles of a kernel's times in one schedule, and of their ratios to the default's."""

    trial: int
    variant: int
    rounds: int
    us: tuple[float, ...]
    ratio: tuple[float, ...]
    difference: Optional[float]

    def __post_init__(self) -> None:
        check(self.trial >= 0, "trial", "at least 0")
        check(self.variant >= 0, "variant", "at least 0")
        for name in ("us", "ratio"):
            quartiles = getattr(self, name)
            check_times(name, quartiles)
            check(len(quartiles) == 3 and list(quartiles) == sorted(quartiles), name, "three quartiles in order")


@dataclass(frozen=True)
class Done:
    """The command is done."""

    peak_rss_bytes: Optional[int] = None
    outcome: Optional[TrainingOutcome] = None
    """The outcome of `train`, with the steps of the best validation and of what was saved."""
    best_step: Optional[int] = None
    saved_step: Optional[int] = None

    def __post_init__(self) -> None:
        check_count("peak_rss_bytes", self.peak_rss_bytes)
        check(self.outcome != "diverged", "outcome", "completed, stopped_early or stopped: to diverge is an error")


@dataclass(frozen=True)
class Halted(Done):
    """The command ended early because of SIGTERM (the event `stopped`)."""


@dataclass(frozen=True)
class Failed:
    """The binary says why it cannot go on (the event `error`)."""

    cause: str
    code: str
    message: str
    step: Optional[int] = None
    """The step of `train.diverged`."""


StepEvent = Union[
    Start,
    WeightsTaken,
    Resumed,
    StepDone,
    Kernel,
    Overhead,
    Evaluated,
    Validated,
    CheckpointLeft,
    Variant,
    Done,
    Halted,
    Failed,
]

EVENTS: Mapping[str, Any] = {
    "start": Start,
    "weights": WeightsTaken,
    "step": StepDone,
    "kernel": Kernel,
    "overhead": Overhead,
    "eval": Evaluated,
    "validation": Validated,
    "checkpoint": CheckpointLeft,
    "resume": Resumed,
    "variant": Variant,
    "done": Done,
    "stopped": Halted,
    "error": Failed,
}

_NUMBER = rb"-?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,20})?(?:e[+-]?[0-9]{1,2})?"
_STEP = re.compile(rb'\{"event":"step","step":([1-9][0-9]{0,9}),"loss":(null|%s),"us":(%s)\}' % (_NUMBER, _NUMBER))
"""A step event as binaries write it; another spelling is read as any event."""


def read_event(line: bytes) -> StepEvent:
    """Reads a line of a binary's standard output, its words made visible.

    Raises: `ProtocolError` saying what is wrong with it.
    """
    match = _STEP.fullmatch(line)
    if match:  # tens of thousands a second: what is seen at a glance is not parsed as any JSON
        step, loss, us = match.groups()
        return StepDone(int(step), None if loss == b"null" else float(loss), float(us))
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError("", f"{len(line):,} bytes in one line, the limit is {MAX_LINE_BYTES:,}")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError("", f"not UTF-8: {error.reason} at byte {error.start}") from None
    value = parse(text)
    name = value.get("event") if isinstance(value, dict) else None
    kind = EVENTS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ProtocolError("", f"an event that is not known: {name!r:.60}" if name else "not an event")
    field_names = {field.name for field in fields(kind)}
    known_fields = {
        key: visible(item) if isinstance(item, str) else item for key, item in value.items() if key in field_names
    }
    event: StepEvent = from_json(kind, known_fields, str(name))
    return event
