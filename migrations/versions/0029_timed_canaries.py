"""What timed canaries took on each device, and where that changed; runs of mode sustained.

On the way down the history is set aside, and so are sustained runs with what belongs to them: 0028's code knows no such
mode. It takes a timed canary that is under way for one that shows whether its device works, finds it wrong, and does
nothing about it, since the device is not quarantined.
"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

SUSTAINED = "CAST(settings AS TEXT) LIKE '%\"mode\": \"sustained\"%'"
RUNS = f"(SELECT id FROM runs WHERE {SUSTAINED})"
ROWS = (
    ("runs", "id", SUSTAINED),
    ("compared_bundles", "run_id", f"run_id IN {RUNS}"),
    ("attempts", "id", f"run_id IN {RUNS}"),
    ("results", "attempt_id", f"run_id IN {RUNS}"),
    ("strikes", "id", f"run_id IN {RUNS}"),
    ("tunings", "id", f"run_id IN {RUNS}"),
    ("checkpoints", "run_id", f"run_id IN {RUNS}"),
    ("canary_times", "run_id", "1 = 1"),
    ("canary_changes", "id", "1 = 1"),
)
VALUES = (
    ("devices", "timed_canary_at", "timed_canary_at <> 0"),
    ("devices", "canary_deviation", "canary_deviation <> 0"),
    ("devices", "canary_freedom", "canary_freedom <> 0"),
)
CANARY = {"sqlite_where": sa.text("is_canary = 1"), "postgresql_where": sa.text("is_canary")}
SERIES = "ix_canary_times_device_id_series_run_id"


def upgrade() -> None:
    op.create_table(
        "canary_times",
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("device_id", sa.String(length=40), nullable=False),
        sa.Column("series", sa.String(length=71), nullable=False),
        sa.Column("canary", sa.String(length=40), nullable=False),
        sa.Column("target", sa.String(length=100), nullable=False),
        sa.Column("model_digest", sa.String(length=71), nullable=False),
        sa.Column("plan_digest", sa.String(length=71), nullable=False),
        sa.Column("spec_digest", sa.String(length=71), nullable=False),
        sa.Column("median_us", sa.Double(), nullable=False),
        sa.Column("verdict", sa.String(length=20), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_canary_times_device_id_devices")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_canary_times_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_canary_times")),
    )
    op.create_index(SERIES, "canary_times", ["device_id", "series", "run_id"])
    op.create_table(
        "canary_changes",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("device_id", sa.String(length=40), nullable=False),
        sa.Column("series", sa.String(length=71), nullable=False),
        sa.Column("canary", sa.String(length=40), nullable=False),
        sa.Column("target", sa.String(length=100), nullable=False),
        sa.Column("before_run_id", sa.String(length=40), nullable=False),
        sa.Column("after_run_id", sa.String(length=40), nullable=False),
        sa.Column("ratio", sa.Double(), nullable=False),
        sa.Column("ratio_low", sa.Double(), nullable=False),
        sa.Column("ratio_high", sa.Double(), nullable=False),
        sa.Column("deviation", sa.Double(), nullable=False),
        sa.Column("differences", sa.JSON(), nullable=False),
        sa.Column("found_at", sa.Double(), nullable=False),
        sa.Column("acknowledged_at", sa.Double(), nullable=True),
        sa.Column("acknowledgement", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_canary_changes_device_id_devices")),
        sa.ForeignKeyConstraint(["before_run_id"], ["runs.id"], name=op.f("fk_canary_changes_before_run_id_runs")),
        sa.ForeignKeyConstraint(["after_run_id"], ["runs.id"], name=op.f("fk_canary_changes_after_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_canary_changes")),
        sa.UniqueConstraint(
            "device_id", "series", "after_run_id", name=op.f("uq_canary_changes_device_id_series_after_run_id")
        ),
    )
    op.create_index("ix_runs_canary", "runs", ["organisation_id", "state"], **CANARY)
    with op.batch_alter_table("devices") as devices:
        devices.add_column(sa.Column("timed_canary_at", sa.Double(), server_default="0", nullable=False))
        devices.add_column(sa.Column("canary_deviation", sa.Double(), server_default="0", nullable=False))
        devices.add_column(sa.Column("canary_freedom", sa.Integer(), server_default="0", nullable=False))
    op.give_up_overtaken_attempts("0029")
    op.put_back("0029", ROWS, VALUES)


def downgrade() -> None:
    op.set_aside("0029", ROWS, VALUES)
    with op.batch_alter_table("devices") as devices:
        for column in ("canary_freedom", "canary_deviation", "timed_canary_at"):
            devices.drop_column(column)
    op.drop_index("ix_runs_canary", "runs")
    op.drop_table("canary_changes")
    op.drop_index(SERIES, "canary_times")
    op.drop_table("canary_times")
