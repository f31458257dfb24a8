"""The newest checkpoint of each unfinished run."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

ROWS = (("checkpoints", "run_id", "1 = 1"),)
VALUES = (("attempts", "checkpoint_step", "checkpoint_step IS NOT NULL"),)


def upgrade() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("attempt_id", sa.String(length=40), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("stored_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_checkpoints_run_id_runs")),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_checkpoints_attempt_id_attempts")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_checkpoints")),
    )
    op.create_index("ix_checkpoints_digest", "checkpoints", ["digest"])
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("checkpoint_step", sa.Integer(), nullable=True))
    op.put_back("0019", ROWS, VALUES)


def downgrade() -> None:
    op.set_aside("0019", ROWS, VALUES)
    with op.batch_alter_table("attempts") as attempts:
        attempts.drop_column("checkpoint_step")
    op.drop_table("checkpoints")
