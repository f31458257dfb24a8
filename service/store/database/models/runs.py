"""Runs, their attempts, and what came back."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    ColumnElement,
    Dialect,
    ForeignKey,
    Index,
    SQLColumnExpression,
    String,
    Text,
    TextClause,
    TypeDecorator,
    UniqueConstraint,
    and_,
    case,
    false,
    literal_column,
    text,
    type_coerce,
)
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import Mapped, mapped_column, relationship

from device_agents.wire import LocalMode, ProtocolError, RunSettings, from_json, to_json
from service.base.identifiers import new_id
from service.store.database.models.base import Base, Digest, Id, OfOrganisation, OfRun, one_of
from service.store.database.models.tenants import HOME

RUN_STATES = ("queued", "leased", "running", "succeeded", "failed", "cancelled", "expired", "inconclusive")
ATTEMPT_STATES = ("leased", "running", "succeeded", "failed", "cancelled", "inconclusive", "lost")
OPEN_RUN_STATES = ("queued", "leased", "running")
LIVE_ATTEMPT_STATES = ("leased", "running")
_LIVE_ATTEMPT = text("state IN ('leased', 'running')")
_QUEUED_RUN = text("state = 'queued'")
_UNENTERED_RUN = text("state = 'queued' AND rarest_wish IS NULL")
_MEASURED_RUN = text("median_us IS NOT NULL")
_TAGGED_RUN = text("tags <> ''")


def _where(condition: TextClause) -> dict[str, Any]:
    """Returns an index of these rows only, on both databases."""
    return {"sqlite_where": condition, "postgresql_where": condition}


def _queue_index(name: str, column: str, *others: str) -> Index:
    """Returns an index of queued runs only, by the column's value in them (`while_queued`)."""
    first = f"(CASE WHEN state = 'queued' THEN {column} END)"
    return Index(name, text(first), *others, **_where(text(f"{first} IS NOT NULL")))


