"""Tables with three faces: the HTML on the page, CSV and JSON come from the same columns and rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from service.dashboard import format as fmt
from service.dashboard.actions import Action

Value = str | int | float | bool | None
Entry = TypeVar("Entry")
Kind = Literal["text", "number", "time", "state", "verdict", "class", "code"]
PIECE_ROWS = 100
"""Rows of a file that are sent at once."""
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class Column:
    """A column. The unit is fixed for the column and is part of `key` (`median_ms`)."""

    key: str
    title: str
    kind: Kind = "text"
    unit: str = ""
    digits: int = 0
    """Digits after the decimal point."""
    significant: int = 0
    """Significant digits, used instead of `digits`; 0: unused."""
    sortable: bool = False
    hint: str = ""
    primary: bool = False
    """The column whose cell names the row (a row header)."""
    wrap: bool = False
    """Long text, which may break into lines."""
    files_only: bool = False
    """Whether the column is only in CSV and JSON; on the page a note or a link says the same."""
    wide_only: bool = False
    """Left out on a phone, where what is left must do without scrolling sideways."""
    fits: bool = False
    """A time in ms or µs, or a size in MiB: a page writes each in the unit that fits; files have plain numbers."""
    is_difference: bool = False
    """Whether numbers are written with a sign, also above 0."""

    @property
    def shown_unit(self) -> str:
        """Unit that a page writes in the column's head."""
        return "" if self.fits else self.unit

    @property
    def numeric(self) -> bool:
        """Numbers are set right, in tabular figures."""
        return self.kind == "number"

    def show(self, value: Value) -> str:
        """Returns the value as the page writes it."""
        if value is None or value == "":
            return fmt.ABSENT
        if self.fits and self.unit == "MiB" and isinstance(value, int | float):
            return fmt.size(value * fmt.MIB)
        if self.fits and isinstance(value, int | float):
            return self._time(value / 1000 if self.unit == "µs" else value)
        if self.kind == "number" and isinstance(value, int | float):
            return fmt.rounded(value, self.significant) if self.significant else fmt.number(value, self.digits)
        if self.kind == "time" and isinstance(value, str):
            return value.replace("T", " ").removesuffix("Z")[:16]
        return str(value)

    def _time(self, value_ms: float) -> str:
        written = fmt.latency(abs(value_ms)) if value_ms else "0"
        return fmt.difference(value_ms, written) if self.is_difference or value_ms < 0 else written


@dataclass(frozen=True, slots=True)
class Row:
    """Values by column key; `links` gives a cell an address, `anchor` the row an id."""

    values: Mapping[str, Value]
    links: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    """A second, quieter line below a cell."""
    narrow_notes: Mapping[str, str] = field(default_factory=dict)
    """Second lines that only a phone shows: they say what the columns left out there would say."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Texts that a page writes where the value alone does not say it: the digits that an interval bears."""
    anchor: str = ""
    dimmed: bool = False
    is_hidden: bool = False
    """Passed over by a search; there for what leads to it, and for a search that goes on in the browser."""
    mark: str = ""
    """Class of a colour key before the row's name (`phase-forward`, `series-2`)."""
    letter: str = ""
    """Letter of the row in the picture beside the table."""
    actions: tuple[Action, ...] = ()
    """Actions that the visitor may take on it; on the page only."""


