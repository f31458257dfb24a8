"""How many bytes the events of an attempt take.

On the way down that is set aside: 0034's code counts events alone.
"""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

VALUES = (("attempts", "event_bytes", "event_bytes <> 0"),)


def upgrade() -> None:
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("event_bytes", sa.Integer(), server_default="0", nullable=False))
    op.put_back("0035", (), VALUES)


def downgrade() -> None:
    op.set_aside("0035", (), VALUES)
    op.execute("ALTER TABLE attempts DROP COLUMN event_bytes")