class RunSettingsColumn(TypeDecorator[RunSettings]):
    """`RunSettings` as one JSON value, written in full: a default that changes later does not change old runs.

    Of a row, settings that this version does not know are passed over, and those that it lacks have their default.
    """

    impl = JSON
    cache_ok = True

    def process_bind_param(self, value: RunSettings | None, dialect: Dialect) -> Any:
        return None if value is None else to_json(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> RunSettings | None:
        return None if value is None else settings_of_row(value)


def settings_of_row(value: Mapping[str, Any], kind: type[RunSettings] = RunSettings) -> RunSettings:
    """Returns the settings in a row's JSON. Raises: ValueError, for a row that no version has written."""
    return _settings(json.dumps(value), kind)  # type: ignore[arg-type]  # a class is hashable, whatever its objects are


@functools.lru_cache(maxsize=4096)  # a list reads thousands of rows, most of which say the same
def _settings(text: str, kind: type[RunSettings]) -> RunSettings:
    value = json.loads(text)
    fields = {field.name for field in dataclasses.fields(kind)}
    try:
        return from_json(kind, {name: item for name, item in value.items() if name in fields}, "settings")
    except ProtocolError as problem:  # ours to answer for, not an agent's
        raise ValueError(f"a run's row holds settings that no version has written: {problem}") from problem


def while_queued(state: SQLColumnExpression[str], column: SQLColumnExpression[Any]) -> ColumnElement[Any]:
    """Returns the first expression of an index of the queue: the column's value while the run is queued, else null.

    A search by it has one index to go by, since no other holds it: a database that thinks that nothing is queued (its
    statistics are older than the queue) does not take another one, with an entry for each run that has left the queue.
    """
    return case((state == literal_column("'queued'"), column))


class Run(OfOrganisation, Base):
    """A piece of work for a device. What came back is a `Result`; from `measurement_class` on, its summary."""

    __tablename__ = "runs"
    __table_args__ = (
        one_of("state", "state", RUN_STATES),
        Index("ix_runs_state_created_at", "state", "created_at"),
        Index("ix_runs_organisation_id_id", "organisation_id", "id"),
        Index("ix_runs_device_id_id", "device_id", "id"),
        Index("ix_runs_measured", "organisation_id", "state", "id", **_where(_MEASURED_RUN)),
        Index("ix_runs_tagged", "organisation_id", "id", **_where(_TAGGED_RUN)),
        Index("ix_runs_measured_on", "device_id", "verdict", "id", **_where(_MEASURED_RUN)),
        _queue_index("ix_runs_queued_in", "lane_id", "created_at", "id", "asked_s"),
        _queue_index("ix_runs_queued_under", "rarest_wish", "lane_id"),
        Index(
            "ix_runs_canary",
            "organisation_id",
            "state",
            sqlite_where=text("is_canary = 1"),
            postgresql_where=text("is_canary"),
        ),
        Index("ix_runs_unentered", "created_at", "id", **_where(_UNENTERED_RUN)),
        Index("ix_runs_queue_deadline", "queue_deadline_at", **_where(_QUEUED_RUN)),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("run"))
    organisation_id: Mapped[str] = mapped_column(Id, default=HOME, server_default=HOME)
    api_key_id: Mapped[str] = mapped_column(Id, ForeignKey("api_keys.id"))
    state: Mapped[str] = mapped_column(String(20), default="queued")
    bundle_digest: Mapped[str] = mapped_column(Digest, ForeignKey("bundles.digest"), index=True)
    target: Mapped[str] = mapped_column(String(100))
    """The bundle's."""
    wanted_device_id: Mapped[str | None] = mapped_column(Id, ForeignKey("devices.id"))
    wanted_device_class: Mapped[str | None] = mapped_column(String(100))
    wants: Mapped[str] = mapped_column(Text, default="", server_default="")
    """Further offers that a device has to make, a line for each (`service/devices/wants.py`)."""
    own_data: Mapped[str | None] = mapped_column(String(63))
    """Name of a local data set of the device, used in place of an uploaded one."""
    own_data_digest: Mapped[str | None] = mapped_column(Digest)
    """Digest that the local data set must have, if the request named one."""
    group_id: Mapped[str | None] = mapped_column(Id, ForeignKey("run_groups.id"), index=True)
    """The request for many devices that it is a part of."""
    settings: Mapped[RunSettings] = mapped_column(RunSettingsColumn)
    """Settings of its user; lists filter by the mode in them."""
    dataset_digest: Mapped[str | None] = mapped_column(Digest, ForeignKey("datasets.digest"), index=True)
    validation_dataset_digest: Mapped[str | None] = mapped_column(Digest, ForeignKey("datasets.digest"), index=True)
    """Data set that training is validated on; null: a share of the data set, or nothing."""
    weights_digest: Mapped[str | None] = mapped_column(Digest, index=True)
    """Starting weights; null: the bundle's."""

    name: Mapped[str] = mapped_column(String(100), default="", server_default="")
    """Name that people gave it; empty: it is called by its model, plan and target."""
    note: Mapped[str] = mapped_column(Text, default="", server_default="")
    tags: Mapped[str] = mapped_column(Text, default="", server_default="")
    """A line for each, with an empty one before and after: `service/work/runs/tags.py` reads and writes it."""

    is_canary: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    """The farm's own: it shows whether a quarantined device has been mended (`service/boards/canary/`)."""

    lane_id: Mapped[str | None] = mapped_column(Id)
    """Lane, which says which devices may take the run (`service/work/lanes/`). Null: code without lanes queued it, and
    the sweeper will set it. No foreign key: the id is a digest of what the run's other columns say, and each new run
    would pay for a check.
    """
    rarest_wish: Mapped[str | None] = mapped_column(String(200))
    """The wish under which devices look the run up (`service/work/lanes/entering.py`). Null: older code queued it."""
    asked_s: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """The time limit that its user set; 0: none, so it may take as long as the farm gives every run."""

    device_id: Mapped[str | None] = mapped_column(Id, ForeignKey("devices.id"))
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
    pinned_at: Mapped[float | None]
    """Retention leaves its events, and all files that it used and made, alone from then on."""
    events_removed_at: Mapped[float | None]
    """When retention took its events."""
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
    training_outcome: Mapped[str | None] = mapped_column(String(20))
    """How training ended (`device_agents.wire.TrainingOutcome`), which is not how the run ended."""
    loss_first: Mapped[float | None]
    loss_last: Mapped[float | None]
    accuracy_before: Mapped[float | None]
    accuracy_after: Mapped[float | None]

    compared: Mapped[list[ComparedBundle]] = relationship(order_by="ComparedBundle.place", viewonly=True)

    @property
    def others(self) -> list[str]:
        """Digests of the bundles that take turns with its own, in order; none of another mode than compare."""
        return [bundle.bundle_digest for bundle in self.compared] if self.mode == "compare" else []

    @property
    def is_timed_canary(self) -> bool:
        """Whether it is to show how quick its device is, and not whether it works."""
        return self.is_canary and self.mode == "profile"

    @hybrid_property
    def mode(self) -> LocalMode:
        """The settings' mode; in a query, what the column says."""
        return self.settings.mode

    @mode.inplace.expression
    @classmethod
    def _mode(cls) -> ColumnElement[str]:
        mode: ColumnElement[str] = type_coerce(cls.settings, JSON)["mode"].as_string()
        return mode

    @hybrid_property
    def queued_in(self) -> str | None:
        """The lane in which it is queued."""
        return self.lane_id if self.state == "queued" else None

    @queued_in.inplace.expression
    @classmethod
    def _queued_in(cls) -> ColumnElement[str | None]:
        return while_queued(cls.state, cls.lane_id)


IS_QUEUED: ColumnElement[bool] = Run.state == literal_column("'queued'")
"""Condition on `Run`, with the value in the statement's text: the database does not use an index of queued runs for a
bound value.
"""
IS_TAGGED: ColumnElement[bool] = Run.tags != literal_column("''")
"""Condition on `Run`, written so that the database uses the index of tagged runs, for the same reason."""
NO_LANE_YET: ColumnElement[bool] = and_(IS_QUEUED, Run.rarest_wish.is_(None))
"""Condition on `Run`: queued by older code, which knew no lanes or no rarest wish."""


class RunGroup(OfOrganisation, Base):
    """A request for many devices: a run for each."""

    __tablename__ = "run_groups"

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("grp"))
    organisation_id: Mapped[str] = mapped_column(Id, default=HOME, server_default=HOME)
    api_key_id: Mapped[str] = mapped_column(Id, ForeignKey("api_keys.id"))
    name: Mapped[str] = mapped_column(default="")
    created_at: Mapped[float] = mapped_column(default=time.time)


