"""Which data set of its device's own an attempt was told to use: its checkpoints go with no other."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

VALUES = (("attempts", "own_data_digest", "own_data_digest IS NOT NULL"),)


def upgrade() -> None:
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("own_data_digest", sa.String(length=71), nullable=True))
    op.put_back("0024", (), VALUES)


def downgrade() -> None:
    op.set_aside("0024", (), VALUES)
    with op.batch_alter_table("attempts") as attempts:
        attempts.drop_column("own_data_digest")
