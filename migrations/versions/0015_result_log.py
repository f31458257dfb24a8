"""The append-only log of results. Results from before are appended by the sweeper, the oldest first."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

ROWS = (("logged_results", "attempt_id", "1 = 1"), ("log_nodes", "hash", "1 = 1"))
VALUES = (("results", "log_index", "log_index IS NOT NULL"),)


def upgrade() -> None:
    op.create_table(
        "logged_results",
        sa.Column("place", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt_id", sa.String(length=40), nullable=False),
        sa.Column("entry", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("place", name=op.f("pk_logged_results")),
        sa.UniqueConstraint("attempt_id", name=op.f("uq_logged_results_attempt_id")),
    )
    op.create_table(
        "log_nodes",
        sa.Column("level", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("level", "position", name=op.f("pk_log_nodes")),
    )
    with op.batch_alter_table("results") as results:
        results.add_column(sa.Column("log_index", sa.BigInteger(), nullable=True))
    op.create_index("ix_results_unlogged", "results", ["recorded_at"], sqlite_where=sa.text("log_index IS NULL"),
                    postgresql_where=sa.text("log_index IS NULL"))
    op.put_back("0015", ROWS, VALUES)


def downgrade() -> None:
    op.set_aside("0015", ROWS, VALUES)
    op.drop_index("ix_results_unlogged", "results")
    with op.batch_alter_table("results") as results:
        results.drop_column("log_index")
    op.drop_table("log_nodes")
    op.drop_table("logged_results")
