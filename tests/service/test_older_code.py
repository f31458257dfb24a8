"""What an older schema cannot hold, or its code cannot read, and what becomes of it on the way down and up again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from service import admin
from service.store.database.engine import Database
from service.store.database.schema import current_revision, known_revisions, migrate
from tests.service.newer_code import LATER, TODAY
from tests.service.test_migrations import content, downgrade, filled_database


def test_what_older_code_cannot_read_waits_for_newer_code(empty_url: str, newer_code: None) -> None:
    """Runs of a mode that it does not know are away, a verdict is one that it knows; what it does meanwhile stays."""
    before = filled_database(empty_url, "head")
    pruning = {row["id"] for row in before["runs"] if row["settings"]["mode"] == "prune"}
    first, second = [row for row in before["runs"] if row["id"] not in pruning][:2]
    assert pruning
    database = Database(empty_url)

    def change(row: dict[str, Any], column: str, value: str) -> None:
        row[column] = value
        with database.engine.begin() as connection:
            changed = text(f"UPDATE runs SET {column} = :value WHERE id = :id")
            connection.execute(changed, {"value": value, "id": row["id"]})

    change(first, "verdict", "unsure")
    downgrade(empty_url, "9001")
    with database.engine.connect() as connection:
        for table, column in OF_RUNS.items():
            there = set(connection.scalars(text(f"SELECT {column} FROM {table}")))
            assert there == {row[column] for row in before[table]} - pruning, table
        verdict = text("SELECT verdict FROM runs WHERE id = :id")
        assert connection.scalar(verdict, {"id": first["id"]}) == "noisy"
    change(second, "note", "by older code")
    migrate(empty_url)
    assert content(empty_url)[1] == before
    database.close()


OF_RUNS = {
    "runs": "id",
    "attempts": "run_id",
    "canary_changes": "after_run_id",
    "canary_times": "run_id",
    "checkpoints": "run_id",
    "compared_bundles": "run_id",
    "results": "run_id",
    "strikes": "run_id",
    "tunings": "run_id",
}
"""Tables whose rows belong to a run, and the column with its id."""


def test_an_operator_takes_the_schema_back_by_a_command(
    empty_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    newer_code: None,
) -> None:
    """An installed farm has no alembic.ini; what cannot be is refused in words, and changes nothing."""
    monkeypatch.setenv("POCKFARM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("POCKFARM_DATABASE_URL", empty_url)
    head, database = known_revisions()[1], Database(empty_url)

    def refusal(revision: str) -> str:
        assert admin.main(["migrate-back", revision]) == 1
        return capsys.readouterr().err

    assert re.search(r" schema none, .* 9001\b", refusal("9001"))
    assert admin.main(["migrate"]) == 0
    assert re.search(rf"no revision 1: .* 0001 to {head}\b", refusal("1"))
    assert admin.main(["migrate-back", TODAY]) == 0
    assert re.search(rf" schema {TODAY}, .* 9001\b", refusal("9001"))
    with database.engine.connect() as connection:
        assert current_revision(connection) == TODAY
    assert admin.main(["migrate"]) == 0
    with database.engine.connect() as connection:
        assert current_revision(connection) == head == LATER[-1]
    database.close()
