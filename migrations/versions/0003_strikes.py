"""Strikes as rows, what a failed attempt says about its device, the worker that has a job, the farm's signing keys.

All of it is set aside on the way down, in tables `set_aside_0003_…`, and put back on the way up.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ROWS = (("strikes", "id", "id IS NOT NULL"), ("signing_keys", "key_id", "key_id IS NOT NULL"))
VALUES = (
    ("devices", "quarantined_for", "quarantined_for <> ''"),
    ("devices", "released_at", "released_at <> 0"),
    ("devices", "succeeded_at", "succeeded_at <> 0"),
    ("attempts", "spent", "spent IS NOT NULL"),
    ("jobs", "worker", "worker IS NOT NULL"),
)


def upgrade() -> None:
    with op.batch_alter_table("devices") as devices:
        devices.add_column(sa.Column("quarantined_for", sa.String(length=20), server_default="", nullable=False))
        devices.add_column(sa.Column("released_at", sa.Double(), server_default="0", nullable=False))
        devices.add_column(sa.Column("succeeded_at", sa.Double(), server_default="0", nullable=False))
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("spent", sa.String(length=20), nullable=True))
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("worker", sa.String(length=200), nullable=True))
    op.create_table(
        "strikes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("device_id", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("code", sa.String(length=100), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_strikes_device_id_devices")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_strikes_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_strikes")),
        sa.UniqueConstraint("device_id", "run_id", name=op.f("uq_strikes_device_id_run_id")),
    )
    with op.batch_alter_table("strikes") as strikes:
        strikes.create_index(op.f("ix_strikes_run_id"), ["run_id"], unique=False)
    op.create_table(
        "signing_keys",
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("public_key", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("retired_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_signing_keys")),
    )
    op.put_back("0003", ROWS, VALUES)


def downgrade() -> None:
    op.set_aside("0003", ROWS, VALUES)
    op.drop_table("signing_keys")
    op.drop_table("strikes")
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_column("worker")
    with op.batch_alter_table("attempts") as attempts:
        attempts.drop_column("spent")
    with op.batch_alter_table("devices") as devices:
        devices.drop_column("succeeded_at")
        devices.drop_column("released_at")
        devices.drop_column("quarantined_for")
