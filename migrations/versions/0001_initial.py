"""The farm's schema: all of its tables, the home organisation, and a log of results that the database only lets grow.

The tables are described as they are at this revision, and nothing here depends on the models, which go on. A later
migration that builds a table of the log anew (SQLite's batch mode) has to make that table's triggers again.
"""

from alembic import op
from sqlalchemy import (
    JSON, BigInteger, Boolean, CheckConstraint, Column, Double, ForeignKey, Index, Integer, MetaData, String, Table,
    Text, UniqueConstraint, false, inspect, text, true,
)

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
ID, DIGEST, HASH = String(40), String(71), String(64)
COUNTED = BigInteger().with_variant(Integer, "sqlite")
"""Type of a key that the database counts up."""
HOME = "org_home"
LOG = ("logged_results", "log_nodes", "log_heads")
CHANGES = ("UPDATE", "DELETE")
REFUSAL = "the log of results only grows"


def _table(name, *parts):
    """Describes a table, which `upgrade` makes."""
    Table(name, TABLES, *parts)


def _required(**types):
    """Returns columns that hold a value in each row."""
    return [Column(name, kind, nullable=False) for name, kind in types.items()]


def _optional(**types):
    return [Column(name, kind) for name, kind in types.items()]


def _starting(default, /, **types):
    """Returns columns with this value in rows that come without one."""
    return [Column(name, kind, nullable=False, server_default=default) for name, kind in types.items()]


def _where(condition, *, postgresql=None):
    """Returns the options of an index of these rows only."""
    return {"sqlite_where": text(condition), "postgresql_where": text(postgresql or condition)}


def _queue_index(name, column, *others):
    """Returns an index by the column's value in queued runs, and of these only: it can serve nothing else."""
    first = f"(CASE WHEN state = 'queued' THEN {column} END)"
    return Index(name, text(first), *others, **_where(f"{first} IS NOT NULL"))


def upgrade() -> None:
    TABLES.create_all(op.get_bind(), checkfirst=False)
    home = {"id": HOME, "name": "home", "quotas": {}, "created_at": 0.0}
    op.get_bind().execute(TABLES.tables["organisations"].insert(), home)
    is_postgres = op.get_bind().dialect.name == "postgresql"
    if is_postgres:
        op.execute(
            "CREATE FUNCTION refuse_log_change() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{REFUSAL}'; END $$"
        )
    body = "EXECUTE FUNCTION refuse_log_change()" if is_postgres else f"BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
    for table in LOG:
        for change in CHANGES:
            name = f"{table}_refuse_{change.lower()}"
            op.execute(f"CREATE TRIGGER {name} BEFORE {change} ON {table} FOR EACH ROW {body}")


def downgrade() -> None:
    for name in inspect(op.get_bind()).get_table_names():
        if name.startswith("set_aside_"):  # by later revisions, for their way up
            op.drop_table(name)
    TABLES.drop_all(op.get_bind(), checkfirst=False)  # indexes and triggers go with them
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION refuse_log_change()")


# Organisations, their people and keys, and what they did.

_table("organisations",
    Column("id", ID, primary_key=True),
    Column("name", String(200), nullable=False, unique=True),
    *_required(quotas=JSON),
    *_starting("{}", retention=JSON),
    *_starting("0", runs_served_at=Double),
    *_required(created_at=Double),
    *_optional(closed_at=Double),
)
_table("users",
    Column("id", ID, primary_key=True),
    Column("organisation_id", ID, ForeignKey("organisations.id"), nullable=False),
    *_required(name=String(200), created_at=Double),
    *_optional(removed_at=Double),
    UniqueConstraint("organisation_id", "name"),
)
_table("api_keys",
    Column("id", ID, primary_key=True),
    *_starting(HOME, organisation_id=ID),
    *_optional(user_id=ID),
    *_required(name=String(200), role=String(20)),
    *_starting("", scopes=String(100)),
    Column("secret_hash", HASH, nullable=False, unique=True),
    *_required(created_at=Double),
    *_optional(revoked_at=Double, expires_at=Double, last_used_at=Double, unconfirmed_at=Double),
    CheckConstraint("role IN ('user', 'operator')", name="role"),
)
_table("dashboard_links",
    Column("token_hash", HASH, primary_key=True),
    Column("api_key_id", ID, ForeignKey("api_keys.id"), nullable=False),
    *_required(expires_at=Double),
    *_optional(used_at=Double),
)
_table("dashboard_sessions",
    Column("token_hash", HASH, primary_key=True),
    Column("api_key_id", ID, ForeignKey("api_keys.id"), nullable=False),
    *_required(created_at=Double, expires_at=Double),
)
_table("idempotency_records",
    Column("api_key_id", ID, ForeignKey("api_keys.id"), primary_key=True),
    Column("key", String(255), primary_key=True),
    *_required(fingerprint=String(64)),
    *_optional(status=Integer, headers=JSON, body=JSON),
    *_required(expires_at=Double),
)
_table("audit_entries",
    Column("id", ID, primary_key=True),
    *_required(organisation_id=ID, at=Double),
    *_optional(key_id=ID, user_id=ID),
    *_required(
        address=String(100), action=String(200), subject=String(200), outcome=String(20), status=Integer,
        code=String(100), detail=Text,
    ),
    Index("ix_audit_entries_organisation_id_id", "organisation_id", "id"),
)
_table("allowances",
    Column("organisation_id", ID, primary_key=True),
    *_required(tokens=Double, filled_at=Double),
)

