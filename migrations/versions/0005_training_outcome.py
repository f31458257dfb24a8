"""How training ended, `runs.training_outcome`; null for other modes, and until a report has come.

On the way down it is set aside, and so are open runs with settings that 0004's code would do without: they wait for the
newer code, with what belongs to them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SETTINGS = {
    "schedule": None,
    "warmup_steps": None,
    "schedule_steps": None,
    "final_ratio": None,
    "validation": None,
    "eval_every": None,
    "patience": None,
    "min_delta": 0.0,
    "save_best": False,
    "explosion_factor": None,
}
"""That are new, each with the value of a run whose user left it alone."""
NOT_TO_DO = "runs_not_to_do_0005"
"""Table with the ids of runs that leave; there for one downgrade."""
OPEN = ("queued", "leased", "running")
LOST = f"(SELECT id FROM {NOT_TO_DO})"
ROWS = (
    ("runs", "id", f"id IN {LOST}"),
    ("attempts", "id", f"run_id IN {LOST}"),
    ("results", "attempt_id", f"run_id IN {LOST}"),
    ("strikes", "id", f"run_id IN {LOST}"),
    ("tunings", "id", f"run_id IN {LOST}"),
)
VALUES = (("runs", "training_outcome", "training_outcome IS NOT NULL"),)


def upgrade() -> None:
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("training_outcome", sa.String(length=20), nullable=True))
    op.give_up_overtaken_attempts("0005")
    op.put_back("0005", ROWS, VALUES)


def downgrade() -> None:
    op.create_table(NOT_TO_DO, sa.Column("id", sa.String(length=40)))
    _mark_what_is_not_to_do()
    op.set_aside("0005", ROWS, VALUES)
    op.drop_table(NOT_TO_DO)
    with op.batch_alter_table("runs") as runs:
        runs.drop_column("training_outcome")


def _mark_what_is_not_to_do():
    runs = sa.table("runs", sa.column("id", sa.String()), sa.column("state"), sa.column("settings", sa.JSON()))
    found = sa.select(runs.c.id, runs.c.settings).where(runs.c.state.in_(OPEN))
    ids = [{"id": run_id} for run_id, settings in op.get_bind().execute(found).all()
           if any(settings.get(name, unset) != unset for name, unset in SETTINGS.items())]
    if ids:
        op.get_bind().execute(sa.table(NOT_TO_DO, sa.column("id", sa.String())).insert(), ids)
