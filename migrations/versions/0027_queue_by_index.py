"""Queued runs are found by an index that serves nothing else: a database cannot take another one for it.

Older code that is still at work afterwards finds what waits by the index of states and times: slower, and nothing else.
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

QUEUED = sa.text("state = 'queued'")
UNENTERED = sa.text("state = 'queued' AND rarest_wish IS NULL")


def upgrade() -> None:
    _by_queued("ix_runs_queued_in", "lane_id", "created_at", "id", "asked_s")
    _by_queued("ix_runs_queued_under", "rarest_wish", "lane_id")
    _index("ix_runs_unentered", ["created_at", "id"], UNENTERED)
    op.drop_index("ix_runs_rarest_wish", "runs")
    op.drop_index("ix_runs_queue", "runs")


def downgrade() -> None:
    _index("ix_runs_queue", ["lane_id", "created_at", "id", "asked_s"], QUEUED)
    _index("ix_runs_rarest_wish", ["rarest_wish", "lane_id"], QUEUED)
    for name in ("ix_runs_unentered", "ix_runs_queued_under", "ix_runs_queued_in"):
        op.drop_index(name, "runs")


def _by_queued(name: str, column: str, *others: str) -> None:
    first = f"(CASE WHEN state = 'queued' THEN {column} END)"
    _index(name, [sa.text(first), *others], sa.text(f"{first} IS NOT NULL"))


def _index(name: str, columns: list[object], condition: sa.TextClause) -> None:
    op.create_index(name, "runs", columns, sqlite_where=condition, postgresql_where=condition)