# Stored files, and who holds them.

_table("bundles",
    Column("digest", DIGEST, primary_key=True),
    Column("id", ID, nullable=False, unique=True),
    *_required(size_bytes=BigInteger),
    Column("target", String(100), nullable=False, index=True),
    *_required(model_name=String(200)),
    Column("model_digest", DIGEST, nullable=False, index=True),
    *_required(
        plan_name=String(200), plan_digest=DIGEST, spec_digest=DIGEST, required_features=JSON, manifest=JSON,
        compile_report=JSON, created_at=Double,
    ),
)
_table("datasets",
    Column("digest", DIGEST, primary_key=True),
    Column("id", ID, nullable=False, unique=True),
    *_required(name=String(200), size_bytes=BigInteger, samples=BigInteger, arrays=JSON, created_at=Double),
)
_table("holdings",
    Column("organisation_id", ID, primary_key=True),
    Column("kind", String(20), primary_key=True),
    Column("digest", DIGEST, primary_key=True),
    *_required(id=ID),
    *_starting("", name=String(200), plan_name=String(200)),
    *_required(size_bytes=BigInteger, created_at=Double),
    *_optional(pinned_at=Double, files_removed_at=Double),
    CheckConstraint("kind IN ('bundle', 'dataset', 'model', 'data', 'weights')", name="kind"),
    Index("ix_holdings_digest", "digest"),
    Index("ix_holdings_organisation_id_kind_id", "organisation_id", "kind", "id"),
)
_table("uploads",
    Column("id", ID, primary_key=True),
    *_starting(HOME, organisation_id=ID),
    Column("api_key_id", ID, ForeignKey("api_keys.id"), nullable=False),
    *_required(kind=String(20), size_bytes=BigInteger),
    *_optional(declared_digest=DIGEST, digest=DIGEST),
    *_required(received_bytes=BigInteger, created_at=Double),
    Column("expires_at", Double, nullable=False, index=True),
    *_optional(finished_at=Double),
    CheckConstraint("kind IN ('model', 'data', 'dataset')", name="kind"),
    Index("ix_uploads_api_key_id_declared_digest", "api_key_id", "declared_digest"),
)
_table("file_uses",
    Column("digest", DIGEST, primary_key=True),
    *_required(used_at=Double),
    *_optional(released_at=Double, removed_at=Double),
)
_table("listed_files",
    Column("listing", DIGEST, primary_key=True),
    Column("digest", DIGEST, primary_key=True, index=True),
)

# Compile jobs, events of jobs and runs, and the farm's own processes.

