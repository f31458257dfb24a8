"""Organisations, users, scopes of keys, owners of rows, what each organisation holds, audit entries, allowances.

All that was there belongs to the home organisation. Older code knows none: on the way down what only it can tell apart
(tunings, tokens) is set aside whole, and who owned the rest is put back on the way up.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

HOME = "org_home"
OTHERS = f"organisation_id <> '{HOME}'"
NEW = ("users", "holdings", "audit_entries", "allowances")
DERIVED = " UNION ALL ".join((
    "SELECT 'bundle' AS kind, digest, id, model_name AS name, plan_name, size_bytes, created_at FROM bundles",
    "SELECT 'dataset', digest, id, name, '', size_bytes, created_at FROM datasets",
    "SELECT 'model', model_digest, min(id), '', '', max(model_bytes), min(created_at) FROM jobs GROUP BY model_digest",
    "SELECT 'weights', trained_weights_digest, min(id), '', '', coalesce(max(trained_weights_bytes), 0), "
    "min(created_at) FROM runs WHERE trained_weights_digest IS NOT NULL GROUP BY trained_weights_digest",
))
"""What the home organisation holds by what rows of older code name."""
COLUMNS = ("kind", "digest", "id", "name", "plan_name", "size_bytes", "created_at")
SAME = " AND ".join(f"derived.{name} = holdings.{name}" for name in COLUMNS)
UNHELD = "set_aside_0009_unheld"
"""Files that rows name and nobody held when the schema was taken down."""
ROWS = (
    ("organisations", "id", f"id <> '{HOME}' OR name <> 'home' OR CAST(quotas AS TEXT) <> '{{}}' "
     "OR runs_served_at <> 0 OR created_at <> 0 OR closed_at IS NOT NULL"),
    ("users", "id", "1 = 1"),
    ("holdings", "id", f"{OTHERS} OR NOT EXISTS (SELECT 1 FROM ({DERIVED}) AS derived WHERE {SAME})"),
    ("audit_entries", "id", "1 = 1"),
    ("allowances", "organisation_id", "1 = 1"),
    ("tunings", "id", OTHERS),
    ("enrolment_tokens", "token_hash", f"{OTHERS} OR NOT is_shared"),
)
VALUES = (
    ("api_keys", "organisation_id", OTHERS),
    ("api_keys", "user_id", "user_id IS NOT NULL"),
    ("api_keys", "scopes", "scopes <> ''"),
    ("api_keys", "expires_at", "expires_at IS NOT NULL"),
    ("api_keys", "last_used_at", "last_used_at IS NOT NULL"),
    ("jobs", "organisation_id", OTHERS),
    ("jobs", "cpu_s", "cpu_s <> 0"),
    ("runs", "organisation_id", OTHERS),
    ("devices", "organisation_id", OTHERS),
    ("devices", "is_shared", "NOT is_shared"),
)
def _owner() -> sa.Column:
    return sa.Column("organisation_id", sa.String(length=40), server_default=HOME, nullable=False)


def _shared() -> sa.Column:
    return sa.Column("is_shared", sa.Boolean(), server_default=sa.true(), nullable=False)


def upgrade() -> None:
    _make_tables()
    with op.batch_alter_table("api_keys") as keys:
        keys.add_column(_owner())
        keys.add_column(sa.Column("user_id", sa.String(length=40), nullable=True))
        keys.add_column(sa.Column("scopes", sa.String(length=100), server_default="", nullable=False))
        keys.add_column(sa.Column("expires_at", sa.Double(), nullable=True))
        keys.add_column(sa.Column("last_used_at", sa.Double(), nullable=True))
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(_owner())
        jobs.add_column(sa.Column("cpu_s", sa.Double(), server_default="0", nullable=False))
    with op.batch_alter_table("runs") as runs:
        runs.add_column(_owner())
    for table in ("jobs", "runs"):
        op.create_index(f"ix_{table}_organisation_id_id", table, ["organisation_id", "id"])
    for table in ("devices", "enrolment_tokens"):
        with op.batch_alter_table(table) as owned:
            owned.add_column(_owner())
            owned.add_column(_shared())
    with op.batch_alter_table("tunings") as tunings:
        tunings.add_column(_owner())
        tunings.drop_constraint("uq_tunings_target_version_kernel_threads", type_="unique")
        tunings.create_unique_constraint(
            "uq_tunings_organisation_id_target_version_kernel_threads",
            ["organisation_id", "target", "version", "kernel", "threads"],
        )
    op.put_back("0009", ROWS, VALUES)
    _begin()


def _make_tables() -> None:
    op.create_table(
        "organisations",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("quotas", sa.JSON(), nullable=False),
        sa.Column("runs_served_at", sa.Double(), server_default="0", nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_organisations")),
        sa.UniqueConstraint("name", name=op.f("uq_organisations_name")),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("organisation_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("removed_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["organisation_id"], ["organisations.id"], name=op.f("fk_users_organisation_id_organisations")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("organisation_id", "name", name=op.f("uq_users_organisation_id_name")),
    )
    op.create_table(
        "holdings",
        sa.Column("organisation_id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), server_default="", nullable=False),
        sa.Column("plan_name", sa.String(length=200), server_default="", nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.CheckConstraint(
            "kind IN ('bundle', 'dataset', 'model', 'data', 'weights')", name=op.f("ck_holdings_kind")
        ),
        sa.PrimaryKeyConstraint("organisation_id", "kind", "digest", name=op.f("pk_holdings")),
    )
    op.create_index("ix_holdings_organisation_id_kind_id", "holdings", ["organisation_id", "kind", "id"])
    op.create_index("ix_holdings_digest", "holdings", ["digest"])
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("organisation_id", sa.String(length=40), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("key_id", sa.String(length=40), nullable=True),
        sa.Column("user_id", sa.String(length=40), nullable=True),
        sa.Column("address", sa.String(length=100), nullable=False),
        sa.Column("action", sa.String(length=200), nullable=False),
        sa.Column("subject", sa.String(length=200), nullable=False),
        sa.Column("outcome", sa.String(length=20), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("code", sa.String(length=100), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entries")),
    )
    op.create_index("ix_audit_entries_organisation_id_id", "audit_entries", ["organisation_id", "id"])
    op.create_table(
        "allowances",
        sa.Column("organisation_id", sa.String(length=40), nullable=False),
        sa.Column("tokens", sa.Double(), nullable=False),
        sa.Column("filled_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", name=op.f("pk_allowances")),
    )


def _begin() -> None:
    """The home organisation, and what it holds of what older code made."""
    connection = op.get_bind()
    organisations = sa.table("organisations", *(sa.column(name) for name in ("id", "name", "created_at")),
                             sa.column("quotas", sa.JSON()))
    if connection.scalar(sa.select(organisations.c.id).where(organisations.c.id == HOME)) is None:
        connection.execute(organisations.insert(), [{"id": HOME, "name": "home", "quotas": {}, "created_at": 0.0}])
    names = ", ".join(COLUMNS)
    found = ", ".join(f"derived.{name}" for name in COLUMNS)
    others = ["holdings", *([UNHELD] if sa.inspect(connection).has_table(UNHELD) else [])]
    new = " AND ".join(
        f"NOT EXISTS (SELECT 1 FROM {table} AS known WHERE known.kind = derived.kind AND known.digest = derived.digest)"
        for table in others
    )
    op.execute(f"INSERT INTO holdings (organisation_id, {names}) SELECT '{HOME}', {found} FROM ({DERIVED}) AS derived "
               f"WHERE {new}")
    if UNHELD in others:
        op.drop_table(UNHELD)


def _note_unheld() -> None:
    held = "SELECT 1 FROM holdings WHERE holdings.kind = derived.kind AND holdings.digest = derived.digest"
    found = f"FROM ({DERIVED}) AS derived WHERE NOT EXISTS ({held})"
    if op.get_bind().scalar(sa.text(f"SELECT count(*) {found}")):
        op.execute(f"CREATE TABLE {UNHELD} AS SELECT derived.kind, derived.digest {found}")


def downgrade() -> None:
    _note_unheld()
    op.set_aside("0009", ROWS, VALUES)
    with op.batch_alter_table("tunings") as tunings:
        tunings.drop_constraint("uq_tunings_organisation_id_target_version_kernel_threads", type_="unique")
        tunings.create_unique_constraint(
            "uq_tunings_target_version_kernel_threads", ["target", "version", "kernel", "threads"]
        )
        tunings.drop_column("organisation_id")
    for table in ("enrolment_tokens", "devices"):
        with op.batch_alter_table(table) as owned:
            owned.drop_column("is_shared")
            owned.drop_column("organisation_id")
    for table in ("runs", "jobs"):
        op.drop_index(f"ix_{table}_organisation_id_id", table)
    with op.batch_alter_table("runs") as runs:
        runs.drop_column("organisation_id")
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_column("cpu_s")
        jobs.drop_column("organisation_id")
    with op.batch_alter_table("api_keys") as keys:
        for name in ("last_used_at", "expires_at", "scopes", "user_id", "organisation_id"):
            keys.drop_column(name)
    for table in (*reversed(NEW), "organisations"):
        op.drop_table(table)
