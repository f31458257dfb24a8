"""How many compiles each worker runs at once, by which organisations share them."""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

VALUES = (("signs_of_life", "slots", "slots <> 0"),)


def upgrade() -> None:
    with op.batch_alter_table("signs_of_life") as signs:
        signs.add_column(sa.Column("slots", sa.Integer(), server_default="0", nullable=False))
    op.put_back("0038", (), VALUES)


def downgrade() -> None:
    op.set_aside("0038", (), VALUES)
    op.execute("ALTER TABLE signs_of_life DROP COLUMN slots")