_table("jobs",
    Column("id", ID, primary_key=True),
    *_starting(HOME, organisation_id=ID),
    Column("api_key_id", ID, ForeignKey("api_keys.id"), nullable=False),
    *_required(state=String(20), request_digest=DIGEST, model_name=String(200)),
    Column("model_digest", DIGEST, nullable=False, index=True),
    *_required(
        model_bytes=BigInteger, plan_name=String(200), plan_digest=DIGEST, plan_json=Text, spec_digest=DIGEST,
        spec_json=Text,
    ),
    Column("source_digest", DIGEST, ForeignKey("bundles.digest")),
    *_starting("", tuning_json=Text),
    *_required(target=String(100), compiler_version=String(100), stage=String(100), fraction=Double),
    Column("bundle_digest", DIGEST, ForeignKey("bundles.digest"), index=True),
    *_optional(cause=String(20), code=String(100)),
    *_required(message=Text, place=Text, hint=Text, attempts=Integer),
    *_optional(claim_hash=HASH, worker=String(200), lease_expires_at=Double),
    *_starting("0", cpu_s=Double),
    *_required(cancel_requested=Boolean, rung_at=Double, queue_deadline_at=Double, created_at=Double),
    *_optional(started_at=Double),
    Column("finished_at", Double, index=True),
    *_optional(files_removed_at=Double, events_removed_at=Double),
    *_required(version=Integer),
    CheckConstraint(
        "state IN ('queued', 'compiling', 'succeeded', 'failed', 'cancelled', 'expired')",
        name="state",
    ),
    Index("ix_jobs_organisation_id_id", "organisation_id", "id"),
    Index("ix_jobs_state_created_at", "state", "created_at"),
    Index(
        "uq_jobs_current_request", "request_digest", unique=True,
        **_where("state IN ('queued', 'compiling', 'succeeded')"),
    ),
)
_table("events",
    Column("id", COUNTED, primary_key=True),
    *_required(subject=ID, at=Double, kind=String(20), body=JSON),
    Index("ix_events_subject_id", "subject", "id"),
)
_table("outbox",
    Column("id", COUNTED, primary_key=True),
    *_required(task=String(100), argument=ID, created_at=Double),
)
_table("signs_of_life",
    Column("name", String(200), primary_key=True),
    *_required(kind=String(20), seen_at=Double),
    *_starting("0", slots=Integer),
    CheckConstraint("kind IN ('api', 'sweeper', 'worker', 'courier')", name="kind"),
    Index("ix_signs_of_life_kind_seen_at", "kind", "seen_at"),
)

# Devices, what they told, and what the farm offers them.

