"""What a user sets for a run as one JSON value, `runs.settings`, in place of a column for each setting.

On the way down each setting that 0003 has a column for goes back into it. Values that hold more than that (settings of a
later version) are set aside. So are whole runs, with what belongs to them, that 0003 must not do: those of a mode that it
does not know, and open ones with a setting that it would do without.
"""

import math

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

MODES = ("profile", "train", "eval", "tune")
COLUMNS = (
    ("mode", sa.String(length=20), "profile"),
    ("steps", sa.Integer(), 0),
    ("warmup", sa.Integer(), 0),
    ("seed", sa.BigInteger(), 0),
    ("learning_rate", sa.Double(), None),
    ("threads", sa.Integer(), None),
    ("tune_s", sa.Double(), None),
)
"""Of 0003: name, type, and the value of a run whose settings lack it (None: the column is nullable)."""
BATCH = 1000

NOT_TO_DO, LARGER = "runs_not_to_do_0004", "larger_settings_0004"
"""Tables with the ids of runs that leave, and of those of which only the settings do; there for one downgrade."""
OPEN = ("queued", "leased", "running")
LOST = f"(SELECT id FROM {NOT_TO_DO})"
ROWS = (
    ("runs", "id", f"id IN {LOST}"),
    ("attempts", "id", f"run_id IN {LOST}"),
    ("results", "attempt_id", f"run_id IN {LOST}"),
    ("strikes", "id", f"run_id IN {LOST}"),
    ("tunings", "id", f"run_id IN {LOST}"),
)
VALUES = (("runs", "settings", f"id IN (SELECT id FROM {LARGER})"),)


def upgrade() -> None:
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("settings", sa.JSON(), nullable=True))
    _each_run([sa.column(name, kind) for name, kind, _ in COLUMNS], lambda row: {"settings": dict(row)})
    with op.batch_alter_table("runs") as runs:
        runs.alter_column("settings", existing_type=sa.JSON(), nullable=False)
        runs.drop_constraint(op.f("ck_runs_mode"), type_="check")
        for name, _, _ in COLUMNS:
            runs.drop_column(name)
    op.give_up_overtaken_attempts("0004")
    op.put_back("0004", ROWS, VALUES)


def downgrade() -> None:
    for table in (NOT_TO_DO, LARGER):
        op.create_table(table, sa.Column("id", sa.String(length=40)))
    _mark_what_is_too_much()
    op.set_aside("0004", ROWS, VALUES)
    for table in (NOT_TO_DO, LARGER):
        op.drop_table(table)
    with op.batch_alter_table("runs") as runs:
        for name, kind, _ in COLUMNS:
            runs.add_column(sa.Column(name, kind, nullable=True))
    _each_run([sa.column("settings", sa.JSON())], lambda row: _in_columns(row["settings"]))
    with op.batch_alter_table("runs") as runs:
        for name, kind, without in COLUMNS:
            if without is not None:
                runs.alter_column(name, existing_type=kind, nullable=False)
        runs.create_check_constraint(op.f("ck_runs_mode"), f"mode IN ({', '.join(map(repr, MODES))})")
        runs.drop_column("settings")


def _in_columns(settings):
    """The value of each column; what is no such value becomes the one of a run without it."""
    found = {name: settings.get(name, without) for name, _, without in COLUMNS}
    return {name: found[name] if _fits(name, kind, found[name]) else without for name, kind, without in COLUMNS}


def _fits(name, kind, value):
    if value is None or isinstance(value, bool):
        return False
    if name == "mode":
        return value in MODES
    if isinstance(kind, sa.Double):
        return isinstance(value, (int, float)) and math.isfinite(value)
    return isinstance(value, int) and abs(value) < (1 << 63 if isinstance(kind, sa.BigInteger) else 1 << 31)


def _mark_what_is_too_much():
    runs = sa.table("runs", sa.column("id", sa.String()), sa.column("state"), sa.column("settings", sa.JSON()))
    not_to_do, larger = [], []
    for run_id, state, settings in op.get_bind().execute(sa.select(runs.c.id, runs.c.state, runs.c.settings)).all():
        if settings.get("mode") in MODES and _in_columns(settings) == settings:
            continue
        leaves = settings.get("mode") not in MODES or state in OPEN
        (not_to_do if leaves else larger).append({"id": run_id})
    for name, ids in ((NOT_TO_DO, not_to_do), (LARGER, larger)):
        if ids:
            op.get_bind().execute(sa.table(name, sa.column("id", sa.String())).insert(), ids)


def _each_run(columns, changed):
    """Update every run with what `changed` makes of these columns of it."""
    runs = sa.table("runs", sa.column("id", sa.String()))
    bind = op.get_bind()
    rows = bind.execute(sa.select(runs.c.id, *columns).select_from(runs)).mappings().all()
    for first in range(0, len(rows), BATCH):
        values = [(row["id"], changed({column.name: row[column.name] for column in columns}))
                  for row in rows[first : first + BATCH]]
        names = list(values[0][1])
        kinds = {"settings": sa.JSON(), **{name: kind for name, kind, _ in COLUMNS}}
        target = sa.table("runs", sa.column("id", sa.String()), *(sa.column(name, kinds[name]) for name in names))
        change = target.update().where(target.c.id == sa.bindparam("run_id"))
        change = change.values({name: sa.bindparam(f"new_{name}", type_=kinds[name]) for name in names})
        bind.execute(change, [{"run_id": run_id, **{f"new_{name}": new[name] for name in names}}
                              for run_id, new in values])
