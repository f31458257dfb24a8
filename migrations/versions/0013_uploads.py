"""Files that come in pieces."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

ROWS = (("uploads", "id", "1 = 1"),)


def upgrade() -> None:
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("organisation_id", sa.String(length=40), server_default="org_home", nullable=False),
        sa.Column("api_key_id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("declared_digest", sa.String(length=71), nullable=True),
        sa.Column("digest", sa.String(length=71), nullable=True),
        sa.Column("received_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.CheckConstraint("kind IN ('model', 'data', 'dataset')", name=op.f("ck_uploads_kind")),
        sa.ForeignKeyConstraint(["api_key_id"], ["api_keys.id"], name=op.f("fk_uploads_api_key_id_api_keys")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
    )
    op.create_index("ix_uploads_api_key_id_declared_digest", "uploads", ["api_key_id", "declared_digest"])
    op.create_index("ix_uploads_expires_at", "uploads", ["expires_at"])
    op.put_back("0013", ROWS, ())


def downgrade() -> None:
    op.set_aside("0013", ROWS, ())
    op.drop_table("uploads")
