"""Runs of mode prune, and the verdict `unsure`.

On the way down such runs are set aside with what belongs to them: older code knows no such mode. It takes an unsure
verdict for a noisy one meanwhile.
"""

from typing import Any

import alembic.op
import sqlalchemy as sa

revision = "9002"
down_revision = "9001"
branch_labels = None
depends_on = None

op: Any = alembic.op
PRUNING = 'CAST(settings AS TEXT) LIKE \'%"mode": "prune"%\''
RUNS = f"(SELECT id FROM runs WHERE {PRUNING})"
ROWS = (
    ("runs", "id", PRUNING),
    ("compared_bundles", "run_id", f"run_id IN {RUNS}"),
    ("attempts", "id", f"run_id IN {RUNS}"),
    ("checkpoints", "run_id", f"run_id IN {RUNS}"),
    ("results", "attempt_id", f"run_id IN {RUNS}"),
    ("strikes", "id", f"run_id IN {RUNS}"),
    ("tunings", "id", f"run_id IN {RUNS}"),
    ("canary_times", "run_id", f"run_id IN {RUNS}"),
    ("canary_changes", "id", f"before_run_id IN {RUNS} OR after_run_id IN {RUNS}"),
)
UNSURE = "verdict = 'unsure'"
VALUES = (("runs", "pruned_share", "pruned_share IS NOT NULL"), ("runs", "verdict", UNSURE))


def upgrade() -> None:
    op.add_column("runs", sa.Column("pruned_share", sa.Double(), nullable=True))
    op.put_back(revision, ROWS, VALUES)


def downgrade() -> None:
    op.set_aside(revision, ROWS, VALUES)
    op.execute(f"UPDATE runs SET verdict = 'noisy' WHERE {UNSURE}")
    op.execute("ALTER TABLE runs DROP COLUMN pruned_share")
