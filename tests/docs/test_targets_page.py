"""The page of what was executed where says what the tests do."""

from __future__ import annotations

from compiler import targets
from tests.architecture.sources import ROOT
from tests.executed import EXECUTED, Row, document


def test_the_page_is_what_the_table_says() -> None:
    assert (ROOT / "docs/targets.md").read_text() == document(), "python -m tests.executed > docs/targets.md"


def test_every_row_is_of_a_target_that_is_there() -> None:
    assert {row.target for row in EXECUTED} <= set(targets.names())


def test_every_row_names_a_test_that_names_the_target() -> None:
    assert [row for row in EXECUTED if not _names_it(row)] == []
    assert not _names_it(Row("raspberry-pi-9", "itself", "", EXECUTED[0].test))


def _names_it(row: Row) -> bool:
    return f'"{row.target}"' in (ROOT / row.test).read_text()
