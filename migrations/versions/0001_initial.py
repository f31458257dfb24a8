"""The farm's tables: keys, jobs, bundles, data sets, devices, runs, attempts, results, events."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    "results", "attempts", "runs", "jobs", "idempotency_records", "enrolment_tokens", "device_events",
    "device_credentials", "dashboard_sessions", "dashboard_links", "outbox", "events", "devices", "datasets",
    "bundles", "api_keys",
)
"""In the order in which they can be dropped."""


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.CheckConstraint("role IN ('user', 'operator')", name=op.f("ck_api_keys_role")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("secret_hash", name=op.f("uq_api_keys_secret_hash")),
    )
    op.create_table(
        "bundles",
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("target", sa.String(length=100), nullable=False),
        sa.Column("model_name", sa.String(length=200), nullable=False),
        sa.Column("model_digest", sa.String(length=71), nullable=False),
        sa.Column("plan_name", sa.String(length=200), nullable=False),
        sa.Column("plan_digest", sa.String(length=71), nullable=False),
        sa.Column("spec_digest", sa.String(length=71), nullable=False),
        sa.Column("required_features", sa.JSON(), nullable=False),
        sa.Column("manifest", sa.JSON(), nullable=False),
        sa.Column("compile_report", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_bundles")),
        sa.UniqueConstraint("id", name=op.f("uq_bundles_id")),
    )
    with op.batch_alter_table("bundles") as batch_op:
        batch_op.create_index(batch_op.f("ix_bundles_model_digest"), ["model_digest"], unique=False)
        batch_op.create_index(batch_op.f("ix_bundles_target"), ["target"], unique=False)

    op.create_table(
        "datasets",
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("arrays", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_datasets")),
        sa.UniqueConstraint("id", name=op.f("uq_datasets_id")),
    )
    op.create_table(
        "devices",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("state_reason", sa.Text(), nullable=False),
        sa.Column("device_class", sa.String(length=100), nullable=False),
        sa.Column("measurement_class", sa.String(length=20), nullable=False),
        sa.Column("targets", sa.JSON(), nullable=False),
        sa.Column("architecture", sa.String(length=40), nullable=False),
        sa.Column("cpu_model", sa.String(length=200), nullable=False),
        sa.Column("features", sa.JSON(), nullable=False),
        sa.Column("cores", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sensors", sa.JSON(), nullable=False),
        sa.Column("isolation_level", sa.Integer(), nullable=False),
        sa.Column("agent_version", sa.String(length=100), nullable=False),
        sa.Column("runner", sa.String(length=200), nullable=True),
        sa.Column("environment", sa.JSON(), nullable=False),
        sa.Column("public_key", sa.String(length=64), nullable=False),
        sa.Column("session", sa.String(length=100), nullable=False),
        sa.Column("strikes", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=False),
        sa.CheckConstraint("state IN ('active', 'quarantined', 'removed')", name=op.f("ck_devices_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_devices")),
        sa.UniqueConstraint("public_key", name=op.f("uq_devices_public_key")),
    )
    with op.batch_alter_table("devices") as batch_op:
        batch_op.create_index(batch_op.f("ix_devices_device_class"), ["device_class"], unique=False)

    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("subject", sa.String(length=40), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    with op.batch_alter_table("events") as batch_op:
        batch_op.create_index("ix_events_subject_id", ["subject", "id"], unique=False)

    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("task", sa.String(length=100), nullable=False),
        sa.Column("argument", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
    )
    op.create_table(
        "dashboard_links",
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("api_key_id", sa.String(length=40), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["api_key_id"], ["api_keys.id"], name=op.f("fk_dashboard_links_api_key_id_api_keys")),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_dashboard_links")),
    )
    op.create_table(
        "dashboard_sessions",
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("api_key_id", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["api_key_id"], ["api_keys.id"], name=op.f("fk_dashboard_sessions_api_key_id_api_keys")
        ),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_dashboard_sessions")),
    )
    op.create_table(
        "device_credentials",
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("device_id", sa.String(length=40), nullable=False),
        sa.Column("session", sa.String(length=100), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_device_credentials_device_id_devices")),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_device_credentials")),
    )
    with op.batch_alter_table("device_credentials") as batch_op:
        batch_op.create_index(batch_op.f("ix_device_credentials_device_id"), ["device_id"], unique=False)

    op.create_table(
        "device_events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("device_id", sa.String(length=40), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_device_events_device_id_devices")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device_events")),
    )
    with op.batch_alter_table("device_events") as batch_op:
        batch_op.create_index("ix_device_events_device_id_id", ["device_id", "id"], unique=False)

    op.create_table(
        "enrolment_tokens",
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("device_class", sa.String(length=100), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("device_id", sa.String(length=40), nullable=True),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_enrolment_tokens_device_id_devices")),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_enrolment_tokens")),
    )
    op.create_table(
        "idempotency_records",
        sa.Column("api_key_id", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("headers", sa.JSON(), nullable=True),
        sa.Column("body", sa.JSON(), nullable=True),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["api_key_id"], ["api_keys.id"], name=op.f("fk_idempotency_records_api_key_id_api_keys")
        ),
        sa.PrimaryKeyConstraint("api_key_id", "key", name=op.f("pk_idempotency_records")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("api_key_id", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("request_digest", sa.String(length=71), nullable=False),
        sa.Column("model_name", sa.String(length=200), nullable=False),
        sa.Column("model_digest", sa.String(length=71), nullable=False),
        sa.Column("model_bytes", sa.BigInteger(), nullable=False),
        sa.Column("plan_name", sa.String(length=200), nullable=False),
        sa.Column("plan_digest", sa.String(length=71), nullable=False),
        sa.Column("plan_json", sa.Text(), nullable=False),
        sa.Column("spec_digest", sa.String(length=71), nullable=False),
        sa.Column("spec_json", sa.Text(), nullable=False),
        sa.Column("target", sa.String(length=100), nullable=False),
        sa.Column("compiler_version", sa.String(length=100), nullable=False),
        sa.Column("stage", sa.String(length=100), nullable=False),
        sa.Column("fraction", sa.Double(), nullable=False),
        sa.Column("bundle_digest", sa.String(length=71), nullable=True),
        sa.Column("cause", sa.String(length=20), nullable=True),
        sa.Column("code", sa.String(length=100), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("claim_hash", sa.String(length=64), nullable=True),
        sa.Column("lease_expires_at", sa.Double(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("rung_at", sa.Double(), nullable=False),
        sa.Column("queue_deadline_at", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "state IN ('queued', 'compiling', 'succeeded', 'failed', 'cancelled', 'expired')",
            name=op.f("ck_jobs_state"),
        ),
        sa.ForeignKeyConstraint(["api_key_id"], ["api_keys.id"], name=op.f("fk_jobs_api_key_id_api_keys")),
        sa.ForeignKeyConstraint(["bundle_digest"], ["bundles.digest"], name=op.f("fk_jobs_bundle_digest_bundles")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    with op.batch_alter_table("jobs") as batch_op:
        batch_op.create_index(batch_op.f("ix_jobs_bundle_digest"), ["bundle_digest"], unique=False)
        batch_op.create_index("ix_jobs_state_created_at", ["state", "created_at"], unique=False)
        batch_op.create_index(
            "uq_jobs_current_request",
            ["request_digest"],
            unique=True,
            sqlite_where=sa.text("state IN ('queued', 'compiling', 'succeeded')"),
            postgresql_where=sa.text("state IN ('queued', 'compiling', 'succeeded')"),
        )

    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("api_key_id", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("bundle_digest", sa.String(length=71), nullable=False),
        sa.Column("target", sa.String(length=100), nullable=False),
        sa.Column("wanted_device_id", sa.String(length=40), nullable=True),
        sa.Column("wanted_device_class", sa.String(length=100), nullable=True),
        sa.Column("mode", sa.String(length=20), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("warmup", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("learning_rate", sa.Double(), nullable=True),
        sa.Column("threads", sa.Integer(), nullable=True),
        sa.Column("dataset_digest", sa.String(length=71), nullable=True),
        sa.Column("weights_digest", sa.String(length=71), nullable=True),
        sa.Column("device_id", sa.String(length=40), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(length=40), nullable=False),
        sa.Column("steps_done", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("cause", sa.String(length=20), nullable=True),
        sa.Column("code", sa.String(length=100), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("queue_deadline_at", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("trained_weights_digest", sa.String(length=71), nullable=True),
        sa.Column("trained_weights_bytes", sa.BigInteger(), nullable=True),
        sa.Column("measurement_class", sa.String(length=20), nullable=True),
        sa.Column("verdict", sa.String(length=20), nullable=True),
        sa.Column("batch", sa.Integer(), nullable=True),
        sa.Column("median_us", sa.Double(), nullable=True),
        sa.Column("p90_us", sa.Double(), nullable=True),
        sa.Column("samples_per_second", sa.Double(), nullable=True),
        sa.Column("arena_bytes", sa.BigInteger(), nullable=True),
        sa.Column("peak_rss_bytes", sa.BigInteger(), nullable=True),
        sa.Column("energy_per_step_mj", sa.Double(), nullable=True),
        sa.Column("loss_first", sa.Double(), nullable=True),
        sa.Column("loss_last", sa.Double(), nullable=True),
        sa.Column("accuracy_before", sa.Double(), nullable=True),
        sa.Column("accuracy_after", sa.Double(), nullable=True),
        sa.CheckConstraint("mode IN ('profile', 'train', 'eval')", name=op.f("ck_runs_mode")),
        sa.CheckConstraint(
            "state IN ('queued', 'leased', 'running', 'succeeded', 'failed', 'cancelled', 'expired', 'inconclusive')",
            name=op.f("ck_runs_state"),
        ),
        sa.ForeignKeyConstraint(["api_key_id"], ["api_keys.id"], name=op.f("fk_runs_api_key_id_api_keys")),
        sa.ForeignKeyConstraint(["bundle_digest"], ["bundles.digest"], name=op.f("fk_runs_bundle_digest_bundles")),
        sa.ForeignKeyConstraint(["dataset_digest"], ["datasets.digest"], name=op.f("fk_runs_dataset_digest_datasets")),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_runs_device_id_devices")),
        sa.ForeignKeyConstraint(["wanted_device_id"], ["devices.id"], name=op.f("fk_runs_wanted_device_id_devices")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    with op.batch_alter_table("runs") as batch_op:
        batch_op.create_index(batch_op.f("ix_runs_bundle_digest"), ["bundle_digest"], unique=False)
        batch_op.create_index(batch_op.f("ix_runs_device_id"), ["device_id"], unique=False)
        batch_op.create_index("ix_runs_state_created_at", ["state", "created_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_runs_trained_weights_digest"), ["trained_weights_digest"], unique=False)

    op.create_table(
        "attempts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("lease_expires_at", sa.Double(), nullable=False),
        sa.Column("deadline_at", sa.Double(), nullable=False),
        sa.Column("next_sequence", sa.Integer(), nullable=False),
        sa.Column("weights_digest", sa.String(length=71), nullable=True),
        sa.Column("weights_bytes", sa.BigInteger(), nullable=True),
        sa.Column("cause", sa.String(length=20), nullable=True),
        sa.Column("code", sa.String(length=100), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "state IN ('leased', 'running', 'succeeded', 'failed', 'cancelled', 'inconclusive', 'lost')",
            name=op.f("ck_attempts_state"),
        ),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_attempts_device_id_devices")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_attempts_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("run_id", "n", name=op.f("uq_attempts_run_id_n")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_attempts_token_hash")),
    )
    with op.batch_alter_table("attempts") as batch_op:
        batch_op.create_index(batch_op.f("ix_attempts_device_id"), ["device_id"], unique=False)
        batch_op.create_index(
            "uq_attempts_live_device",
            ["device_id"],
            unique=True,
            sqlite_where=sa.text("state IN ('leased', 'running')"),
            postgresql_where=sa.text("state IN ('leased', 'running')"),
        )
        batch_op.create_index(
            "uq_attempts_live_run",
            ["run_id"],
            unique=True,
            sqlite_where=sa.text("state IN ('leased', 'running')"),
            postgresql_where=sa.text("state IN ('leased', 'running')"),
        )

    op.create_table(
        "results",
        sa.Column("attempt_id", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("envelope", sa.Text(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.CheckConstraint("state IN ('recorded', 'superseded')", name=op.f("ck_results_state")),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_results_attempt_id_attempts")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_results_run_id_runs")),
        sa.PrimaryKeyConstraint("attempt_id", name=op.f("pk_results")),
    )
    with op.batch_alter_table("results") as batch_op:
        batch_op.create_index(batch_op.f("ix_results_run_id"), ["run_id"], unique=False)


def downgrade() -> None:
    for name in sa.inspect(op.get_bind()).get_table_names():
        if name.startswith("set_aside_"):  # by later revisions, for their way up
            op.drop_table(name)
    for name in TABLES:  # their indexes go with them
        op.drop_table(name)
