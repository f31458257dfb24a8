"""What the farm asks for by itself is not work that was taken twice, and nothing else is excused by it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete, select, update

from service.store.database.models import DeviceEvent, Job, Run
from service.store.database.schema import migrate
from tests.service.farms import TestFarm, open_test_farm
from tests.service.test_canary import canary, quarantined, right
from tests.thorough.chaos.verdict import asked_by_the_farm


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[TestFarm]:
    """A board that strikes have quarantined came back by a canary run, which followed another."""
    url = f"sqlite:///{tmp_path / 'farm.db'}"
    migrate(url)
    with open_test_farm(tmp_path / "state", url) as opened:
        board = quarantined(opened)
        for is_right in (False, True):
            work = canary(opened, board)
            assert board.report(work, losses=right(work) if is_right else ()).status_code == 200
        yield opened


def excused(farm: TestFarm) -> tuple[set[str], set[str]]:
    """What the farm asked for, and everything that is there."""
    with farm.farm.database.read() as session:
        return asked_by_the_farm(session), {*session.scalars(select(Run.id)), *session.scalars(select(Job.id))}


def of_canaries(farm: TestFarm) -> list[str]:
    with farm.farm.database.read() as session:
        return list(session.scalars(select(Run.id).where(Run.is_canary).order_by(Run.created_at)))


def test_canaries_of_a_quarantined_board_were_asked_for_by_the_farm(farm: TestFarm) -> None:
    own, there = excused(farm)
    with farm.farm.database.read() as session:
        compiled = session.scalar(select(Job.id).where(Job.model_name == "canary"))
    assert own == {compiled, *of_canaries(farm)}
    assert len(there - own) > 3, "nobody's own work is excused"


def test_a_canary_beside_another_or_without_a_quarantine_was_not(farm: TestFarm) -> None:
    first, second = of_canaries(farm)
    with farm.farm.database.transaction() as session:
        session.execute(update(Run).where(Run.id == first).values(finished_at=None))
    assert {first, second} & excused(farm)[0] == {first}
    with farm.farm.database.transaction() as session:
        session.execute(delete(DeviceEvent).where(DeviceEvent.kind == "quarantined"))
    assert {first, second} & excused(farm)[0] == set()
