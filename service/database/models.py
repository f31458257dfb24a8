"""Tables. A row is the truth: messages, streams and caches can always be rebuilt from here.

`_at` columns are seconds since 1970-01-01 UTC; digests are `sha256:<hex>`; secrets are kept as hashes only.
`version` counts the changes of a row that people watch (ETag).
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,  # fmt: skip
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from service.identifiers import new_id

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
JOB_STATES = ("queued", "compiling", "succeeded", "failed", "cancelled", "expired")
RUN_STATES = ("queued", "leased", "running", "succeeded", "failed", "cancelled", "expired", "inconclusive")
RUN_MODES = ("profile", "train", "eval", "tune")
ATTEMPT_STATES = ("leased", "running", "succeeded", "failed", "cancelled", "inconclusive", "lost")
DEVICE_STATES = ("active", "quarantined", "removed")
OPEN_JOB_STATES = ("queued", "compiling")
OPEN_RUN_STATES = ("queued", "leased", "running")
LIVE_ATTEMPT_STATES = ("leased", "running")
_LIVE_ATTEMPT = text("state IN ('leased', 'running')")
_CURRENT_JOB = text("state IN ('queued', 'compiling', 'succeeded')")

Digest = String(71)
Id = String(40)
BigId = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """Declarative base with the naming convention that migrations rely on."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy reads it as a plain class attribute)
        float: Double,
        str: String(200),
        dict[str, Any]: JSON,
        list[str]: JSON,
    }


def _one_of(name: str, column: str, values: tuple[str, ...]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(value) for value in values)})", name=name)


class ApiKey(Base):
    """A key of the public API. `role`: `operator` may also manage keys and devices."""

    __tablename__ = "api_keys"
    __table_args__ = (_one_of("role", "role", ("user", "operator")),)

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("key"))
    name: Mapped[str]
    role: Mapped[str] = mapped_column(String(20))
    secret_hash: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[float] = mapped_column(default=time.time)
    revoked_at: Mapped[float | None]


class DashboardLink(Base):
    """A one-time link into the dashboard."""

    __tablename__ = "dashboard_links"

    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    api_key_id: Mapped[str] = mapped_column(Id, ForeignKey("api_keys.id"))
    expires_at: Mapped[float]
    used_at: Mapped[float | None]


class DashboardSession(Base):
    """A browser that opened a one-time link; the cookie holds the secret."""

    __tablename__ = "dashboard_sessions"

    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    api_key_id: Mapped[str] = mapped_column(Id, ForeignKey("api_keys.id"))
    created_at: Mapped[float] = mapped_column(default=time.time)
    expires_at: Mapped[float]


