"""Fair share: organisations take turns on a shared device, whatever each has queued, within what each may have."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from service.artefacts.jobs import claims
from service.people.quotas.rates import Share
from service.store.database.models import Job
from service.store.queue import COMPILE_TASK
from service.store.signs_of_life import give_sign
from service.work.lanes.claim import Head, in_turn
from tests.service.board import Board, leased
from tests.service.farms import TestFarm


def test_the_order_of_heads() -> None:
    heads = [
        Head("lan_1", "run_1", 1.0, "org_a"),
        Head("lan_2", "run_2", 2.0, "org_b"),
        Head("lan_3", "run_3", 3.0, "org_c"),
        Head("lan_4", "run_0", 0.0, "org_a"),
    ]

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


def next_job(farm: TestFarm) -> str | None:
    """What a worker takes when it hears a doorbell, whichever."""
    with farm.farm.database.transaction() as session:
        taken = claims.claim_next(session, lease_s=60)
    return taken.job_id if taken else None


def finish(farm: TestFarm, job_id: str) -> None:
    with farm.farm.database.transaction() as session:
        claims.end_with(session, session.get_one(Job, job_id), "failed", claims.Failure("model", "x", "x"))


def queue_jobs(farm: TestFarm, count: int) -> list[str]:
    return [farm.compile(f"{farm.organisation_id} {number}".encode()).json()["id"] for number in range(count)]


def test_organisations_take_turns_on_workers(farm: TestFarm) -> None:
    """Two workers, then one: the queue of one organisation does not hold up another's."""
    acme, other = farm.tenant("acme"), farm.tenant("other")
    mine, theirs = queue_jobs(acme, 8), queue_jobs(other, 3)
    assert [next_job(farm), next_job(farm)] == [mine[0], theirs[0]]
    finish(farm, mine[0])
    assert next_job(farm) == mine[1], "who has the fewest under way"
    finish(farm, mine[1])
    finish(farm, theirs[0])
    order = []
    for _ in range(7):
        job = next_job(farm)
        assert job is not None
        order.append(job)
        finish(farm, job)
    assert order == [mine[2], theirs[1], mine[3], theirs[2], *mine[4:7]]


def test_no_organisation_has_all_workers_where_there_are_others(farm: TestFarm) -> None:
    with farm.farm.database.transaction() as session:
        give_sign(session, "worker", slots=3)
    acme = farm.tenant("acme")
    jobs = queue_jobs(acme, 4)
    assert [next_job(farm), next_job(farm), next_job(farm)] == [jobs[0], jobs[1], None]
    waiting = acme.http.get(f"/jobs/{jobs[2]}/why").json()["message"]
    assert "2 of them of your organisation, which may have no more at once on this farm" in waiting
    other = farm.tenant("other")
    (other_job,) = queue_jobs(other, 1)
    assert next_job(farm) == other_job
    farm.queue.rung.clear()
    finish(farm, jobs[0])
    assert farm.queue.rung == [(COMPILE_TASK, jobs[2])], "its own doorbell was heard while the share was full"
    assert next_job(farm) == jobs[2]


def test_a_farm_for_one_organisation_uses_all_workers(farm: TestFarm) -> None:
    with farm.farm.database.transaction() as session:
        give_sign(session, "worker", slots=2)
    jobs = queue_jobs(farm, 2)
    assert [next_job(farm), next_job(farm)] == jobs


def test_workers_that_claim_at_once_do_not_exceed_the_share(farm: TestFarm) -> None:
    with farm.farm.database.transaction() as session:
        give_sign(session, "worker", slots=3)
    jobs = queue_jobs(farm.tenant("acme"), 6)
    with ThreadPoolExecutor(6) as workers:
        claimed = list(workers.map(lambda _: next_job(farm), range(6)))
    assert sorted(job for job in claimed if job) == jobs[:2]


def test_a_doorbell_of_a_job_that_is_over_is_harmless(farm: TestFarm) -> None:
    first, second = queue_jobs(farm, 2)
    farm.http.post(f"/jobs/{first}/cancel")
    assert [next_job(farm), next_job(farm), next_job(farm)] == [second, None, None]


def test_workers_that_claim_at_once_take_each_job_once(farm: TestFarm) -> None:
    tenants = [farm.tenant(name) for name in ("acme", "other")]
    jobs = [job for tenant in tenants for job in queue_jobs(tenant, 5)]
    taken: list[str | None] = []
    threads = [threading.Thread(target=lambda: taken.append(next_job(farm))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one for one in taken if one) == sorted(jobs)
    assert taken.count(None) == 2
