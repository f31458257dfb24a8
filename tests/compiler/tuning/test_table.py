"""The tuning table: its file form, merging, refusals, and what a compile makes of it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.codegen.choice import DEFAULT, choose
from compiler.errors import TuningError
from compiler.tuning.table import NO_TUNING, TuningEntry, TuningTable, choices_digest

ENTRY = TuningEntry("a" * 64, "x86-64-v4", "b" * 64, 2, "rows=6", 20.0, 15.0, "x86-64")
entries = st.builds(
    TuningEntry,
    kernel=st.sampled_from(["a" * 64, "c" * 64]),
    target=st.sampled_from(["x86-64-v3", "x86-64-v4"]),
    version=st.just("b" * 64),
    threads=st.integers(1, 3),
    choice=st.sampled_from(["", "rows=6", "packed=yes rows=2"]),
    default_us=st.floats(1, 1e6),
    tuned_us=st.floats(1, 1e6),
    device_class=st.just("x86-64"),
)
tables = st.lists(entries, max_size=6).map(lambda rows: TuningTable.of({row.key: row for row in rows}))


@given(tables, tables)
def test_a_newer_table_decides_and_files_say_the_same(older: TuningTable, newer: TuningTable) -> None:
    both = older.merged(newer)
    assert TuningTable.parse(both.to_json()) == both
    by_key = {entry.key: entry for entry in both.entries}
    assert all(by_key[entry.key] == entry for entry in newer.entries)
    assert {*by_key} == {entry.key for table in (older, newer) for entry in table.entries}
    assert both.merged(newer) == both
    assert NO_TUNING.merged(older) == older.merged(NO_TUNING) == older


def test_a_build_gets_its_own_winners_only() -> None:
    others = [
        replace(ENTRY, kernel="c" * 64, choice=""),
        replace(ENTRY, kernel="d" * 64, target="x86-64-v3"),
        replace(ENTRY, kernel="e" * 64, version="f" * 64),
        replace(ENTRY, kernel="0" * 64, threads=1),
    ]
    table = TuningTable.of({entry.key: entry for entry in (ENTRY, *others)})
    assert table.choices(target="x86-64-v4", version="b" * 64, threads=2) == {"a" * 64: choose(rows=6)}


def test_the_digest_names_what_differs_from_the_default() -> None:
    one = {"a": choose(rows=6)}
    assert choices_digest(one) == choices_digest({**one, "b": DEFAULT})
    assert choices_digest(one) != choices_digest({"a": choose(rows=7)})
    assert choices_digest({}) != choices_digest(one)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": "xyz"}, "tuning entry 0: .* 64 hex digits"),
        ({"threads": True}, "threads is True"),
        ({"threads": 0}, "threads at least 1"),
        ({"choice": "rows"}, "not a choice: 'rows'"),
        ({"default_us": 0}, "times must be finite"),
        ({"tuned_us": "fast"}, "tuned_us is 'fast'"),
        ({"more": 1}, "must have the fields"),
    ],
)
def test_a_bad_entry_is_named(change: dict[str, object], message: str) -> None:
    text = json.dumps({"schema": "pockfarm.tuning/1", "entries": [{**asdict(ENTRY), **change}]})
    with pytest.raises(TuningError, match=message):
        TuningTable.parse(text)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "pockfarm.tuning/1"}', "[" * 100_000])
def test_not_a_table(text: str) -> None:
    with pytest.raises(TuningError):
        TuningTable.parse(text)


def test_two_entries_for_one_kernel_are_refused() -> None:
    rows = [asdict(ENTRY), asdict(replace(ENTRY, choice=""))]
    with pytest.raises(TuningError, match="decide the same kernel"):
        TuningTable.parse(json.dumps({"schema": "pockfarm.tuning/1", "entries": rows}))
