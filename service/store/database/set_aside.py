"""Values that an older schema cannot hold, kept by a downgrade and put back by the upgrade: `op.set_aside`,
`op.put_back`.

Rows and values lie in tables `set_aside_<revision>_<table>[_<column>]`, none for no rows. Plain SQL on the migration's
connection: nothing here may depend on the models, which are newer than any revision. A device has one live attempt: a
revision that sets such aside gives up, before it puts them back, those whose devices have begun other work meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic.operations import MigrateOperation, Operations

Rows = Sequence[tuple[str, str, str]]
"""(table, its key column, condition) of whole rows, the referred ones first."""
Values = Sequence[tuple[str, str, str]]
"""(table, column, condition) of values in rows that stay."""


def add_operations() -> None:
    """Adds `op.set_aside(revision, rows, values)` and `op.put_back(revision, rows, values)` for revisions to use."""
    Operations.register_operation("set_aside")(_SetAside)
    Operations.register_operation("put_back")(_PutBack)


class _SetAside(MigrateOperation):
    @classmethod
    def set_aside(cls, operations: Operations, revision: str, rows: Rows, values: Values) -> None:
        """Copies what the older schema cannot hold, and deletes whole rows."""
        for table, _, condition in rows:
            _copy(operations, table, "*", condition, to=f"set_aside_{revision}_{table}")
        for table, key, _ in reversed(rows):
            aside = f"set_aside_{revision}_{table}"
            if _is_there(operations, aside):
                operations.execute(f"DELETE FROM {table} WHERE {key} IN (SELECT {key} FROM {aside})")
        for table, column, condition in values:
            keys = ", ".join(_keys(operations, table))
            _copy(operations, table, f"{keys}, {column}", condition, to=f"set_aside_{revision}_{table}_{column}")


class _PutBack(MigrateOperation):
    @classmethod
    def put_back(cls, operations: Operations, revision: str, rows: Rows, values: Values) -> None:
        """Puts back what `set_aside` stored, and drops its tables."""
        for table, key, _ in rows:
            aside = f"set_aside_{revision}_{table}"
            if _is_there(operations, aside):
                columns = ", ".join(column["name"] for column in sa.inspect(operations.get_bind()).get_columns(aside))
                operations.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {aside}")
                operations.drop_table(aside)
                count_on(operations.get_bind(), table, key)
        for table, column, _ in values:
            aside = f"set_aside_{revision}_{table}_{column}"
            if _is_there(operations, aside):
                same = " AND ".join(f"{aside}.{key} = {table}.{key}" for key in _keys(operations, table))
                value = f"(SELECT {column} FROM {aside} WHERE {same})"
                operations.execute(
                    f"UPDATE {table} SET {column} = {value} WHERE EXISTS (SELECT 1 FROM {aside} WHERE {same})"
                )
                operations.drop_table(aside)


def _is_there(op: Operations, table: str) -> bool:
    return sa.inspect(op.get_bind()).has_table(table)


def _keys(op: Operations, table: str) -> list[str]:
    return sa.inspect(op.get_bind()).get_pk_constraint(table)["constrained_columns"]


def _copy(op: Operations, table: str, columns: str, condition: str, *, to: str) -> None:
    if op.get_bind().scalar(sa.text(f"SELECT count(*) FROM {table} WHERE {condition}")):
        op.execute(f"CREATE TABLE {to} AS SELECT {columns} FROM {table} WHERE {condition}")


def count_on(bind: sa.Connection, table: str, key: str) -> None:
    """Sets PostgreSQL's counter to the highest number, since rows that come with their numbers leave it behind. The
    next row takes the next number.
    """
    if bind.dialect.name != "postgresql":
        return
    sequence = bind.scalar(sa.text("SELECT pg_get_serial_sequence(:table, :key)"), {"table": table, "key": key})
    if sequence is not None:
        bind.execute(
            sa.text(f"SELECT setval(:sequence, coalesce(max({key}), 1), max({key}) IS NOT NULL) FROM {table}"),
            {"sequence": sequence},
        )
