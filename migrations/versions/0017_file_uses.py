"""When stored files were last needed, and what models' listings name; indexes for asking what refers to a file."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

ROWS = (("file_uses", "digest", "1 = 1"), ("listed_files", "listing", "1 = 1"))
ASKED = (("jobs", "model_digest"), ("runs", "weights_digest"), ("attempts", "weights_digest"))


def upgrade() -> None:
    op.create_table(
        "file_uses",
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.Column("removed_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_file_uses")),
    )
    op.create_table(
        "listed_files",
        sa.Column("listing", sa.String(length=71), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.PrimaryKeyConstraint("listing", "digest", name=op.f("pk_listed_files")),
    )
    op.create_index("ix_listed_files_digest", "listed_files", ["digest"])
    for table, column in ASKED:
        op.create_index(f"ix_{table}_{column}", table, [column])
    op.put_back("0017", ROWS, ())


def downgrade() -> None:
    op.set_aside("0017", ROWS, ())
    for table, column in ASKED:
        op.drop_index(f"ix_{table}_{column}", table)
    op.drop_table("listed_files")
    op.drop_table("file_uses")
