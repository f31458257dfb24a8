"""Shelves on which boards stand, and the one that a run asks for: a table and columns, one of them with a foreign key.

On the way down all of it is set aside.
"""

from typing import Any

import alembic.op
import sqlalchemy as sa

from service.store.database.schema import MIGRATIONS

revision = "9001"
down_revision = max(path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))
branch_labels = None
depends_on = None

op: Any = alembic.op
ROWS = (("shelves", "id", "1 = 1"),)
VALUES = (("devices", "shelf_id", "shelf_id IS NOT NULL"), ("runs", "wanted_shelf", "wanted_shelf <> ''"))
FOREIGN_KEY = "fk_devices_shelf_id_shelves"


def upgrade() -> None:
    op.create_table(
        "shelves",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_shelves"),
        sa.UniqueConstraint("name", name="uq_shelves_name"),
    )
    with op.batch_alter_table("devices") as devices:  # SQLite builds it anew, and much refers to it
        devices.add_column(sa.Column("shelf_id", sa.String(40), nullable=True))
        devices.create_foreign_key(FOREIGN_KEY, "shelves", ["shelf_id"], ["id"])
    op.add_column("runs", sa.Column("wanted_shelf", sa.String(40), server_default="", nullable=False))
    op.put_back(revision, ROWS, VALUES)


def downgrade() -> None:
    op.set_aside(revision, (), VALUES)
    op.execute("ALTER TABLE runs DROP COLUMN wanted_shelf")
    with op.batch_alter_table("devices") as devices:
        devices.drop_constraint(FOREIGN_KEY, type_="foreignkey")
        devices.drop_column("shelf_id")
    op.set_aside(revision, ROWS, ())
    op.drop_table("shelves")
