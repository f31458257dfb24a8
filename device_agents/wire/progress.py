"""Messages of an agent while it works, and their answers: heartbeats, events, the answer to a report."""

from dataclasses import dataclass
from typing import Literal, Optional

from device_agents.wire.codec import check, check_loss
from device_agents.wire.report import MAX_COUNT, MAX_US, check_count, check_moment
from device_agents.wire.settings import MAX_STEPS

HEARTBEAT_INTERVAL_S = 10.0
MAX_EVENTS_PER_BATCH = 1000
MAX_REPORT_BYTES = 20 << 20
"""Bytes of a report before it is sealed, at most; base64 adds a third, and the farm takes 32 MiB."""


@dataclass(frozen=True)
class HeartbeatRequest:
    """I am alive. Sent each `HEARTBEAT_INTERVAL_S` from a process of its own."""

    phase: str = "run"
    """`download`, `verify`, `run` or `upload`; for people."""
    steps_done: int = 0


@dataclass(frozen=True)
class HeartbeatResponse:
    lease_expires_at: float
    lease_s: float
    cancel: bool = False
    """True: stop (SIGTERM, 10 s, SIGKILL of the group) and report `cancelled`."""


@dataclass(frozen=True)
class Event:
    """Something that happened in an attempt. Which optional fields are set depends on `kind`:

    phase: `message` is the new phase. step: `step`, `loss` (null when not finite), `step_us`. eval: `message` (`before`
    or `after`), `loss`, `accuracy`, `samples`. progress: `fraction` 0..1. log: `message`, a stderr line. checkpoint:
    `step`, of a checkpoint that stays on the board, and `message`.
    """

    sequence: int
    """The number of the event, from 1, without gaps, per attempt."""
    at: float
    kind: Literal["phase", "step", "eval", "progress", "log", "checkpoint"]
    message: Optional[str] = None
    step: Optional[int] = None
    loss: Optional[float] = None
    step_us: Optional[float] = None
    accuracy: Optional[float] = None
    samples: Optional[int] = None
    fraction: Optional[float] = None

    def __post_init__(self) -> None:
        check(0 <= self.sequence <= MAX_COUNT, "sequence", "0 to 2^62")
        check_moment("at", self.at)
        check(self.step is None or 0 <= self.step <= MAX_STEPS, "step", f"0 to {MAX_STEPS:,}")
        check(self.step_us is None or 0 < self.step_us <= MAX_US, "step_us", f"more than 0, at most {MAX_US:g}")
        check_count("samples", self.samples)
        check_loss("loss", self.loss)
        for name in ("accuracy", "fraction"):
            value = getattr(self, name)
            check(value is None or 0 <= value <= 1, name, "0 to 1")


@dataclass(frozen=True)
class EventBatch:
    """Events in order, at most `MAX_EVENTS_PER_BATCH`."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        check(len(self.events) <= MAX_EVENTS_PER_BATCH, "events", f"at most {MAX_EVENTS_PER_BATCH}")


@dataclass(frozen=True)
class EventsResponse:
    next_sequence: int
    """The lowest sequence number that the farm does not have."""


@dataclass(frozen=True)
class ReportResponse:
    state: Literal["recorded", "already-recorded", "superseded"]
    """`superseded`: kept as evidence, but a newer attempt owns the run."""