@dataclass(frozen=True, slots=True)
class Table:
    """A captioned table. `sort` is a column key, with `-` in front for descending."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    sort: str = ""

    @property
    def shown(self) -> tuple[Column, ...]:
        """The columns of the page."""
        return tuple(column for column in self.columns if not column.files_only)

    @property
    def has_actions(self) -> bool:
        """Whether there is something to do about any row."""
        return any(row.actions for row in self.rows)

    def hiding_empty(self, *keys: str) -> Table:
        """Returns a table of which the page leaves out those of these columns in which no row has a value; the files
        have them.
        """
        return self.hiding(*(key for key in keys if all(row.values.get(key) is None for row in self.rows)))

    def hiding(self, *keys: str) -> Table:
        """Returns a table of which the page leaves out these columns; the files have them."""
        columns = (replace(column, files_only=True) if column.key in keys else column for column in self.columns)
        return replace(self, columns=tuple(columns))

    def column(self, key: str) -> Column | None:
        """Returns the column of that key, if there is one."""
        return next((column for column in self.columns if column.key == key), None)

    def sorted_by(self, sort: str) -> Table:
        """Sorts the rows; absent values come last either way. An unknown or unsortable key changes nothing."""
        key = sort.removeprefix("-")
        column = self.column(key)
        if column is None or not column.sortable:
            return self
        return replace(self, rows=tuple(order(self.rows, sort, lambda row: row.values.get(key))), sort=sort)

    def next_sort(self, key: str) -> str:
        """Returns the order that a click on the column's head asks for: numbers begin with the largest, texts with the
        first.
        """
        if self.sort == key:
            return f"-{key}"
        if self.sort == f"-{key}":
            return key
        column = self.column(key)
        return f"-{key}" if column is not None and column.kind in ("number", "time") else key

    def aria_sort(self, key: str) -> str:
        """Returns `ascending`, `descending`, or nothing."""
        if self.sort.removeprefix("-") != key:
            return ""
        return "descending" if self.sort.startswith("-") else "ascending"


@dataclass(frozen=True, slots=True)
class WholeTable:
    """A table whose rows are still to be read; they can be read once."""

    name: str
    columns: tuple[Column, ...]
    rows: Iterable[Row]


def order(entries: Iterable[Entry], sort: str, value_of: Callable[[Entry], Value]) -> list[Entry]:
    """Sorts entries by a value, falling if `sort` begins with `-`; those without one come last either way."""
    rows = list(entries)
    present = [entry for entry in rows if value_of(entry) is not None]
    present.sort(key=lambda entry: _order(value_of(entry)), reverse=sort.startswith("-"))
    return [*present, *(entry for entry in rows if value_of(entry) is None)]


def csv_text(table: Table | WholeTable) -> Iterator[str]:
    """Yields RFC 4180 text in pieces: a header of column keys, then raw values. Absent is empty.

    A text that a spreadsheet would run as a formula gets an apostrophe in front: names come from users.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow([column.key for column in table.columns])
    for number, row in enumerate(table.rows, start=1):
        writer.writerow([_csv_value(row.values.get(column.key)) for column in table.columns])
        if number % PIECE_ROWS == 0:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


def json_text(table: Table | WholeTable) -> Iterator[str]:
    """Yields one JSON object in pieces: columns with their units, and rows by column key."""
    columns = [{"key": column.key, "title": column.title, "unit": column.unit} for column in table.columns]
    piece = f'{{"name":{_json(table.name)},"columns":{_json(columns)},"rows":['
    for number, row in enumerate(table.rows):
        piece += ("," if number else "") + _json({column.key: row.values.get(column.key) for column in table.columns})
        if number % PIECE_ROWS == PIECE_ROWS - 1:
            yield piece
            piece = ""
    yield f"{piece}]}}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _order(value: Value) -> tuple[int, float, str]:
    if isinstance(value, bool | int | float):
        return (0, float(value), "")
    return (1, 0.0, str(value).casefold())


def _csv_value(value: Value) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return f"'{value}"
    return value


def table(name: str, caption: str, columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """Makes a table from any sequences."""
    return Table(name=name, caption=caption, columns=tuple(columns), rows=tuple(rows))


SHOWN_ROWS = 100
"""Most rows of a long series on a page."""


def shown_places(count: int) -> Sequence[int]:
    """Returns the rows of a long series that a page shows: at most `SHOWN_ROWS`, evenly spaced, and the last."""
    stride = -(-count // SHOWN_ROWS) or 1
    places = range(0, count, stride)
    return places if not count or places[-1] == count - 1 else [*places, count - 1]


def thinned(full: Table, count: int | None = None) -> Table:
    """Returns a table of the rows that a page shows; files have all. `count` is that of the series if the table has
    only those rows.
    """
    whole = len(full.rows) if count is None else count
    if whole <= SHOWN_ROWS:
        return full
    rows = full.rows if count is not None else [full.rows[place] for place in shown_places(whole)]
    stride = -(-whole // SHOWN_ROWS)
    caption = f"{full.caption}, one row in {stride} (the CSV and JSON files have all)"
    return table(full.name, caption, full.columns, rows)
