"""Names, notes and tags of runs.

On the way down they are set aside: 0029's code has nowhere to show them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0029"
branch_labels = None
depends_on = None

COLUMNS = ("name", "note", "tags")
VALUES = tuple(("runs", column, f"{column} <> ''") for column in COLUMNS)
TAGGED = {"sqlite_where": sa.text("tags <> ''"), "postgresql_where": sa.text("tags <> ''")}


def upgrade() -> None:
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("name", sa.String(length=100), server_default="", nullable=False))
        runs.add_column(sa.Column("note", sa.Text(), server_default="", nullable=False))
        runs.add_column(sa.Column("tags", sa.Text(), server_default="", nullable=False))
    op.create_index("ix_runs_tagged", "runs", ["organisation_id", "id"], **TAGGED)
    op.put_back("0032", (), VALUES)


def downgrade() -> None:
    op.set_aside("0032", (), VALUES)
    op.drop_index("ix_runs_tagged", "runs")
    for column in reversed(COLUMNS):
        op.execute(f"ALTER TABLE runs DROP COLUMN {column}")
