"""The data set that a run's training is validated on, `runs.validation_dataset_digest`; null for all runs until now.

On the way down every run that has one is set aside with what belongs to it: 0005's code would validate nothing, and
cannot read settings (patience, ...) of validations without a share.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

VALIDATED = "(SELECT id FROM runs WHERE validation_dataset_digest IS NOT NULL)"
ROWS = (
    ("runs", "id", "validation_dataset_digest IS NOT NULL"),
    ("attempts", "id", f"run_id IN {VALIDATED}"),
    ("results", "attempt_id", f"run_id IN {VALIDATED}"),
    ("strikes", "id", f"run_id IN {VALIDATED}"),
    ("tunings", "id", f"run_id IN {VALIDATED}"),
)
FOREIGN_KEY = "fk_runs_validation_dataset_digest_datasets"


def upgrade() -> None:
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("validation_dataset_digest", sa.String(length=71), nullable=True))
        runs.create_foreign_key(FOREIGN_KEY, "datasets", ["validation_dataset_digest"], ["digest"])
    op.give_up_overtaken_attempts("0006")
    op.put_back("0006", ROWS, ())


def downgrade() -> None:
    op.set_aside("0006", ROWS, ())
    with op.batch_alter_table("runs") as runs:
        runs.drop_constraint(FOREIGN_KEY, type_="foreignkey")
        runs.drop_column("validation_dataset_digest")
