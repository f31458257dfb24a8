"""Since when keys, devices and webhooks wait, after a restore, for somebody who says that they are still good.

On the way down the older code knows nothing of it: there they are revoked and removed, until the next upgrade.
"""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0035"
branch_labels = None
depends_on = None

WAITS = "unconfirmed_at IS NOT NULL"
ENDS = (("api_keys", "revoked_at", "COALESCE(revoked_at, unconfirmed_at)"),
        ("webhooks", "removed_at", "COALESCE(removed_at, unconfirmed_at)"),
        ("devices", "state", "'removed'"))
VALUES = tuple((table, column, WAITS) for table, ending, _ in ENDS for column in (ending, "unconfirmed_at"))


def upgrade() -> None:
    for table, _, _ in ENDS:
        with op.batch_alter_table(table) as changed:
            changed.add_column(sa.Column("unconfirmed_at", sa.Double(), nullable=True))
    op.put_back("0037", (), VALUES)


def downgrade() -> None:
    op.set_aside("0037", (), VALUES)
    for table, column, ended in ENDS:
        op.execute(f"UPDATE {table} SET {column} = {ended} WHERE {WAITS}")
        op.execute(f"ALTER TABLE {table} DROP COLUMN unconfirmed_at")
