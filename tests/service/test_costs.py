"""What a request costs follows what it makes the farm do."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
import pytest
from sqlalchemy import select, update

from service.people.quotas.rates import BYTES_OF_ONE, COSTS, EXPORT_COST, RUN_COST, Rates
from service.store.database.models import Allowance
from tests.service.farms import TestFarm
from tests.service.test_quotas import begun, finished, limit


def tokens(farm: TestFarm, tenant: TestFarm, within: Callable[[], httpx.Response]) -> float:
    """What a request costs: nothing is filled up or left over meanwhile."""

    def left() -> float:
        with farm.farm.database.read() as session:
            mine = Allowance.organisation_id == tenant.organisation_id
            at_hand = sum(farm.farm.part(Rates)._left.values())
            return at_hand + session.scalars(select(Allowance).where(mine)).one().tokens

    tenant.http.get("/organisation")
    with farm.farm.database.transaction() as session:
        session.execute(update(Allowance).values(filled_at=time.time() + 3600))
    before = left()
    answer = within()
    assert answer.status_code < 300, answer.text
    return before - left()


def test_costs_follow_what_a_request_makes_the_farm_do(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.artefacts.uploads.endpoints.BYTES_OF_ONE", 10)
    acme = farm.tenant("acme")
    bundle, boards = acme.bundle(), [acme.board(name=f"board {number}") for number in range(3)]
    path = begun(acme, b"x" * 1000)
    limit(farm, acme, cost_per_minute=10_000)
    made = tokens(farm, acme, lambda: acme.http.post("/run-groups", json={"bundle": bundle}))
    assert made == pytest.approx(2 + RUN_COST * len(boards))
    assert tokens(farm, acme, lambda: acme.http.get("/dashboard/runs.csv")) == pytest.approx(EXPORT_COST)
    assert tokens(farm, acme, lambda: finished(acme, path, b"x" * 1000)) == pytest.approx(2 + 100)
    assert COSTS["POST /compile"] < (2 << 30) / BYTES_OF_ONE
    limit(farm, acme, cost_per_minute=10)
    with farm.farm.database.transaction() as session:
        session.execute(update(Allowance).values(tokens=10.0))
    farm.farm.part(Rates)._left.clear()
    assert acme.http.post("/run-groups", json={"bundle": bundle}).json()["code"] == "quota.cost_per_minute"
    limit(farm, acme, cost_per_minute="unlimited")
    assert len(acme.http.get("/run-groups").json()["items"]) == 1, "the one that was refused is not there"
