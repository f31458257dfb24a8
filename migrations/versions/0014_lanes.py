"""Lanes: the queue sorted by which devices may take its runs.

Columns and indexes only. Runs that are queued now, or by older code that is still at work, are put into their lanes by
the sweeper (`service.work.lanes.key.enter_queued`), in small transactions.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

ROWS = (("lanes", "id", "1 = 1"),)
VALUES = (("runs", "lane_id", "lane_id IS NOT NULL"),)
QUEUED = sa.text("state = 'queued'")
INDEXES = (("ix_runs_queue", ["lane_id", "created_at", "id"]), ("ix_runs_queue_deadline", ["queue_deadline_at"]))


def upgrade() -> None:
    op.create_table(
        "lanes",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("organisation_id", sa.String(length=40), nullable=False),
        sa.Column("target", sa.String(length=100), nullable=False),
        sa.Column("features", sa.JSON(), nullable=False),
        sa.Column("device_class", sa.String(length=100), nullable=False),
        sa.Column("device_id", sa.String(length=40), nullable=False),
        sa.Column("is_canary", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lanes")),
    )
    op.create_index("ix_lanes_device_id_target", "lanes", ["device_id", "target", "device_class"])
    op.add_column("runs", sa.Column("lane_id", sa.String(length=40), nullable=True))
    for name, columns in INDEXES:
        op.create_index(name, "runs", columns, sqlite_where=QUEUED, postgresql_where=QUEUED)
    op.put_back("0014", ROWS, VALUES)


def downgrade() -> None:
    op.set_aside("0014", ROWS, VALUES)
    for name, _ in INDEXES:
        op.drop_index(name, "runs")
    with op.batch_alter_table("runs") as runs:
        runs.drop_column("lane_id")
    op.drop_index("ix_lanes_device_id_target", "lanes")
    op.drop_table("lanes")