_table("devices",
    Column("id", ID, primary_key=True),
    *_starting(HOME, organisation_id=ID),
    *_starting(true(), is_shared=Boolean),
    *_required(name=String(200)),
    *_optional(given_name=String(200)),
    *_required(state=String(20), state_reason=Text),
    Column("device_class", String(100), nullable=False, index=True),
    *_required(
        measurement_class=String(20), targets=JSON, architecture=String(40), cpu_model=String(200),
        features=JSON, cores=Integer, memory_bytes=BigInteger, sensors=JSON, isolation_level=Integer,
        agent_version=String(100),
    ),
    *_optional(runner=String(200)),
    *_required(environment=JSON),
    Column("public_key", String(64), nullable=False, unique=True),
    *_required(session=String(100)),
    *_starting("", quarantined_for=String(20)),
    *_required(strikes=Integer),
    *_starting("0", released_at=Double),
    *_optional(bound_targets=JSON),
    *_starting(
        "0", succeeded_at=Double, canary_at=Double, timed_canary_at=Double, canary_deviation=Double,
        canary_freedom=Integer, canary_failures=Integer,
    ),
    *_starting(false(), canary_off=Boolean),
    *_optional(drained_at=Double),
    *_starting("", drain_reason=Text),
    *_starting("{}", tags=JSON),
    *_starting("[]", own_datasets=JSON, modes=JSON),
    *_starting("", agent_updates=String(20), agent_digest=DIGEST),
    *_optional(unconfirmed_at=Double),
    *_required(created_at=Double, last_seen_at=Double),
    CheckConstraint("state IN ('active', 'quarantined', 'removed')", name="state"),
)
_table("device_credentials",
    Column("token_hash", HASH, primary_key=True),
    Column("device_id", ID, ForeignKey("devices.id"), nullable=False, index=True),
    *_required(session=String(100), expires_at=Double),
)
_table("device_events",
    Column("id", COUNTED, primary_key=True),
    Column("device_id", ID, ForeignKey("devices.id"), nullable=False),
    *_required(at=Double, kind=String(40), message=Text),
    Index("ix_device_events_device_id_id", "device_id", "id"),
)
_table("device_conditions",
    Column("device_id", ID, ForeignKey("devices.id"), primary_key=True),
    *_optional(
        storage_total_bytes=BigInteger, storage_free_bytes=BigInteger, kept_bytes=BigInteger,
        temperature_c=Double,
    ),
    *_starting("", problem=String(200)),
    *_required(at=Double),
)
_table("device_temperatures",
    Column("device_id", ID, ForeignKey("devices.id"), primary_key=True),
    Column("quarter", Integer, primary_key=True, autoincrement=False, index=True),
    *_required(hottest_c=Double),
)
_table("device_machines",
    Column("id", COUNTED, primary_key=True),
    Column("device_id", ID, ForeignKey("devices.id"), nullable=False),
    *_required(
        serial=String(100), boot_id=String(40), host=String(100), folder=String(300), folder_id=String(40),
        address=String(100),
    ),
    *_starting(false(), is_present=Boolean),
    *_required(waits_since=Double, seen_at=Double),
    Column("refused_at", Double, index=True),
    Index("ix_device_machines_device_id_seen_at", "device_id", "seen_at"),
)
_table("used_challenges",
    Column("challenge_hash", HASH, primary_key=True),
    Column("expires_at", Double, nullable=False, index=True),
)
_table("enrolment_tokens",
    Column("token_hash", HASH, primary_key=True),
    *_starting(HOME, organisation_id=ID),
    *_starting(true(), is_shared=Boolean),
    Column("id", ID, unique=True),
    *_starting("", name=String(200)),
    *_optional(device_class=String(100)),
    *_required(created_at=Double, expires_at=Double),
    Column("device_id", ID, ForeignKey("devices.id")),
    *_optional(targets=JSON),
    *_starting("1", max_uses=Integer),
    *_starting("0", uses=Integer),
    *_optional(revoked_at=Double),
)
_table("enrolment_uses",
    Column("id", COUNTED, primary_key=True),
    *_required(token_id=ID),
    *_starting(HOME, organisation_id=ID),
    Column("device_id", ID, ForeignKey("devices.id"), nullable=False),
    *_required(at=Double),
    UniqueConstraint("token_id", "device_id"),
)
_table("maintenance_windows",
    Column("id", ID, primary_key=True),
    *_starting(HOME, organisation_id=ID),
    Column("device_id", ID, ForeignKey("devices.id")),
    *_optional(device_class=String(100)),
    *_required(starts_at=Double, ends_at=Double),
    *_optional(every_s=Double),
    *_required(reason=Text, created_at=Double),
    CheckConstraint("ends_at > starts_at", name="order"),
)
_table("agent_releases",
    Column("id", ID, primary_key=True),
    Column("sequence", BigInteger, nullable=False, unique=True),
    *_required(
        version=String(40), digest=DIGEST, size_bytes=BigInteger, oldest_python=String(20), protocol=String(40),
        is_rollback=Boolean, conditions=JSON, state=String(20),
    ),
    *_optional(share=Double, most_devices=Integer, most_failures=Integer),
    *_required(halt_reason=Text),
    *_optional(halted_at=Double),
    *_required(created_at=Double),
    CheckConstraint("state IN ('offered', 'halted')", name="state"),
)
_table("agent_updates",
    Column("release_id", ID, ForeignKey("agent_releases.id"), primary_key=True),
    Column("device_id", ID, ForeignKey("devices.id"), primary_key=True),
    *_required(state=String(20), reason=Text, given_at=Double),
    *_optional(ended_at=Double),
    CheckConstraint("state IN ('given', 'done', 'failed')", name="state"),
    Index("ix_agent_updates_device_id", "device_id"),
)
_table("signing_keys",
    Column("key_id", String(64), primary_key=True),
    *_required(public_key=String(64), created_at=Double),
    *_optional(retired_at=Double),
)

# Runs and what came of them.

