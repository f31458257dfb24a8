"""Why a run waits that a quota or other organisations keep from a device: foretold as leasing will do."""

from __future__ import annotations

import html
from typing import Any

import pytest
from sqlalchemy import update

from pockfarm.commands.why import why_text
from service.people.quotas.rates import Share
from service.store.database.models import Attempt
from service.work.lanes.prospects import Line, turns_before
from tests.service.board import Board, leased
from tests.service.farms import TestFarm


def waiting(farm: TestFarm, run_id: str) -> dict[str, Any]:
    """Why it waits, which the API, the command and the run's page say alike."""
    answer = farm.http.get(f"/runs/{run_id}/why")
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    page = farm.http.get(f"/dashboard/runs/{run_id}")
    assert said["message"] in why_text(said)
    assert said["message"] in html.unescape(page.text)
    return dict(said["waiting"])


def change_attempts(farm: TestFarm, run_id: str, **values: Any) -> None:
    with farm.farm.database.transaction() as session:
        session.execute(update(Attempt).where(Attempt.run_id == run_id).values(values))


def take_two_hours(tenant: TestFarm, board: Board, digest: str) -> None:
    """A run that has been done, and took so long."""
    run_id = tenant.run(bundle=digest)["id"]
    assert board.report(leased(board)).status_code == 200
    change_attempts(tenant, run_id, finished_at=Attempt.created_at + 7200)


def limit(farm: TestFarm, tenant: TestFarm, most: int) -> None:
    body = {"quotas": {"running_attempts": most}}
    assert farm.http.patch(f"/organisations/{tenant.organisation_id}", json=body).status_code == 200


def test_a_quota_that_is_used_up_is_what_a_run_waits_for(farm: TestFarm) -> None:
    acme, a, b = farm.tenant("acme"), farm.board(name="a"), farm.board(name="b")
    digest = acme.bundle()
    for _ in range(5):
        take_two_hours(acme, a, digest)
    limit(farm, acme, 1)
    first, second, third = (acme.run(bundle=digest)["id"] for _ in range(3))
    work = leased(a)
    assert work.run_id == first
    assert b.lease() is None, "what is foretold is what happens"
    reason = waiting(acme, second)
    assert (reason["code"], reason["position"], reason["confidence"]) == ("quota", 1, "rough")
    assert " 1 of 1 run on devices; first in the queue" in reason["message"]
    assert "may start in very roughly 2 hours" in reason["message"]
    assert waiting(acme, third)["position"] == 2
    assert "may start in very roughly 4 hours" in waiting(acme, third)["message"]
    a.report(work)
    assert waiting(acme, second)["code"] == "next"
    assert leased(b).run_id == second


@pytest.mark.parametrize(("most", "words"), [(2, "2 of 2 runs on"), (1, "2 of 1 run on"), (0, "2 of 0")])
def test_a_quota_that_was_lowered_waits_for_as_many_more(farm: TestFarm, most: int, words: str) -> None:
    acme, boards = farm.tenant("acme"), [farm.board(name=name) for name in "abc"]
    digest = acme.bundle()
    for _ in range(5):
        take_two_hours(acme, boards[0], digest)
    last = [acme.run(bundle=digest)["id"] for _ in range(3)][-1]
    works = [leased(board) for board in boards[:2]]
    change_attempts(farm, works[0].run_id, created_at=Attempt.created_at - 3600)
    limit(farm, acme, most)
    found = waiting(acme, last)
    assert found["code"] == "quota"
    assert words in found["message"]
    starts = {
        2: "roughly 60 minutes",
        1: "roughly 2 hours",
        0: "it may have none; whoever runs the farm can raise it",
    }
    assert starts[most] in found["message"]
    assert (found["expected_start_at"] is None) == (most == 0)


def test_among_organisations_the_position_is_by_fair_share(farm: TestFarm) -> None:
    acme, other, a, b = farm.tenant("acme"), farm.tenant("other"), farm.board(name="a"), farm.board(name="b")
    digest, theirs = acme.bundle(), other.bundle(b"other")
    on_a = acme.run(bundle=digest)["id"]
    assert leased(a).run_id == on_a
    mine = [acme.run(bundle=digest)["id"] for _ in range(2)]
    late = other.run(bundle=theirs)["id"]
    assert waiting(other, late)["code"] == "next", "the youngest, of the one that has nothing on devices"
    reason = waiting(acme, mine[0])
    assert (reason["code"], reason["position"], reason["confidence"]) == ("queue", 2, "unknown")
    assert "other organisations wait too" in reason["message"]
    assert leased(b).run_id == late
    assert waiting(acme, mine[0])["position"] == 1


def test_an_organisation_at_its_quota_is_not_waited_for(farm: TestFarm) -> None:
    acme, other, a = farm.tenant("acme"), farm.tenant("other"), farm.board(name="a")
    digest, theirs = acme.bundle(), other.bundle(b"other")
    limit(farm, acme, 0)
    acme.run(bundle=digest)
    run = other.run(bundle=theirs)["id"]
    assert waiting(other, run)["code"] == "next"
    assert leased(a).run_id == run


@pytest.mark.parametrize(
    ("mine", "other", "shares", "ahead"),
    [
        (0, 3, {}, 1),
        (1, 1, {}, 2),
        (2, 9, {}, 5),
        (0, 9, {"a": Share(live=3)}, 3),
        (0, 9, {"b": Share(live=3)}, 0),
        (0, 9, {"b": Share(served_at=5.0)}, 0),
        (4, 1, {"a": Share(live=1)}, 5),
        (0, 99, {"a": Share(live=50)}, 21),
    ],
)
def test_turns(mine: int, other: int, shares: dict[str, Share], ahead: int) -> None:
    """Of `a`, whose oldest run is younger than that of `b`."""
    all_shares = {"a": Share(), "b": Share()} | shares
    assert turns_before("a", Line(mine, 2.0), {"b": Line(other, 1.0)}, all_shares, most=20) == ahead
