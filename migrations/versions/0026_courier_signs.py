"""Signs of life of couriers: whoever watches the farm sees whether anybody sends its webhooks."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

ROWS = (("signs_of_life", "name", "kind = 'courier'"),)
BEFORE = "kind IN ('api', 'sweeper', 'worker')"
NOW = "kind IN ('api', 'sweeper', 'worker', 'courier')"
CHECK, INDEX = "ck_signs_of_life_kind", "ix_signs_of_life_kind_seen_at"


def upgrade() -> None:
    _check(BEFORE, NOW)
    op.put_back("0026", ROWS, ())


def downgrade() -> None:
    op.set_aside("0026", ROWS, ())
    _check(NOW, BEFORE)


def _check(was: str, then: str) -> None:
    """SQLite cannot change a constraint, nor tell what it is: the table as it was says so."""
    table = sa.Table(
        "signs_of_life",
        sa.MetaData(),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.CheckConstraint(was, name=op.f(CHECK)),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_signs_of_life")),
        sa.Index(INDEX, "kind", "seen_at"),
    )
    with op.batch_alter_table("signs_of_life", copy_from=table) as signs:
        signs.drop_constraint(op.f(CHECK), type_="check")
        signs.create_check_constraint(op.f(CHECK), sa.text(then))
