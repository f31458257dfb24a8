"""Tags and own data sets of devices, runs that ask for them, and groups of runs.

Older code would give such runs to any device, and what is to stay on one board would be asked of another: while the
schema is down they wait for nobody, and end in its sweeper unless it is up again before.
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

ROWS = (("run_groups", "id", "1 = 1"),)
HELD = "state = 'queued' AND wants <> ''"
VALUES = (
    ("devices", "tags", "CAST(tags AS TEXT) <> '{}'"),
    ("devices", "own_datasets", "CAST(own_datasets AS TEXT) <> '[]'"),
    ("runs", "wants", "wants <> ''"),
    ("runs", "own_data", "own_data IS NOT NULL"),
    ("runs", "own_data_digest", "own_data_digest IS NOT NULL"),
    ("runs", "group_id", "group_id IS NOT NULL"),
    ("runs", "queue_deadline_at", HELD),
    ("lanes", "wants", "wants <> ''"),
)


def upgrade() -> None:
    op.create_table(
        "run_groups",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("organisation_id", sa.String(length=40), server_default="org_home", nullable=False),
        sa.Column("api_key_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["api_key_id"], ["api_keys.id"], name=op.f("fk_run_groups_api_key_id_api_keys")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run_groups")),
    )
    with op.batch_alter_table("devices") as devices:
        devices.add_column(sa.Column("tags", sa.JSON(), server_default=sa.text("'{}'"), nullable=False))
        devices.add_column(sa.Column("own_datasets", sa.JSON(), server_default=sa.text("'[]'"), nullable=False))
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("wants", sa.Text(), server_default="", nullable=False))
        runs.add_column(sa.Column("own_data", sa.String(length=63), nullable=True))
        runs.add_column(sa.Column("own_data_digest", sa.String(length=71), nullable=True))
        runs.add_column(sa.Column("group_id", sa.String(length=40), nullable=True))
        runs.create_index(op.f("ix_runs_group_id"), ["group_id"])
        runs.create_foreign_key(op.f("fk_runs_group_id_run_groups"), "run_groups", ["group_id"], ["id"])
    with op.batch_alter_table("lanes") as lanes:
        lanes.add_column(sa.Column("wants", sa.Text(), server_default="", nullable=False))
    op.put_back("0016", ROWS, VALUES)


def downgrade() -> None:
    op.set_aside("0016", (), VALUES)
    op.execute(f"UPDATE runs SET queue_deadline_at = 0 WHERE {HELD}")
    op.execute("UPDATE runs SET group_id = NULL")
    op.set_aside("0016", ROWS, ())
    with op.batch_alter_table("runs") as runs:
        runs.drop_constraint(op.f("fk_runs_group_id_run_groups"), type_="foreignkey")
        runs.drop_index(op.f("ix_runs_group_id"))
        for name in ("group_id", "own_data_digest", "own_data", "wants"):
            runs.drop_column(name)
    with op.batch_alter_table("lanes") as lanes:
        lanes.drop_column("wants")
    with op.batch_alter_table("devices") as devices:
        devices.drop_column("own_datasets")
        devices.drop_column("tags")
    op.drop_table("run_groups")
