"""Under which wish devices find a queued run, and how long it may take, in the indexes of queued runs.

Columns and indexes only. Runs that are queued now, or by older code that is still at work, are found once the sweeper has
looked at them (`service.work.lanes.entering.enter_queued`), in small transactions.
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

VALUES = (("runs", "rarest_wish", "rarest_wish IS NOT NULL"), ("runs", "asked_s", "asked_s <> 0"))
QUEUED = sa.text("state = 'queued'")
QUEUE = ["lane_id", "created_at", "id"]


def upgrade() -> None:
    op.add_column("runs", sa.Column("rarest_wish", sa.String(length=200), nullable=True))
    op.add_column("runs", sa.Column("asked_s", sa.Double(), server_default="0", nullable=False))
    op.drop_index("ix_runs_queue", "runs")
    _index("ix_runs_queue", [*QUEUE, "asked_s"])
    _index("ix_runs_rarest_wish", ["rarest_wish", "lane_id"])
    op.drop_index("ix_lanes_device_id_target", "lanes")
    op.put_back("0022", (), VALUES)


def downgrade() -> None:
    op.set_aside("0022", (), VALUES)
    op.create_index("ix_lanes_device_id_target", "lanes", ["device_id", "target", "device_class"])
    op.drop_index("ix_runs_rarest_wish", "runs")
    op.drop_index("ix_runs_queue", "runs")
    _index("ix_runs_queue", QUEUE)
    op.drop_column("runs", "asked_s")
    op.drop_column("runs", "rarest_wish")


def _index(name: str, columns: list[str]) -> None:
    op.create_index(name, "runs", columns, sqlite_where=QUEUED, postgresql_where=QUEUED)
