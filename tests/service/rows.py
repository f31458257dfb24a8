"""Fills any schema with rows that its constraints allow, by reflection, and reads all of it back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Float,
    ForeignKeyConstraint,
    Integer,
    MetaData,
    String,
    Table,
    inspect,
    select,
    text,
)

ROWS = 24
"""Of each table: enough for every state and mode, with and without the nullable values."""
Snapshot = dict[str, list[dict[str, Any]]]


@dataclass
class Filled:
    """Rows by table name, in the order in which they went in."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def reflect(connection: Connection) -> MetaData:
    """The database's tables as they are, without Alembic's own."""
    metadata = MetaData()
    metadata.reflect(connection, only=lambda name, _: name != "alembic_version")
    return metadata


def fill(connection: Connection) -> Filled:
    """`ROWS` rows in every table: each allowed value of a checked column occurs, and every foreign key has a row."""
    filled = Filled()
    for table in reflect(connection).sorted_tables:
        rows = [_row(table, index, filled) for index in range(ROWS)]
        connection.execute(table.insert(), rows)
        filled.rows[table.name] = rows
    return filled


def snapshot(connection: Connection) -> Snapshot:
    """Every row of every table, by table name, in the order of the primary key."""
    found: Snapshot = {}
    for table in reflect(connection).sorted_tables:
        rows = connection.execute(select(table).order_by(*table.primary_key.columns)).mappings()
        found[table.name] = [dict(row) for row in rows]
    return found


def describe(connection: Connection) -> dict[str, Any]:
    """What the database's tables are, but for the order of columns: types, defaults, constraints, indexes."""
    found = inspect(connection)
    texts = _texts_of_indexes(connection)
    return {
        name: {
            "columns": {column["name"]: _column(column) for column in found.get_columns(name)},
            "primary key": found.get_pk_constraint(name)["constrained_columns"],
            "foreign keys": _by_name(found.get_foreign_keys(name)),
            "unique": _by_name(found.get_unique_constraints(name)),
            "checks": {check["name"]: _words(check["sqltext"]) for check in found.get_check_constraints(name)},
            "indexes": texts.get(name, {}) | {index["name"]: _index(index) for index in found.get_indexes(name)},
        }
        for name in found.get_table_names()
        if name != "alembic_version"
    }


def _column(column: Any) -> tuple[str, bool, str]:
    return str(column["type"]), column["nullable"], str(column.get("default"))


def _index(index: Any) -> tuple[list[str], bool, str]:
    options = index.get("dialect_options", {})
    predicate = next((str(value) for name, value in options.items() if name.endswith("_where")), "")
    return index.get("expressions", index["column_names"]), bool(index["unique"]), _words(predicate)


def _texts_of_indexes(connection: Connection) -> dict[str, dict[str, str]]:
    """What made SQLite's indexes, by table and name: those by an expression SQLAlchemy passes over."""
    if connection.dialect.name != "sqlite":
        return {}
    found: dict[str, dict[str, str]] = {}
    made = "SELECT tbl_name, name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    for table, name, sql in connection.execute(text(made)):
        found.setdefault(table, {})[name] = _words(sql)
    return found


def _by_name(constraints: Any) -> dict[str, str]:
    return {
        constraint["name"]: str({key: value for key, value in constraint.items() if key not in ("name", "comment")})
        for constraint in constraints
    }


def _words(text: str) -> str:
    return " ".join(text.split())


def _row(table: Table, index: int, filled: Filled) -> dict[str, Any]:
    parents = _parents(table, index, filled)
    allowed = dict(_allowed(table))
    row: dict[str, Any] = {}
    for column in table.columns:
        if column.nullable and index % 3 == 2:
            row[column.name] = None
        elif column.name in parents:
            row[column.name] = parents[column.name]
        elif column.name in allowed:
            values = allowed[column.name]
            row[column.name] = values[index % len(values)]
        else:
            row[column.name] = _value(column, index)
    for later, earlier in _orders(table):
        row[earlier], row[later] = sorted((row[earlier], row[later]))
        row[later] += row[earlier] == row[later]
    return row


ORDER = re.compile(r"\W*(\w+) > (\w+)\W*")


def _orders(table: Table) -> Iterator[tuple[str, str]]:
    """(later, earlier) of every `CHECK (later > earlier)`."""
    for constraint in table.constraints:
        found = ORDER.fullmatch(str(constraint.sqltext)) if isinstance(constraint, CheckConstraint) else None
        if found:
            yield found[1], found[2]


def _parents(table: Table, index: int, filled: Filled) -> dict[str, Any]:
    found = {}
    for constraint in table.constraints:
        if isinstance(constraint, ForeignKeyConstraint):
            parent = filled.rows[constraint.referred_table.name][index]
            for name, key in zip(constraint.column_keys, constraint.elements, strict=True):
                found[name] = parent[key.column.name]
    return found


def _allowed(table: Table) -> Iterator[tuple[str, list[str]]]:
    """(column, its values) of every `CHECK (column IN (…))`, as SQLite and PostgreSQL write it."""
    for constraint in table.constraints:
        if isinstance(constraint, CheckConstraint):
            text = str(constraint.sqltext)
            if ORDER.fullmatch(text):
                continue
            column = re.match(r"\W*(\w+)", text)
            values = re.findall(r"'([^']*)'", text)
            if not column or not values:
                raise AssertionError(f"teach tests/service/rows.py to obey {table.name}'s check: {text}")
            yield column[1], values


def _settings(index: int) -> dict[str, Any]:
    """Of a run, as `RunSettings` is stored: every mode; now and then a setting, or a mode, of a later version."""
    mode = ("profile", "train", "eval", "tune")[index % 4]
    settings: dict[str, Any] = {
        "mode": mode,
        "steps": index,
        "warmup": 3,
        "seed": (1 << 62) + index,
        "threads": index % 3 or None,
        "learning_rate": 0.1 + index / 7 if mode == "train" else None,
        "tune_s": 60.0 if mode == "tune" else None,
    }
    later: dict[int, dict[str, Any]] = {5: {"clip": 0.5}, 6: {"clip": None}, 11: {"mode": "prune"}}
    return settings | later.get(index % 12, {})


def _value(column: Column[Any], index: int) -> Any:
    if (column.table.name, column.name) == ("runs", "settings"):
        return _settings(index)
    for kind, make in _VALUES:
        if isinstance(column.type, kind):
            return make(column, index)
    raise AssertionError(f"teach tests/service/rows.py to fill {column.table.name}.{column.name}: {column.type!r}")


def _text(column: Column[Any], index: int) -> str:
    return f"{index} {column.table.name}.{column.name} ü\N{PILE OF POO}'%"[
        : getattr(column.type, "length", None) or 200
    ]


_VALUES: tuple[tuple[type, Callable[[Column[Any], int], Any]], ...] = (
    (JSON, lambda column, index: {"of": column.name, "n": [index, None, 0.1, "ü\"'", {"deep": True}]}),
    (Boolean, lambda _, index: index % 2 == 0),
    (BigInteger, lambda _, index: (1 << 40) + index),
    (Integer, lambda _, index: 1 + index),
    (Float, lambda _, index: 1.7e9 + index / 3),
    (String, _text),
)
"""The first kind that fits; a value differs from row to row, for the sake of unique columns."""