class IdempotencyRecord(Base):
    """The answer already given to one `Idempotency-Key` of one API key."""

    __tablename__ = "idempotency_records"

    api_key_id: Mapped[str] = mapped_column(Id, ForeignKey("api_keys.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))
    status: Mapped[int | None]
    headers: Mapped[dict[str, Any] | None]
    body: Mapped[dict[str, Any] | None]
    expires_at: Mapped[float]


class Outbox(Base):
    """A doorbell to ring after the commit: written with the row it is about, deleted once sent."""

    __tablename__ = "outbox"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    task: Mapped[str] = mapped_column(String(100))
    argument: Mapped[str] = mapped_column(Id)
    created_at: Mapped[float] = mapped_column(default=time.time)


class Event(Base):
    """Something that happened to a job or run (`subject` is its id); streams replay these in order of id."""

    __tablename__ = "events"
    __table_args__ = (Index("ix_events_subject_id", "subject", "id"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    subject: Mapped[str] = mapped_column(Id)
    at: Mapped[float] = mapped_column(default=time.time)
    kind: Mapped[str] = mapped_column(String(20))
    body: Mapped[dict[str, Any]]


class Bundle(Base):
    """A training bundle in the storage. `manifest` and `compile_report` are the files of those names in it."""

    __tablename__ = "bundles"

    digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    id: Mapped[str] = mapped_column(Id, unique=True, default=lambda: new_id("bun"))
    """Sorts by age."""
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    target: Mapped[str] = mapped_column(String(100), index=True)
    model_name: Mapped[str]
    model_digest: Mapped[str] = mapped_column(Digest, index=True)
    plan_name: Mapped[str]
    plan_digest: Mapped[str] = mapped_column(Digest)
    spec_digest: Mapped[str] = mapped_column(Digest)
    required_features: Mapped[list[str]] = mapped_column(JSON, default=list)
    """CPU features that a device must report; from the manifest, for the scheduler reads them often."""
    manifest: Mapped[dict[str, Any]]
    compile_report: Mapped[dict[str, Any]] = mapped_column(JSON, deferred=True)
    created_at: Mapped[float] = mapped_column(default=time.time)


class Job(Base):
    """One compile. At most one job per `request_digest` is open or has succeeded, so repeats find it."""

    __tablename__ = "jobs"
    __table_args__ = (
        _one_of("state", "state", JOB_STATES),
        Index("ix_jobs_state_created_at", "state", "created_at"),
        Index("uq_jobs_current_request", "request_digest", unique=True, sqlite_where=_CURRENT_JOB,
              postgresql_where=_CURRENT_JOB),
    )  # fmt: skip

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("job"))
    api_key_id: Mapped[str] = mapped_column(Id, ForeignKey("api_keys.id"))
    state: Mapped[str] = mapped_column(String(20), default="queued")
    request_digest: Mapped[str] = mapped_column(Digest)
    model_name: Mapped[str]
    model_digest: Mapped[str] = mapped_column(Digest)
    model_bytes: Mapped[int] = mapped_column(BigInteger)
    plan_name: Mapped[str]
    plan_digest: Mapped[str] = mapped_column(Digest)
    plan_json: Mapped[str] = mapped_column(Text)
    spec_digest: Mapped[str] = mapped_column(Digest)
    spec_json: Mapped[str] = mapped_column(Text)
    source_digest: Mapped[str | None] = mapped_column(Digest, ForeignKey("bundles.digest"))
    """The bundle whose kernels are to be measured: the job makes a tuning bundle of it. Null: it compiles the model."""
    tuning_json: Mapped[str] = mapped_column(Text, default="", server_default="")
    """Measured schedules of the target when the job was submitted (`pockfarm.tuning/1`); empty: none."""
    target: Mapped[str] = mapped_column(String(100))
    compiler_version: Mapped[str] = mapped_column(String(100))
    stage: Mapped[str] = mapped_column(String(100), default="")
    fraction: Mapped[float] = mapped_column(default=0.0)
    """Progress of the compile, 0 to 1."""
    bundle_digest: Mapped[str | None] = mapped_column(Digest, ForeignKey("bundles.digest"), index=True)
    cause: Mapped[str | None] = mapped_column(String(20))
    code: Mapped[str | None] = mapped_column(String(100))
    message: Mapped[str] = mapped_column(Text, default="")
    place: Mapped[str] = mapped_column(Text, default="")
    hint: Mapped[str] = mapped_column(Text, default="")
    attempts: Mapped[int] = mapped_column(default=0)
    claim_hash: Mapped[str | None] = mapped_column(String(64))
    """Fencing token of the worker that has it."""
    worker: Mapped[str | None] = mapped_column(String(200))
    """The worker process that has it: who finds that process dead gives the job back at once."""
    lease_expires_at: Mapped[float | None]
    cancel_requested: Mapped[bool] = mapped_column(Boolean, default=False)
    rung_at: Mapped[float] = mapped_column(default=time.time)
    """When its doorbell was last rung."""
    queue_deadline_at: Mapped[float]
    created_at: Mapped[float] = mapped_column(default=time.time)
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    version: Mapped[int] = mapped_column(default=1, onupdate=text("version + 1"))


class Dataset(Base):
    """A checked npz in the storage. `arrays`: name -> {dtype, shape}; the first axis is samples."""

    __tablename__ = "datasets"

    digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    id: Mapped[str] = mapped_column(Id, unique=True, default=lambda: new_id("dat"))
    """Sorts by age."""
    name: Mapped[str]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    samples: Mapped[int] = mapped_column(BigInteger)
    arrays: Mapped[dict[str, Any]]
    created_at: Mapped[float] = mapped_column(default=time.time)


class Device(Base):
    """A board (or this computer, or an emulator) with its agent. Fields as in the agent's own description."""

    __tablename__ = "devices"
    __table_args__ = (_one_of("state", "state", DEVICE_STATES),)

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("dev"))
    name: Mapped[str]
    state: Mapped[str] = mapped_column(String(20), default="active")
    state_reason: Mapped[str] = mapped_column(Text, default="")
    device_class: Mapped[str] = mapped_column(String(100), index=True)
    measurement_class: Mapped[str] = mapped_column(String(20))
    targets: Mapped[list[str]]
    architecture: Mapped[str] = mapped_column(String(40))
    cpu_model: Mapped[str]
    features: Mapped[list[str]]
    cores: Mapped[int]
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    sensors: Mapped[list[str]]
    isolation_level: Mapped[int]
    agent_version: Mapped[str] = mapped_column(String(100))
    runner: Mapped[str | None]
    environment: Mapped[dict[str, Any]]
    public_key: Mapped[str] = mapped_column(String(64), unique=True)
    session: Mapped[str] = mapped_column(String(100))
    """The agent's current start; another one's writes are refused."""
    quarantined_for: Mapped[str] = mapped_column(String(20), default="", server_default="")
    """`strikes` or `clock`; empty: by an operator, or not at all."""
    strikes: Mapped[int] = mapped_column(default=0)
    """Attempts that failed because of the device, without a success between."""
    released_at: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """When an operator last said that it is mended: runs that failed on it before may come back."""
    succeeded_at: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """When an attempt last succeeded on it."""
    created_at: Mapped[float] = mapped_column(default=time.time)
    last_seen_at: Mapped[float] = mapped_column(default=time.time)


class Strike(Base):
    """A run that failed on a device because of the device; gone when the device succeeds, or the run is to blame."""

    __tablename__ = "strikes"
    __table_args__ = (UniqueConstraint("device_id", "run_id"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    device_id: Mapped[str] = mapped_column(Id, ForeignKey("devices.id"))
    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"), index=True)
    code: Mapped[str] = mapped_column(String(100))
    at: Mapped[float] = mapped_column(default=time.time)


class DeviceEvent(Base):
    """A line of a device's health history: enrolled, restarted, struck, quarantined, released, removed."""

    __tablename__ = "device_events"
    __table_args__ = (Index("ix_device_events_device_id_id", "device_id", "id"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    device_id: Mapped[str] = mapped_column(Id, ForeignKey("devices.id"))
    at: Mapped[float] = mapped_column(default=time.time)
    kind: Mapped[str] = mapped_column(String(40))
    message: Mapped[str] = mapped_column(Text, default="")


class EnrolmentToken(Base):
    """A one-time right to enrol a device, perhaps of one class only."""

    __tablename__ = "enrolment_tokens"

    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    device_class: Mapped[str | None] = mapped_column(String(100))
    created_at: Mapped[float] = mapped_column(default=time.time)
    expires_at: Mapped[float]
    device_id: Mapped[str | None] = mapped_column(Id, ForeignKey("devices.id"))
    """The device that used it."""


class DeviceCredential(Base):
    """A short-lived bearer token of one session of one device."""

    __tablename__ = "device_credentials"

    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    device_id: Mapped[str] = mapped_column(Id, ForeignKey("devices.id"), index=True)
    session: Mapped[str] = mapped_column(String(100))
    expires_at: Mapped[float]


class Run(Base):
    """One piece of work for a device. What came back is a `Result`; from `measurement_class` on, its summary."""

    __tablename__ = "runs"
    __table_args__ = (
        _one_of("state", "state", RUN_STATES),
        _one_of("mode", "mode", RUN_MODES),
        Index("ix_runs_state_created_at", "state", "created_at"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("run"))
    api_key_id: Mapped[str] = mapped_column(Id, ForeignKey("api_keys.id"))
    state: Mapped[str] = mapped_column(String(20), default="queued")
    bundle_digest: Mapped[str] = mapped_column(Digest, ForeignKey("bundles.digest"), index=True)
    target: Mapped[str] = mapped_column(String(100))
    """The bundle's."""
    wanted_device_id: Mapped[str | None] = mapped_column(Id, ForeignKey("devices.id"))
    wanted_device_class: Mapped[str | None] = mapped_column(String(100))
    mode: Mapped[str] = mapped_column(String(20))
    steps: Mapped[int]
    warmup: Mapped[int]
    seed: Mapped[int] = mapped_column(BigInteger)
    learning_rate: Mapped[float | None]
    threads: Mapped[int | None]
    dataset_digest: Mapped[str | None] = mapped_column(Digest, ForeignKey("datasets.digest"))
    weights_digest: Mapped[str | None] = mapped_column(Digest)
    """Starting weights; null: the bundle's."""
    tune_s: Mapped[float | None]
    """Seconds of measuring; mode tune only."""

    device_id: Mapped[str | None] = mapped_column(Id, ForeignKey("devices.id"), index=True)
    """The device of the newest attempt."""
    attempts: Mapped[int] = mapped_column(default=0)
    phase: Mapped[str] = mapped_column(String(40), default="")
    steps_done: Mapped[int] = mapped_column(default=0)
    cancel_requested: Mapped[bool] = mapped_column(Boolean, default=False)
    cause: Mapped[str | None] = mapped_column(String(20))
    code: Mapped[str | None] = mapped_column(String(100))
    message: Mapped[str] = mapped_column(Text, default="")
    hint: Mapped[str] = mapped_column(Text, default="")
    queue_deadline_at: Mapped[float]
    created_at: Mapped[float] = mapped_column(default=time.time)
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    version: Mapped[int] = mapped_column(default=1, onupdate=text("version + 1"))

    trained_weights_digest: Mapped[str | None] = mapped_column(Digest, index=True)
    trained_weights_bytes: Mapped[int | None] = mapped_column(BigInteger)
    measurement_class: Mapped[str | None] = mapped_column(String(20))
    verdict: Mapped[str | None] = mapped_column(String(20))
    batch: Mapped[int | None]
    median_us: Mapped[float | None]
    p90_us: Mapped[float | None]
    samples_per_second: Mapped[float | None]
    arena_bytes: Mapped[int | None] = mapped_column(BigInteger)
    peak_rss_bytes: Mapped[int | None] = mapped_column(BigInteger)
    energy_per_step_mj: Mapped[float | None]
    loss_first: Mapped[float | None]
    loss_last: Mapped[float | None]
    accuracy_before: Mapped[float | None]
    accuracy_after: Mapped[float | None]


class Attempt(Base):
    """One device's try at a run, owned by a fencing token. At most one live attempt per run and per device."""

    __tablename__ = "attempts"
    __table_args__ = (
        _one_of("state", "state", ATTEMPT_STATES),
        UniqueConstraint("run_id", "n"),
        Index("uq_attempts_live_device", "device_id", unique=True, sqlite_where=_LIVE_ATTEMPT,
              postgresql_where=_LIVE_ATTEMPT),
        Index("uq_attempts_live_run", "run_id", unique=True, sqlite_where=_LIVE_ATTEMPT,
              postgresql_where=_LIVE_ATTEMPT),
    )  # fmt: skip

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("att"))
    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"))
    n: Mapped[int]
    """From 1."""
    device_id: Mapped[str] = mapped_column(Id, ForeignKey("devices.id"), index=True)
    state: Mapped[str] = mapped_column(String(20), default="leased")
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    lease_expires_at: Mapped[float]
    deadline_at: Mapped[float]
    """End of its transfer and run clocks together."""
    next_sequence: Mapped[int] = mapped_column(default=1)
    """The lowest event that it has not sent."""
    weights_digest: Mapped[str | None] = mapped_column(Digest)
    """Weights that it uploaded."""
    weights_bytes: Mapped[int | None] = mapped_column(BigInteger)
    cause: Mapped[str | None] = mapped_column(String(20))
    code: Mapped[str | None] = mapped_column(String(100))
    message: Mapped[str] = mapped_column(Text, default="")
    spent: Mapped[str | None] = mapped_column(String(20))
    """`failed` or `missed`: its device is not given the run again (see `service/runs/attempts.py`). Null: it may be."""
    created_at: Mapped[float] = mapped_column(default=time.time)
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]


class Result(Base):
    """The signed report of an attempt. `state`: `recorded` counts; `superseded` is evidence only."""

    __tablename__ = "results"
    __table_args__ = (_one_of("state", "state", ("recorded", "superseded")),)

    attempt_id: Mapped[str] = mapped_column(Id, ForeignKey("attempts.id"), primary_key=True)
    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"), index=True)
    state: Mapped[str] = mapped_column(String(20))
    digest: Mapped[str] = mapped_column(Digest)
    """Of the signed payload."""
    envelope: Mapped[str] = mapped_column(Text, deferred=True)
    """The DSSE envelope as received, so that anyone can verify the number later."""
    report: Mapped[dict[str, Any]]
    recorded_at: Mapped[float] = mapped_column(default=time.time)


class SigningKey(Base):
    """A key that the farm signs, or has signed, assignments with; the private half is a file (`service/signing.py`)."""

    __tablename__ = "signing_keys"

    key_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    public_key: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(default=time.time)
    retired_at: Mapped[float | None]


class Tuning(Base):
    """The schedule that won when a kernel was measured on a board; compiles for its target use it.

    `choice` is empty where the default won. `version` is the compiler's identity: another one builds other code.
    """

    __tablename__ = "tunings"
    __table_args__ = (UniqueConstraint("target", "version", "kernel", "threads"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("tun"))
    target: Mapped[str] = mapped_column(String(100))
    version: Mapped[str] = mapped_column(String(64))
    kernel: Mapped[str] = mapped_column(String(64))
    """The kernel's signature."""
    threads: Mapped[int]
    choice: Mapped[str] = mapped_column(String(500))
    default_us: Mapped[float]
    tuned_us: Mapped[float]
    device_class: Mapped[str] = mapped_column(String(100))
    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"))
    """The run that measured it: its report holds every variant's times."""
    measured_at: Mapped[float] = mapped_column(default=time.time)
