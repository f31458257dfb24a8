"""Schedules chosen by measurement: tuning jobs, runs of mode tune, and what won.

What 0001 cannot hold is set aside on the way down, in tables `set_aside_0002_…`, and put back on the way up: tuning jobs,
runs of mode tune with their attempts and results, tunings, and the values of the new columns.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TUNING_RUNS = "(SELECT id FROM runs WHERE mode = 'tune')"
ROWS = (
    ("jobs", "id", "source_digest IS NOT NULL"),
    ("runs", "id", "mode = 'tune'"),
    ("attempts", "id", f"run_id IN {TUNING_RUNS}"),
    ("results", "attempt_id", f"run_id IN {TUNING_RUNS}"),
    ("tunings", "id", "id IS NOT NULL"),
)
VALUES = (("jobs", "tuning_json", "tuning_json <> ''"), ("runs", "tune_s", "tune_s IS NOT NULL"))
MODES = "mode IN ('profile', 'train', 'eval')"
MODES_WITH_TUNE = "mode IN ('profile', 'train', 'eval', 'tune')"


def upgrade() -> None:
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("source_digest", sa.String(length=71), nullable=True))
        jobs.add_column(sa.Column("tuning_json", sa.Text(), server_default="", nullable=False))
        jobs.create_foreign_key(op.f("fk_jobs_source_digest_bundles"), "bundles", ["source_digest"], ["digest"])
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("tune_s", sa.Double(), nullable=True))
        runs.drop_constraint(op.f("ck_runs_mode"), type_="check")
        runs.create_check_constraint(op.f("ck_runs_mode"), MODES_WITH_TUNE)
    op.create_table(
        "tunings",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("target", sa.String(length=100), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("kernel", sa.String(length=64), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("choice", sa.String(length=500), nullable=False),
        sa.Column("default_us", sa.Double(), nullable=False),
        sa.Column("tuned_us", sa.Double(), nullable=False),
        sa.Column("device_class", sa.String(length=100), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("measured_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_tunings_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tunings")),
        sa.UniqueConstraint(
            "target", "version", "kernel", "threads", name=op.f("uq_tunings_target_version_kernel_threads")
        ),
    )
    op.give_up_overtaken_attempts("0002")
    op.put_back("0002", ROWS, VALUES)


def downgrade() -> None:
    op.set_aside("0002", ROWS, VALUES)
    op.drop_table("tunings")
    with op.batch_alter_table("runs") as runs:
        runs.drop_constraint(op.f("ck_runs_mode"), type_="check")
        runs.create_check_constraint(op.f("ck_runs_mode"), MODES)
        runs.drop_column("tune_s")
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_constraint(op.f("fk_jobs_source_digest_bundles"), type_="foreignkey")
        jobs.drop_column("tuning_json")
        jobs.drop_column("source_digest")
