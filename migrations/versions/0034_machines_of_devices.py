"""The machines that agents of a device have run on.

On the way down they are set aside: 0033's code does not hear what agents tell of their machines.
"""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

ROWS = (("device_machines", "id", "1 = 1"),)


def upgrade() -> None:
    op.create_table(
        "device_machines",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("device_id", sa.String(length=40), nullable=False),
        sa.Column("serial", sa.String(length=100), nullable=False),
        sa.Column("boot_id", sa.String(length=40), nullable=False),
        sa.Column("host", sa.String(length=100), nullable=False),
        sa.Column("folder", sa.String(length=300), nullable=False),
        sa.Column("folder_id", sa.String(length=40), nullable=False),
        sa.Column("address", sa.String(length=100), nullable=False),
        sa.Column("is_present", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("waits_since", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("refused_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_device_machines_device_id_devices")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device_machines")),
    )
    op.create_index(op.f("ix_device_machines_device_id_seen_at"), "device_machines", ["device_id", "seen_at"])
    op.create_index(op.f("ix_device_machines_refused_at"), "device_machines", ["refused_at"])
    op.put_back("0034", ROWS, ())


def downgrade() -> None:
    op.set_aside("0034", ROWS, ())
    op.drop_index(op.f("ix_device_machines_refused_at"), "device_machines")
    op.drop_index(op.f("ix_device_machines_device_id_seen_at"), "device_machines")
    op.drop_table("device_machines")
