"""What was decided because of an attempt (`fault`, `strike`), and canary runs, which bring a mended device back.

All of it is set aside on the way down; a canary run is an ordinary run to 0006's code, which waits for its device.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

VALUES = (
    ("attempts", "fault", "fault IS NOT NULL"),
    ("attempts", "strike", "strike IS NOT NULL"),
    ("runs", "is_canary", "is_canary"),
    ("devices", "canary_at", "canary_at <> 0"),
    ("devices", "canary_failures", "canary_failures <> 0"),
    ("devices", "canary_off", "canary_off"),
)


def upgrade() -> None:
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("fault", sa.String(length=20), nullable=True))
        attempts.add_column(sa.Column("strike", sa.String(length=20), nullable=True))
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("is_canary", sa.Boolean(), server_default=sa.false(), nullable=False))
    with op.batch_alter_table("devices") as devices:
        devices.add_column(sa.Column("canary_at", sa.Double(), server_default="0", nullable=False))
        devices.add_column(sa.Column("canary_failures", sa.Integer(), server_default="0", nullable=False))
        devices.add_column(sa.Column("canary_off", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.give_up_overtaken_attempts("0007")
    op.put_back("0007", (), VALUES)


def downgrade() -> None:
    op.set_aside("0007", (), VALUES)
    with op.batch_alter_table("devices") as devices:
        devices.drop_column("canary_off")
        devices.drop_column("canary_failures")
        devices.drop_column("canary_at")
    with op.batch_alter_table("runs") as runs:
        runs.drop_column("is_canary")
    with op.batch_alter_table("attempts") as attempts:
        attempts.drop_column("strike")
        attempts.drop_column("fault")
