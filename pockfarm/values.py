"""The farm's answers in Python: one frozen dataclass per kind, with the whole answer in `raw`.

Units are in the names; times are RFC 3339 text in UTC as the farm writes them. Unknown fields stay in `raw`, so that a
newer farm does not break an older client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Json = Mapping[str, object]
OPEN_STATES = frozenset({"queued", "compiling", "leased", "running"})
JOB_STATES = ("queued", "compiling", "succeeded", "failed", "cancelled", "expired")
RUN_STATES = ("queued", "leased", "running", "succeeded", "failed", "cancelled", "expired", "inconclusive")
DEVICE_STATES = ("active", "quarantined", "removed")


@dataclass(frozen=True)
class Ending:
    """Why a job or run ended without success. `cause` is the public family: model, compiler, limits, device..."""

    cause: str
    code: str
    message: str
    where: str = ""
    hint: str = ""

    @property
    def place(self) -> str:
        """The beginning of the text, which names the place unless the message does; empty without one."""
        return f"{self.where}: " if self.where and self.where not in self.message else ""

    def __str__(self) -> str:
        hint = f"\n  {self.hint}" if self.hint else ""
        return f"{self.place}{self.message} [{self.cause}: {self.code}]{hint}"


@dataclass(frozen=True)
class CompileWarning:
    """A warning of the compiler or the farm: the request was carried out, but perhaps it is not what was meant."""

    code: str
    where: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        hint = f"\n  {self.hint}" if self.hint else ""
        return f"{where}{self.message} [{self.code}]{hint}"


@dataclass(frozen=True)
class Job:
    """A compile."""

    id: str
    state: str
    """queued, compiling, succeeded, failed, cancelled or expired."""
    stage: str
    fraction: float
    model_name: str
    plan_name: str
    target: str
    bundle_digest: str | None
    ending: Ending | None
    raw: Json = field(repr=False, default_factory=dict)
    warnings: tuple[CompileWarning, ...] = ()
    """Warnings of the bundle; empty until there is one."""

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES


@dataclass(frozen=True)
class Bundle:
    """The farm's record of a bundle; `summary` has its memory plan, inputs, outputs and needed CPU features."""

    digest: str
    size_bytes: int
    target: str
    model_name: str
    plan_name: str
    summary: Json = field(repr=False, default_factory=dict)
    raw: Json = field(repr=False, default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A piece of work on a device."""

    id: str
    state: str
    """queued, leased, running, succeeded, failed, cancelled, expired or inconclusive."""
    mode: str
    phase: str
    steps: int
    steps_done: int
    bundle_digest: str
    model_name: str
    plan_name: str
    target: str
    device_id: str | None
    attempts: int
    trained_weights_digest: str | None
    """The weights that it left, if any. A run of mode train may succeed without: its training diverged."""
    ending: Ending | None
    raw: Json = field(repr=False, default_factory=dict)
    warnings: tuple[CompileWarning, ...] = ()
    """Warnings that the farm gave when it accepted the run: that no device can take it now, and why."""

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES


@dataclass(frozen=True)
class Device:
    """A board, this computer, or an emulator, with its agent."""

    id: str
    name: str
    state: str
    device_class: str
    measurement_class: str
    targets: tuple[str, ...]
    last_seen_at: str
    raw: Json = field(repr=False, default_factory=dict)


@dataclass(frozen=True)
class Dataset:
    """A checked npz on the farm."""

    digest: str
    name: str
    samples: int
    raw: Json = field(repr=False, default_factory=dict)
    warnings: tuple[CompileWarning, ...] = ()
    """Warnings that the farm gave when it was sent: that another one has its name, or that it has another name."""


def path_of(run_or_job_id: str) -> str:
    """Returns the path of the run or job in the API."""
    return f"/{'jobs' if run_or_job_id.startswith('job_') else 'runs'}/{run_or_job_id}"


def text(body: Json, name: str) -> str:
    value = body.get(name)
    return value if isinstance(value, str) else ""


def optional_text(body: Json, name: str) -> str | None:
    return text(body, name) or None


def number(body: Json, name: str) -> float:
    value = body.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0


def optional_number(body: Json | None, name: str) -> float | None:
    value = (body or {}).get(name)
    return float(value) if isinstance(value, (int, float)) else None


def part(body: Json, name: str) -> Json:
    """A nested object; empty if it is null or absent."""
    value = body.get(name)
    return value if isinstance(value, Mapping) else {}


def parts(body: Json, name: str) -> tuple[Json, ...]:
    """A list of nested objects."""
    value = body.get(name)
    return tuple(item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else ()


def ending_of(body: Json) -> Ending | None:
    table = part(body, "ending")
    if not table:
        return None
    return Ending(*(text(table, name) for name in ("cause", "code", "message", "where", "hint")))


def job_of(body: Json) -> Job:
    return Job(
        id=text(body, "id"),
        state=text(body, "state"),
        stage=text(body, "stage"),
        fraction=number(body, "fraction"),
        model_name=text(part(body, "model"), "name"),
        plan_name=text(part(body, "plan"), "name"),
        target=text(body, "target"),
        bundle_digest=optional_text(body, "bundle_digest"),
        ending=ending_of(body),
        raw=body,
        warnings=warnings_of(body),
    )


def warning_of(body: Json) -> CompileWarning:
    return CompileWarning(*(text(body, name) for name in ("code", "where", "message", "hint")))


def warnings_of(body: Json) -> tuple[CompileWarning, ...]:
    """Those of an answer; empty if it has none."""
    return tuple(warning_of(warning) for warning in parts(body, "warnings"))


def bundle_of(body: Json) -> Bundle:
    return Bundle(
        digest=text(body, "digest"),
        size_bytes=int(number(body, "size_bytes")),
        target=text(body, "target"),
        model_name=text(body, "model_name"),
        plan_name=text(body, "plan_name"),
        summary=part(body, "summary"),
        raw=body,
    )


def run_of(body: Json) -> Run:
    return Run(
        id=text(body, "id"),
        state=text(body, "state"),
        mode=text(body, "mode"),
        phase=text(body, "phase"),
        steps=int(number(body, "steps")),
        steps_done=int(number(body, "steps_done")),
        bundle_digest=text(body, "bundle_digest"),
        model_name=text(body, "model_name"),
        plan_name=text(body, "plan_name"),
        target=text(body, "target"),
        device_id=optional_text(body, "device_id"),
        attempts=int(number(body, "attempts")),
        trained_weights_digest=optional_text(body, "trained_weights_digest"),
        ending=ending_of(body),
        raw=body,
        warnings=warnings_of(body),
    )


def device_of(body: Json) -> Device:
    targets = body.get("targets")
    return Device(
        id=text(body, "id"),
        name=text(body, "name"),
        state=text(body, "state"),
        device_class=text(body, "device_class"),
        measurement_class=text(body, "measurement_class"),
        targets=tuple(str(target) for target in targets) if isinstance(targets, list) else (),
        last_seen_at=text(body, "last_seen_at"),
        raw=body,
    )


def dataset_of(body: Json) -> Dataset:
    return Dataset(text(body, "digest"), text(body, "name"), int(number(body, "samples")), body, warnings_of(body))
