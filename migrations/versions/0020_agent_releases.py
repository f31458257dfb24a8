"""Agents that the farm offers to its devices, what came of it, and what each device's agent runs from."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

ROWS = (("agent_releases", "id", "1 = 1"), ("agent_updates", "release_id", "1 = 1"))
VALUES = (
    ("devices", "agent_updates", "agent_updates <> ''"),
    ("devices", "agent_digest", "agent_digest <> ''"),
)


def upgrade() -> None:
    op.create_table(
        "agent_releases",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.String(length=40), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("oldest_python", sa.String(length=20), nullable=False),
        sa.Column("protocol", sa.String(length=40), nullable=False),
        sa.Column("is_rollback", sa.Boolean(), nullable=False),
        sa.Column("conditions", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("share", sa.Double(), nullable=True),
        sa.Column("most_devices", sa.Integer(), nullable=True),
        sa.Column("most_failures", sa.Integer(), nullable=True),
        sa.Column("halt_reason", sa.Text(), nullable=False),
        sa.Column("halted_at", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.CheckConstraint("state IN ('offered', 'halted')", name=op.f("ck_agent_releases_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agent_releases")),
        sa.UniqueConstraint("sequence", name=op.f("uq_agent_releases_sequence")),
    )
    op.create_table(
        "agent_updates",
        sa.Column("release_id", sa.String(length=40), nullable=False),
        sa.Column("device_id", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("given_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.CheckConstraint("state IN ('given', 'done', 'failed')", name=op.f("ck_agent_updates_state")),
        sa.ForeignKeyConstraint(
            ["release_id"], ["agent_releases.id"], name=op.f("fk_agent_updates_release_id_agent_releases")
        ),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_agent_updates_device_id_devices")),
        sa.PrimaryKeyConstraint("release_id", "device_id", name=op.f("pk_agent_updates")),
    )
    op.create_index("ix_agent_updates_device_id", "agent_updates", ["device_id"])
    with op.batch_alter_table("devices") as devices:
        devices.add_column(sa.Column("agent_updates", sa.String(length=20), server_default="", nullable=False))
        devices.add_column(sa.Column("agent_digest", sa.String(length=71), server_default="", nullable=False))
    op.put_back("0020", ROWS, VALUES)


def downgrade() -> None:
    op.set_aside("0020", ROWS, VALUES)
    with op.batch_alter_table("devices") as devices:
        devices.drop_column("agent_digest")
        devices.drop_column("agent_updates")
    op.drop_table("agent_updates")
    op.drop_table("agent_releases")