class ComparedBundle(OfRun, Base):
    """A bundle that takes turns with the run's own, in mode compare."""

    __tablename__ = "compared_bundles"

    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"), primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True)
    """Place among the bundles that take turns, from 1."""
    bundle_digest: Mapped[str] = mapped_column(Digest, ForeignKey("bundles.digest"), index=True)


class Attempt(OfRun, Base):
    """A device's try at a run, owned by a fencing token. At most one live attempt per run and per device."""

    __tablename__ = "attempts"
    __table_args__ = (
        one_of("state", "state", ATTEMPT_STATES),
        UniqueConstraint("run_id", "n"),
        Index(
            "uq_attempts_live_device",
            "device_id",
            unique=True,
            sqlite_where=_LIVE_ATTEMPT,
            postgresql_where=_LIVE_ATTEMPT,
        ),
        Index(
            "uq_attempts_live_run", "run_id", unique=True, sqlite_where=_LIVE_ATTEMPT, postgresql_where=_LIVE_ATTEMPT
        ),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("att"))
    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"))
    n: Mapped[int]
    """Number of the attempt, from 1."""
    device_id: Mapped[str] = mapped_column(Id, ForeignKey("devices.id"), index=True)
    state: Mapped[str] = mapped_column(String(20), default="leased")
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    lease_expires_at: Mapped[float]
    deadline_at: Mapped[float]
    """When its transfer and run clocks together end."""
    own_data_digest: Mapped[str | None] = mapped_column(Digest)
    """Digest of the device's own data set, as the signed assignment names it; null: none, or an older release."""
    isolation_level: Mapped[int | None]
    """Level that its device promised as it asked for work; null: of an older release."""
    next_sequence: Mapped[int] = mapped_column(default=1)
    """The lowest event that it has not sent."""
    event_bytes: Mapped[int] = mapped_column(default=0, server_default="0")
    """Size of the bodies of its events."""
    weights_digest: Mapped[str | None] = mapped_column(Digest, index=True)
    """Weights that it uploaded."""
    weights_bytes: Mapped[int | None] = mapped_column(BigInteger)
    checkpoint_step: Mapped[int | None]
    """Step of the last checkpoint that it sent, or that its device keeps, and that counted; null: it came no further
    than where it began.
    """
    cause: Mapped[str | None] = mapped_column(String(20))
    code: Mapped[str | None] = mapped_column(String(100))
    message: Mapped[str] = mapped_column(Text, default="")
    spent: Mapped[str | None] = mapped_column(String(20))
    """`failed` or `missed`: its device is not given the run again (see `service/work/runs/attempts.py`). Null: it may
    be.
    """
    fault: Mapped[str | None] = mapped_column(String(20))
    """Whose fault its end was judged to be (`service/work/runs/faults.py`); null: it succeeded, or has not been judged.
    """
    strike: Mapped[str | None] = mapped_column(String(20))
    """`counted` against its device, `taken-back` since; null: none."""
    created_at: Mapped[float] = mapped_column(default=time.time)
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None] = mapped_column(index=True)


class Result(OfRun, Base):
    """The signed report of an attempt. `state`: `recorded` counts; `superseded` is evidence only."""

    __tablename__ = "results"
    __table_args__ = (
        one_of("state", "state", ("recorded", "superseded")),
        Index(
            "ix_results_unlogged",
            "recorded_at",
            sqlite_where=text("log_index IS NULL"),
            postgresql_where=text("log_index IS NULL"),
        ),
    )

    attempt_id: Mapped[str] = mapped_column(Id, ForeignKey("attempts.id"), primary_key=True)
    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"), index=True)
    state: Mapped[str] = mapped_column(String(20))
    digest: Mapped[str] = mapped_column(Digest)
    """Digest of the signed payload."""
    envelope: Mapped[str] = mapped_column(Text, deferred=True)
    """The DSSE envelope as received, so that anyone can verify the number later."""
    report: Mapped[dict[str, Any]]
    recorded_at: Mapped[float] = mapped_column(default=time.time)
    log_index: Mapped[int | None] = mapped_column(BigInteger)
    """Its place in the log of results; null: it is appended soon."""
