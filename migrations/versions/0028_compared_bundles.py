"""Runs of mode compare: the bundles that take turns, and which modes a device's agent takes.

On the way down such runs, and those of mode sustained, which need no table of their own, are set aside with what
belongs to them: 0027's code knows no such modes. Neither does it know
a warm-up by rule (it is 3 steps for it), a report without an interval (it is the median, twice), or the verdict
`function` (`noisy`): these values are set aside, and come back.
"""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

COMPARING = (
    "(CAST(settings AS TEXT) LIKE '%\"mode\": \"compare\"%' OR CAST(settings AS TEXT) LIKE '%\"mode\": \"sustained\"%')"
)
RUNS = f"(SELECT id FROM runs WHERE {COMPARING})"
ROWS = (
    ("runs", "id", COMPARING),
    ("compared_bundles", "run_id", "1 = 1"),
    ("attempts", "id", f"run_id IN {RUNS}"),
    ("results", "attempt_id", f"run_id IN {RUNS}"),
    ("strikes", "id", f"run_id IN {RUNS}"),
    ("tunings", "id", f"run_id IN {RUNS}"),
    ("checkpoints", "run_id", f"run_id IN {RUNS}"),
)
BY_RULE = "CAST(settings AS TEXT) LIKE '%\"warmup\": null%'"
BARE = "CAST(report AS TEXT) LIKE '%\"interval_low_us\": null%'"
FUNCTION = "CAST(report AS TEXT) LIKE '%\"kind\": \"function\"%'"
VALUES = (
    ("devices", "modes", "CAST(modes AS TEXT) <> '[]'"),
    ("runs", "settings", BY_RULE),
    ("results", "report", f"{BARE} OR {FUNCTION}"),
)
ENDS = ("interval_low_us", "interval_high_us")


def upgrade() -> None:
    op.create_table(
        "compared_bundles",
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("bundle_digest", sa.String(length=71), nullable=False),
        sa.ForeignKeyConstraint(
            ["bundle_digest"], ["bundles.digest"], name=op.f("fk_compared_bundles_bundle_digest_bundles")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_compared_bundles_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "place", name=op.f("pk_compared_bundles")),
    )
    op.create_index(op.f("ix_compared_bundles_bundle_digest"), "compared_bundles", ["bundle_digest"])
    with op.batch_alter_table("devices") as devices:
        devices.add_column(sa.Column("modes", sa.JSON(), server_default=sa.text("'[]'"), nullable=False))
    op.give_up_overtaken_attempts("0028")
    op.put_back("0028", ROWS, VALUES)


def downgrade() -> None:
    op.set_aside("0028", ROWS, VALUES)
    json = "JSON" if op.get_bind().dialect.name == "postgresql" else "TEXT"
    op.execute(
        "UPDATE runs SET settings = CAST(REPLACE(CAST(settings AS TEXT), '\"warmup\": null', '\"warmup\": 3') "
        f"AS {json}) WHERE {BY_RULE}"
    )
    op.execute(
        "UPDATE results SET report = CAST(REPLACE(CAST(report AS TEXT), '\"kind\": \"function\"', "
        f"'\"kind\": \"noisy\"') AS {json}) WHERE {FUNCTION}"
    )
    op.execute(f"UPDATE results SET report = {_with_median()} WHERE {BARE}")
    with op.batch_alter_table("devices") as devices:
        devices.drop_column("modes")
    op.drop_index(op.f("ix_compared_bundles_bundle_digest"), "compared_bundles")
    op.drop_table("compared_bundles")


def _with_median() -> str:
    """The report with its median where the ends of its interval are not known."""
    low, high = ENDS
    if op.get_bind().dialect.name == "postgresql":
        median = "report::jsonb #> '{measurement,median_us}'"
        inner = f"jsonb_set(report::jsonb, '{{measurement,{low}}}', {median})"
        return f"jsonb_set({inner}, '{{measurement,{high}}}', {median})::json"
    median = "json_extract(report, '$.measurement.median_us')"
    return f"json_set(report, '$.measurement.{low}', {median}, '$.measurement.{high}', {median})"
