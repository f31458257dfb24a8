"""Heads of the log that the farm has signed, and triggers that refuse to change or remove what the log says.

A later migration that builds one of these tables anew (SQLite's batch mode) has to make its triggers again.
"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

ROWS = (("log_heads", "paper", "1 = 1"),)
TABLES = ("logged_results", "log_nodes", "log_heads")
EVENTS = ("UPDATE", "DELETE")
SAID = "the log of results only grows"


def upgrade() -> None:
    op.create_table(
        "log_heads",
        sa.Column("size", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("paper", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("size", name=op.f("pk_log_heads")),
    )
    op.put_back("0023", ROWS, ())
    is_postgres = op.get_bind().dialect.name == "postgresql"
    if is_postgres:
        op.execute("CREATE FUNCTION refuse_log_change() RETURNS trigger LANGUAGE plpgsql AS "
                   f"$$ BEGIN RAISE EXCEPTION '{SAID}'; END $$")
    body = "EXECUTE FUNCTION refuse_log_change()" if is_postgres else f"BEGIN SELECT RAISE(ABORT, '{SAID}'); END"
    for table in TABLES:
        for event in EVENTS:
            op.execute(f"CREATE TRIGGER {_name(table, event)} BEFORE {event} ON {table} FOR EACH ROW {body}")


def downgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    for table in TABLES:
        for event in EVENTS:
            op.execute(f"DROP TRIGGER {_name(table, event)}" + (f" ON {table}" if is_postgres else ""))
    if is_postgres:
        op.execute("DROP FUNCTION refuse_log_change()")
    op.set_aside("0023", ROWS, ())
    op.drop_table("log_heads")


def _name(table: str, event: str) -> str:
    return f"{table}_refuse_{event.lower()}"
