"""Tables: one set of rows as page, CSV and JSON; order; formulas; number formats."""

from __future__ import annotations

import csv
import io
import json

import pytest

from service.dashboard import format as fmt
from service.dashboard.tables import Column, Row, csv_text, json_text, table

COLUMNS = (
    Column("name", "Name", primary=True, sortable=True),
    Column("size_mib", "Size", "number", "MiB", 2, sortable=True),
    Column("secret", "Only in files", files_only=True),
)
TIME = Column("us", "Time", "number", "µs", fits=True)
DIFFERENCE = Column("more_us", "B − A", "number", "µs", fits=True, is_difference=True)
TABLE = table(
    "t",
    "T",
    COLUMNS,
    [
        Row({"name": "b", "size_mib": 1234.5678, "secret": "x"}),
        Row({"name": "A", "size_mib": None}),
        Row({"name": "=1+1", "size_mib": 2}),
    ],
)


def test_csv_has_raw_values_and_no_formulas() -> None:
    rows = list(csv.reader(io.StringIO("".join(csv_text(TABLE)))))
    assert rows == [["name", "size_mib", "secret"], ["b", "1234.5678", "x"], ["A", "", ""], ["'=1+1", "2", ""]]


def test_json_has_units() -> None:
    body = json.loads("".join(json_text(TABLE)))
    assert body["columns"][1] == {"key": "size_mib", "title": "Size", "unit": "MiB"}
    assert body["rows"][1] == {"name": "A", "size_mib": None, "secret": None}


def test_sorting_puts_absent_values_last_both_ways() -> None:
    assert [row.values["name"] for row in TABLE.sorted_by("size_mib").rows] == ["=1+1", "b", "A"]
    assert [row.values["name"] for row in TABLE.sorted_by("-size_mib").rows] == ["b", "=1+1", "A"]
    assert [row.values["name"] for row in TABLE.sorted_by("name").rows] == ["=1+1", "A", "b"]
    assert TABLE.sorted_by("secret") is TABLE
    assert TABLE.sorted_by("'; drop table") is TABLE


def test_a_click_turns_the_order() -> None:
    assert TABLE.next_sort("size_mib") == "-size_mib"
    ordered = TABLE.sorted_by("-size_mib")
    assert ordered.next_sort("size_mib") == "size_mib"
    assert ordered.aria_sort("size_mib") == "descending"
    assert ordered.aria_sort("name") == ""


def test_the_page_leaves_out_what_is_for_files_or_empty() -> None:
    assert [column.key for column in TABLE.shown] == ["name", "size_mib"]
    empty = table("t", "T", COLUMNS, [Row({"name": "a"})]).hiding_empty("size_mib")
    assert [column.key for column in empty.shown] == ["name"]
    assert "size_mib" in "".join(csv_text(empty))


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (fmt.number(1234567.891, 2), "1,234,567.89"),
        (fmt.number(None, 2), "–"),
        (fmt.number(0, 1), "0.0"),
        (fmt.size(38 * 1024 * 1024), "38.0 MiB"),
        (fmt.size(900), "900 B"),
        (fmt.duration(3.21), "3.2 s"),
        (fmt.duration(185), "3 min 05 s"),
        (fmt.duration(7500), "2 h 05 min"),
        (fmt.duration(59.7), "1 min 00 s"),
        (fmt.percent(0.9613), "96.1%"),
        (fmt.signed_percent(-0.25), "−25.0%"),
        (fmt.signed_percent(0.123), "+12.3%"),
        (fmt.number(-2109.7, 1), "−2,109.7"),
        (fmt.significant(-0.0123), "−0.0123"),
        (fmt.significant(-45678.0), "−45,678"),
        (fmt.percent(-0.02), "−2.0%"),
        (fmt.size(-3 * 1024), "−3.00 KiB"),
        (fmt.size(1.234 * (1 << 30)), "1.23 GiB"),
        (fmt.three(9.996), "10.0"),
        (fmt.three(0.012345), "0.0123"),
        (fmt.three(999.6), "1,000"),
        (fmt.three(-1234.5), "−1,234"),
        (fmt.three(0), "0"),
        (DIFFERENCE.show(-2109.7), "−2.11 ms"),
        (DIFFERENCE.show(0.4), "+400 ns"),
        (DIFFERENCE.show(0), "0"),
        (DIFFERENCE.show(None), "–"),
        (TIME.show(212_345.0), "212 ms"),
        (TIME.show(0.0), "0"),
        (fmt.latency(0.2634), "263 µs"),
        (fmt.latency(134.522), "135 ms"),
        (fmt.latency(None), "–"),
        (fmt.latency_span(134.522, (134.2, 134.9)), "134.2 to 134.9 ms"),
        (fmt.clock(0.0), "1970-01-01 00:00"),
        (fmt.iso(1_700_000_000), "2023-11-14T22:13:20Z"),
        (fmt.significant(0.00123), "0.00123"),
        (fmt.short_digest("sha256:0123456789abcdef"), "0123456789ab"),
    ],
)
def test_formats(shown: str, expected: str) -> None:
    assert shown == expected
