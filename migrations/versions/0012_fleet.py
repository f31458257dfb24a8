"""Drained devices, maintenance windows, enrolment tokens for many devices.

Enrolment tokens are set aside whole: an older release would let in more devices than they allow, and by revoked ones.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

ROWS = (
    ("maintenance_windows", "id", "1 = 1"),
    ("enrolment_uses", "id", "1 = 1"),
    ("enrolment_tokens", "token_hash", "id IS NOT NULL OR max_uses <> 1 OR uses <> 0 OR name <> '' "
     "OR revoked_at IS NOT NULL OR targets IS NOT NULL"),
)
VALUES = (("devices", "drained_at", "drained_at IS NOT NULL"), ("devices", "drain_reason", "drain_reason <> ''"))


def upgrade() -> None:
    with op.batch_alter_table("devices") as batch:
        batch.add_column(sa.Column("drained_at", sa.Double(), nullable=True))
        batch.add_column(sa.Column("drain_reason", sa.Text(), server_default="", nullable=False))
    with op.batch_alter_table("enrolment_tokens") as batch:
        batch.add_column(sa.Column("id", sa.String(length=40), nullable=True))
        batch.add_column(sa.Column("name", sa.String(length=200), server_default="", nullable=False))
        batch.add_column(sa.Column("targets", sa.JSON(), nullable=True))
        batch.add_column(sa.Column("max_uses", sa.Integer(), server_default="1", nullable=False))
        batch.add_column(sa.Column("uses", sa.Integer(), server_default="0", nullable=False))
        batch.add_column(sa.Column("revoked_at", sa.Double(), nullable=True))
        batch.create_unique_constraint(op.f("uq_enrolment_tokens_id"), ["id"])
    op.create_table(
        "enrolment_uses",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("token_id", sa.String(length=40), nullable=False),
        sa.Column("organisation_id", sa.String(length=40), server_default="org_home", nullable=False),
        sa.Column("device_id", sa.String(length=40), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_enrolment_uses_device_id_devices")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_enrolment_uses")),
        sa.UniqueConstraint("token_id", "device_id", name=op.f("uq_enrolment_uses_token_id_device_id")),
    )
    op.create_table(
        "maintenance_windows",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("organisation_id", sa.String(length=40), server_default="org_home", nullable=False),
        sa.Column("device_id", sa.String(length=40), nullable=True),
        sa.Column("device_class", sa.String(length=100), nullable=True),
        sa.Column("starts_at", sa.Double(), nullable=False),
        sa.Column("ends_at", sa.Double(), nullable=False),
        sa.Column("every_s", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.CheckConstraint("ends_at > starts_at", name=op.f("ck_maintenance_windows_order")),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_maintenance_windows_device_id_devices")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_maintenance_windows")),
    )
    op.put_back("0012", ROWS, VALUES)


def downgrade() -> None:
    op.set_aside("0012", ROWS, VALUES)
    op.drop_table("maintenance_windows")
    op.drop_table("enrolment_uses")
    with op.batch_alter_table("enrolment_tokens") as tokens:
        tokens.drop_constraint(op.f("uq_enrolment_tokens_id"), type_="unique")
        for name in ("revoked_at", "uses", "max_uses", "targets", "name", "id"):
            tokens.drop_column(name)
    with op.batch_alter_table("devices") as devices:
        devices.drop_column("drain_reason")
        devices.drop_column("drained_at")
