"""A device stays within the targets that its enrolment token named."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

VALUES = (("devices", "bound_targets", "bound_targets IS NOT NULL"),)


def upgrade() -> None:
    with op.batch_alter_table("devices") as devices:
        devices.add_column(sa.Column("bound_targets", sa.JSON(), nullable=True))
    op.put_back("0018", (), VALUES)


def downgrade() -> None:
    op.set_aside("0018", (), VALUES)
    with op.batch_alter_table("devices") as devices:
        devices.drop_column("bound_targets")
