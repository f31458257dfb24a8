"""Fair share: organisations take turns on a shared device, whatever each has queued, within what each may have."""

from __future__ import annotations

from collections import Counter

from service.lanes.claim import Head, in_turn
from service.quotas.shares import Share
from tests.service.board import Board, leased
from tests.service.farms import TestFarm


def test_the_order_of_heads() -> None:
    heads = [Head("lan_1", "run_1", 1.0, "org_a"), Head("lan_2", "run_2", 2.0, "org_b"),
             Head("lan_3", "run_3", 3.0, "org_c"), Head("lan_4", "run_0", 0.0, "org_a")]  # fmt: skip

    def order(**shares: Share) -> str:
        return "".join(head.run_id[-1] for head in in_turn(heads, shares))

    assert order() == "0123"
    assert order(org_a=Share(served_at=5.0)) == "2301"
    assert order(org_a=Share(live=1), org_b=Share(served_at=9.0)) == "3201"
    assert order(org_a=Share(is_full=True)) == "23"


def do_one(board: Board) -> str:
    work = leased(board)
    assert board.report(work).status_code == 200
    return work.run_id


def test_organisations_take_turns_on_a_shared_device(farm: TestFarm) -> None:
    acme, other, board = farm.tenant("acme"), farm.tenant("other"), farm.board()
    owners: dict[str, str] = {}
    for tenant, count in ((acme, 6), (other, 2)):
        bundle = tenant.bundle(tenant.organisation_id.encode())
        owners |= {tenant.run(bundle=bundle)["id"]: tenant.organisation_id for _ in range(count)}
    served = [owners[do_one(board)] for _ in range(8)]
    assert Counter(served[:4]) == {acme.organisation_id: 2, other.organisation_id: 2}
    assert served[0] != served[1]
    assert served[1] != served[2]
    assert served[4:] == [acme.organisation_id] * 4
    runs = [run for run in reversed(list(owners)) if owners[run] == acme.organisation_id]
    ended = [acme.show(run)["finished_at"] for run in runs]
    assert ended == sorted(ended, reverse=True)


def test_the_fewest_on_devices_first(farm: TestFarm) -> None:
    acme, other = farm.tenant("acme"), farm.tenant("other")
    boards = [farm.board(name=f"board {number}") for number in range(3)]
    for tenant in (acme, other):
        bundle = tenant.bundle(tenant.organisation_id.encode())
        runs = [tenant.run(bundle=bundle)["id"] for _ in range(3)]
        assert len(runs) == 3
    mine = {one["id"] for one in acme.http.get("/runs").json()["items"]}
    taken = [leased(board).run_id in mine for board in boards]
    assert Counter(taken[:2]) == {True: 1, False: 1}


def test_no_more_at_once_than_the_quota(farm: TestFarm) -> None:
    acme, first, second = farm.tenant("acme"), farm.board(name="first"), farm.board(name="second")
    bundle = acme.bundle()
    for _ in range(2):
        acme.run(bundle=bundle)
    limit = {"quotas": {"running_attempts": 1}}
    assert farm.http.patch(f"/organisations/{acme.organisation_id}", json=limit).status_code == 200
    work = leased(first)
    assert second.lease() is None
    other = farm.tenant("other")
    theirs = other.run(bundle=other.bundle(b"other"))["id"]
    assert do_one(second) == theirs
    assert second.lease() is None
    assert first.report(work).status_code == 200
    assert leased(second).run_id != work.run_id
