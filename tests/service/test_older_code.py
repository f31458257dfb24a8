"""What an older schema cannot hold, or its code cannot read, and what becomes of it on the way down and up again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from sqlalchemy import text

from service import admin
from service.store.database.engine import Database
from service.store.database.schema import current_revision, known_revisions, migrate
from tests.service.test_migrations import downgrade, filled_database


def test_older_code_reads_what_it_does_not_know_as_it_can(empty_url: str) -> None:
    """0028: comparisons wait aside; a warm-up by rule, a report without an interval, a verdict of function do not.
    0029: sustained runs wait aside."""
    filled_database(empty_url, "head")
    database = Database(empty_url)
    settings = {"mode": "profile", "steps": 5, "warmup": None}
    report = {
        "measurement": {"median_us": 12.5, "interval_low_us": None, "interval_high_us": None},
        "verdict": {"kind": "function", "rule": "emulated"},
    }
    with database.engine.begin() as connection:
        first, second, third = connection.scalars(text("SELECT id FROM runs ORDER BY id LIMIT 3")).all()
        values = {
            "first": first,
            "second": second,
            "third": third,
            "by_rule": json.dumps(settings),
            "report": json.dumps(report),
            "comparing": json.dumps(settings | {"mode": "compare"}),
            "sustained": json.dumps(settings | {"mode": "sustained"}),
        }
        connection.execute(text("UPDATE runs SET settings = :by_rule WHERE id = :first"), values)
        connection.execute(text("UPDATE runs SET settings = :comparing WHERE id = :second"), values)
        connection.execute(text("UPDATE runs SET settings = :sustained WHERE id = :third"), values)
        others = text("SELECT min(attempt_id) FROM results WHERE run_id NOT IN (:second, :third)")
        result = connection.scalar(others, values)
        connection.execute(text("UPDATE results SET report = :report WHERE attempt_id = :id"), values | {"id": result})
        runs = connection.scalar(text("SELECT count(*) FROM runs"))

    def stored() -> tuple[object, object, object]:
        with database.engine.connect() as connection:
            kept = connection.scalar(text("SELECT settings FROM runs WHERE id = :first"), values)
            said = connection.scalar(text("SELECT report FROM results WHERE attempt_id = :id"), {"id": result})
            return connection.scalar(text("SELECT count(*) FROM runs")), _parsed(kept), _parsed(said)

    assert stored() == (runs, settings, report)
    downgrade(empty_url, "0028")
    assert stored() == (runs - 1, settings, report)
    downgrade(empty_url, "0027")
    older = {
        "measurement": {"median_us": 12.5, "interval_low_us": 12.5, "interval_high_us": 12.5},
        "verdict": {"kind": "noisy", "rule": "emulated"},
    }
    assert stored() == (runs - 2, settings | {"warmup": 3}, older)
    migrate(empty_url)
    assert stored() == (runs, settings, report)
    database.close()


def test_an_operator_takes_the_schema_back_by_a_command(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An installed farm has no alembic.ini; what cannot be is refused in words, and changes nothing."""
    monkeypatch.setenv("POCKFARM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("POCKFARM_DATABASE_URL", empty_url)
    head, database = known_revisions()[1], Database(empty_url)

    def refusal(revision: str) -> str:
        assert admin.main(["migrate-back", revision]) == 1
        return capsys.readouterr().err

    assert re.search(r" schema none, .* 0027\b", refusal("0027"))
    assert admin.main(["migrate"]) == 0
    assert re.search(rf"no revision 27: .* 0001 to {head}\b", refusal("27"))
    assert admin.main(["migrate-back", "0027"]) == 0
    assert re.search(r" schema 0027, .* 0028\b", refusal("0028"))
    with database.engine.connect() as connection:
        assert current_revision(connection) == "0027"
    assert admin.main(["migrate"]) == 0
    database.close()


def _parsed(value: object) -> object:
    """PostgreSQL's driver has read it already."""
    return json.loads(value) if isinstance(value, str) else value
