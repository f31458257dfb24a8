"""Challenges are good once; an attempt knows how its device promised to isolate it."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

ROWS = (("used_challenges", "challenge_hash", "1 = 1"),)
VALUES = (("attempts", "isolation_level", "isolation_level IS NOT NULL"),)


def upgrade() -> None:
    op.create_table(
        "used_challenges",
        sa.Column("challenge_hash", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("challenge_hash", name=op.f("pk_used_challenges")),
    )
    op.create_index(op.f("ix_used_challenges_expires_at"), "used_challenges", ["expires_at"])
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("isolation_level", sa.Integer(), nullable=True))
    op.put_back("0010", ROWS, VALUES)


def downgrade() -> None:
    op.set_aside("0010", ROWS, VALUES)
    with op.batch_alter_table("attempts") as attempts:
        attempts.drop_column("isolation_level")
    op.drop_index(op.f("ix_used_challenges_expires_at"), "used_challenges")
    op.drop_table("used_challenges")
