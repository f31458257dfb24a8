"""Signs of life of workers, sweepers and API processes; indexes for figures of what has ended lately."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

ENDED = ("attempts", "jobs")
ROWS = (("signs_of_life", "name", "1 = 1"),)


def upgrade() -> None:
    op.create_table(
        "signs_of_life",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.CheckConstraint("kind IN ('api', 'sweeper', 'worker')", name=op.f("ck_signs_of_life_kind")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_signs_of_life")),
    )
    op.create_index("ix_signs_of_life_kind_seen_at", "signs_of_life", ["kind", "seen_at"])
    for table in ENDED:
        op.create_index(f"ix_{table}_finished_at", table, ["finished_at"])
    op.put_back("0008", ROWS, ())


def downgrade() -> None:
    op.set_aside("0008", ROWS, ())
    for table in ENDED:
        op.drop_index(f"ix_{table}_finished_at", table)
    op.drop_table("signs_of_life")
