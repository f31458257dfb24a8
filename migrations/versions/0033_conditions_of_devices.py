"""Names that operators give to devices; what devices tell of their storage and temperature.

On the way down both are set aside: 0032's code lets each agent name its device, and does not hear what else it tells.
"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

ROWS = (("device_conditions", "device_id", "1 = 1"), ("device_temperatures", "device_id", "1 = 1"))
VALUES = (("devices", "given_name", "given_name IS NOT NULL"),)


def upgrade() -> None:
    op.create_table(
        "device_conditions",
        sa.Column("device_id", sa.String(length=40), nullable=False),
        sa.Column("storage_total_bytes", sa.BigInteger(), nullable=True),
        sa.Column("storage_free_bytes", sa.BigInteger(), nullable=True),
        sa.Column("kept_bytes", sa.BigInteger(), nullable=True),
        sa.Column("temperature_c", sa.Double(), nullable=True),
        sa.Column("problem", sa.String(length=200), server_default="", nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_device_conditions_device_id_devices")),
        sa.PrimaryKeyConstraint("device_id", name=op.f("pk_device_conditions")),
    )
    op.create_table(
        "device_temperatures",
        sa.Column("device_id", sa.String(length=40), nullable=False),
        sa.Column("quarter", sa.Integer(), nullable=False),
        sa.Column("hottest_c", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_device_temperatures_device_id_devices")),
        sa.PrimaryKeyConstraint("device_id", "quarter", name=op.f("pk_device_temperatures")),
    )
    op.create_index(op.f("ix_device_temperatures_quarter"), "device_temperatures", ["quarter"])
    with op.batch_alter_table("devices") as devices:
        devices.add_column(sa.Column("given_name", sa.String(length=200), nullable=True))
    op.put_back("0033", ROWS, VALUES)


def downgrade() -> None:
    op.set_aside("0033", ROWS, VALUES)
    op.execute("ALTER TABLE devices DROP COLUMN given_name")
    op.drop_index(op.f("ix_device_temperatures_quarter"), "device_temperatures")
    op.drop_table("device_temperatures")
    op.drop_table("device_conditions")
