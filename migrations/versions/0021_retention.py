"""Rules of how long things stay, pins against them, and when something was taken."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

MARKS = (
    ("holdings", "pinned_at"), ("holdings", "files_removed_at"), ("runs", "pinned_at"), ("runs", "events_removed_at"),
    ("jobs", "files_removed_at"), ("jobs", "events_removed_at"), ("file_uses", "released_at"),
)
VALUES = (("organisations", "retention", "CAST(retention AS TEXT) <> '{}'"), ("holdings", "pinned_at", "pinned_at IS NOT NULL"),
          ("holdings", "files_removed_at", "files_removed_at IS NOT NULL"), ("runs", "pinned_at", "pinned_at IS NOT NULL"),
          ("runs", "events_removed_at", "events_removed_at IS NOT NULL"),
          ("jobs", "files_removed_at", "files_removed_at IS NOT NULL"),
          ("jobs", "events_removed_at", "events_removed_at IS NOT NULL"),
          ("file_uses", "released_at", "released_at IS NOT NULL"))
ASKED = ("dataset_digest", "validation_dataset_digest")


def upgrade() -> None:
    with op.batch_alter_table("organisations") as organisations:
        organisations.add_column(sa.Column("retention", sa.JSON(), nullable=False, server_default="{}"))
    for table, column in MARKS:
        with op.batch_alter_table(table) as marked:
            marked.add_column(sa.Column(column, sa.Double(), nullable=True))
    for column in ASKED:
        op.create_index(f"ix_runs_{column}", "runs", [column])
    op.put_back("0021", (), VALUES)


def downgrade() -> None:
    op.set_aside("0021", (), VALUES)
    for column in ASKED:
        op.drop_index(f"ix_runs_{column}", "runs")
    for table, column in MARKS:
        with op.batch_alter_table(table) as marked:
            marked.drop_column(column)
    with op.batch_alter_table("organisations") as organisations:
        organisations.drop_column("retention")