_table("lanes",
    Column("id", ID, primary_key=True),
    *_required(
        organisation_id=ID, target=String(100), features=JSON, device_class=String(100), device_id=ID,
        is_canary=Boolean,
    ),
    *_starting("", wants=Text),
    *_required(created_at=Double),
)
_table("run_groups",
    Column("id", ID, primary_key=True),
    *_starting(HOME, organisation_id=ID),
    Column("api_key_id", ID, ForeignKey("api_keys.id"), nullable=False),
    *_required(name=String(200), created_at=Double),
)
_table("runs",
    Column("id", ID, primary_key=True),
    *_starting(HOME, organisation_id=ID),
    Column("api_key_id", ID, ForeignKey("api_keys.id"), nullable=False),
    *_required(state=String(20)),
    Column("bundle_digest", DIGEST, ForeignKey("bundles.digest"), nullable=False, index=True),
    *_required(target=String(100)),
    Column("wanted_device_id", ID, ForeignKey("devices.id")),
    *_optional(wanted_device_class=String(100)),
    *_starting("", wants=Text),
    *_optional(own_data=String(63), own_data_digest=DIGEST),
    Column("group_id", ID, ForeignKey("run_groups.id"), index=True),
    *_required(settings=JSON),
    Column("dataset_digest", DIGEST, ForeignKey("datasets.digest"), index=True),
    Column("validation_dataset_digest", DIGEST, ForeignKey("datasets.digest"), index=True),
    Column("weights_digest", DIGEST, index=True),
    *_starting("", name=String(100), note=Text, tags=Text),
    *_starting(false(), is_canary=Boolean),
    *_optional(lane_id=ID, rarest_wish=String(200)),
    *_starting("0", asked_s=Double),
    Column("device_id", ID, ForeignKey("devices.id")),
    *_required(attempts=Integer, phase=String(40), steps_done=Integer, cancel_requested=Boolean),
    *_optional(cause=String(20), code=String(100)),
    *_required(message=Text, hint=Text, queue_deadline_at=Double, created_at=Double),
    *_optional(started_at=Double, finished_at=Double, pinned_at=Double, events_removed_at=Double),
    *_required(version=Integer),
    Column("trained_weights_digest", DIGEST, index=True),
    *_optional(
        trained_weights_bytes=BigInteger, measurement_class=String(20), verdict=String(20), batch=Integer,
        median_us=Double, p90_us=Double, samples_per_second=Double, arena_bytes=BigInteger,
        peak_rss_bytes=BigInteger, energy_per_step_mj=Double, training_outcome=String(20), loss_first=Double,
        loss_last=Double, accuracy_before=Double, accuracy_after=Double,
    ),
    CheckConstraint(
        "state IN ('queued', 'leased', 'running', 'succeeded', 'failed', 'cancelled', 'expired', 'inconclusive')",
        name="state",
    ),
    Index("ix_runs_canary", "organisation_id", "state", **_where("is_canary = 1", postgresql="is_canary")),
    Index("ix_runs_device_id_id", "device_id", "id"),
    Index("ix_runs_measured", "organisation_id", "state", "id", **_where("median_us IS NOT NULL")),
    Index("ix_runs_measured_on", "device_id", "verdict", "id", **_where("median_us IS NOT NULL")),
    Index("ix_runs_organisation_id_id", "organisation_id", "id"),
    Index("ix_runs_queue_deadline", "queue_deadline_at", **_where("state = 'queued'")),
    _queue_index("ix_runs_queued_in", "lane_id", "created_at", "id", "asked_s"),
    _queue_index("ix_runs_queued_under", "rarest_wish", "lane_id"),
    Index("ix_runs_state_created_at", "state", "created_at"),
    Index("ix_runs_tagged", "organisation_id", "id", **_where("tags <> ''")),
    Index("ix_runs_unentered", "created_at", "id", **_where("state = 'queued' AND rarest_wish IS NULL")),
)
_table("compared_bundles",
    Column("run_id", ID, ForeignKey("runs.id"), primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("bundle_digest", DIGEST, ForeignKey("bundles.digest"), nullable=False, index=True),
)
_table("attempts",
    Column("id", ID, primary_key=True),
    Column("run_id", ID, ForeignKey("runs.id"), nullable=False),
    *_required(n=Integer),
    Column("device_id", ID, ForeignKey("devices.id"), nullable=False, index=True),
    *_required(state=String(20)),
    Column("token_hash", HASH, nullable=False, unique=True),
    *_required(lease_expires_at=Double, deadline_at=Double),
    *_optional(own_data_digest=DIGEST, isolation_level=Integer),
    *_required(next_sequence=Integer),
    *_starting("0", event_bytes=Integer),
    Column("weights_digest", DIGEST, index=True),
    *_optional(weights_bytes=BigInteger, checkpoint_step=Integer, cause=String(20), code=String(100)),
    *_required(message=Text),
    *_optional(spent=String(20), fault=String(20), strike=String(20)),
    *_required(created_at=Double),
    *_optional(started_at=Double),
    Column("finished_at", Double, index=True),
    CheckConstraint(
        "state IN ('leased', 'running', 'succeeded', 'failed', 'cancelled', 'inconclusive', 'lost')",
        name="state",
    ),
    UniqueConstraint("run_id", "n"),
    Index("uq_attempts_live_device", "device_id", unique=True, **_where("state IN ('leased', 'running')")),
    Index("uq_attempts_live_run", "run_id", unique=True, **_where("state IN ('leased', 'running')")),
)
_table("checkpoints",
    Column("run_id", ID, ForeignKey("runs.id"), primary_key=True),
    Column("attempt_id", ID, ForeignKey("attempts.id"), nullable=False),
    *_required(step=Integer),
    Column("digest", DIGEST, nullable=False, index=True),
    *_required(size_bytes=BigInteger, tries=Integer, stored_at=Double),
)
_table("results",
    Column("attempt_id", ID, ForeignKey("attempts.id"), primary_key=True),
    Column("run_id", ID, ForeignKey("runs.id"), nullable=False, index=True),
    *_required(state=String(20), digest=DIGEST, envelope=Text, report=JSON, recorded_at=Double),
    *_optional(log_index=BigInteger),
    CheckConstraint("state IN ('recorded', 'superseded')", name="state"),
    Index("ix_results_unlogged", "recorded_at", **_where("log_index IS NULL")),
)
_table("strikes",
    Column("id", COUNTED, primary_key=True),
    Column("device_id", ID, ForeignKey("devices.id"), nullable=False),
    Column("run_id", ID, ForeignKey("runs.id"), nullable=False, index=True),
    *_required(code=String(100), at=Double),
    UniqueConstraint("device_id", "run_id"),
)
_table("tunings",
    Column("id", ID, primary_key=True),
    *_starting(HOME, organisation_id=ID),
    *_required(
        target=String(100), version=String(64), kernel=String(64), threads=Integer, choice=String(500),
        default_us=Double, tuned_us=Double, device_class=String(100),
    ),
    Column("run_id", ID, ForeignKey("runs.id"), nullable=False),
    *_required(measured_at=Double),
    UniqueConstraint("organisation_id", "target", "version", "kernel", "threads"),
)
_table("canary_times",
    Column("run_id", ID, ForeignKey("runs.id"), primary_key=True),
    Column("device_id", ID, ForeignKey("devices.id"), nullable=False),
    *_required(
        series=DIGEST, canary=String(40), target=String(100), model_digest=DIGEST, plan_digest=DIGEST,
        spec_digest=DIGEST, median_us=Double, verdict=String(20), facts=JSON, at=Double,
    ),
    Index("ix_canary_times_device_id_series_run_id", "device_id", "series", "run_id"),
)
_table("canary_changes",
    Column("id", ID, primary_key=True),
    Column("device_id", ID, ForeignKey("devices.id"), nullable=False),
    *_required(series=DIGEST, canary=String(40), target=String(100)),
    Column("before_run_id", ID, ForeignKey("runs.id"), nullable=False),
    Column("after_run_id", ID, ForeignKey("runs.id"), nullable=False),
    *_required(
        ratio=Double, ratio_low=Double, ratio_high=Double, deviation=Double, differences=JSON, found_at=Double,
    ),
    *_optional(acknowledged_at=Double),
    *_starting("", acknowledgement=Text),
    UniqueConstraint("device_id", "series", "after_run_id"),
)

# The log of results.

_table("logged_results",
    Column("place", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt_id", ID, nullable=False, unique=True),
    *_required(entry=Text),
)
_table("log_nodes",
    Column("level", Integer, primary_key=True, autoincrement=False),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    *_required(hash=HASH),
)
_table("log_heads",
    Column("size", BigInteger, primary_key=True, autoincrement=False),
    *_required(paper=Text, at=Double),
)

# Webhooks.

_table("webhooks",
    Column("id", ID, primary_key=True),
    Column("api_key_id", ID, ForeignKey("api_keys.id"), nullable=False),
    Column("organisation_id", ID, nullable=False, server_default=HOME, index=True),
    *_required(url=String(1000), events=JSON, secret=String(100), created_at=Double),
    *_optional(removed_at=Double),
    *_required(removed_because=Text),
    *_optional(unconfirmed_at=Double),
    *_required(failures=Integer, resting_until=Double),
)
_table("webhook_deliveries",
    Column("id", ID, primary_key=True),
    Column("webhook_id", ID, ForeignKey("webhooks.id"), nullable=False),
    *_starting(HOME, organisation_id=ID),
    *_required(event=String(40), subject=ID, state=String(20), attempts=Integer),
    Column("next_at", Double, index=True),
    *_optional(status=Integer),
    *_required(error=Text, created_at=Double),
    Column("finished_at", Double, index=True),
    CheckConstraint("state IN ('waiting', 'delivered', 'failed')", name="state"),
    Index("ix_webhook_deliveries_webhook_id_id", "webhook_id", "id"),
)
