"""Lost doorbells, dead brokers, silent workers, clocks that ran out: the rows get right again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlalchemy import update

from service.artefacts.jobs import claims
from service.operations import sweeper
from service.store.database.models import Job, Outbox
from tests.service.farms import TestFarm, open_test_farm
from tests.waiting import until


def age(farm: TestFarm, **columns: float) -> None:
    with farm.farm.database.transaction() as session:
        session.execute(update(Job).values(**columns))


def take(farm: TestFarm, job_id: str) -> claims.Claim:
    with farm.farm.database.transaction() as session:
        claim = claims.claim(session, job_id, lease_s=60)
    assert claim is not None
    return claim


def test_doorbell_waits_in_the_outbox_while_the_broker_is_down(farm: TestFarm) -> None:
    farm.queue.is_down = True
    job = farm.compile()
    assert job.status_code == 202
    farm.sweep()
    assert farm.queue.rung == []
    farm.queue.is_down = False
    with farm.farm.database.transaction() as session:
        session.execute(update(Outbox).values(created_at=time.time() - 10))
    farm.sweep()
    farm.sweep()
    assert farm.queue.rung == [("pockfarm.compile", job.json()["id"])]


def test_lost_doorbell_is_rung_again_after_a_while_only(farm: TestFarm) -> None:
    job_id = farm.compile().json()["id"]
    farm.sweep()
    assert len(farm.queue.rung) == 1
    age(farm, rung_at=time.time() - 60)
    farm.sweep()
    farm.sweep()
    assert farm.queue.rung == [("pockfarm.compile", job_id)] * 2


def test_a_broker_that_has_lost_its_messages_is_rung_at_once(farm: TestFarm) -> None:
    """Within seconds, not after the long pause; and not while the messages are there, and nobody has taken them yet."""
    job_id = farm.compile().json()["id"]
    age(farm, rung_at=time.time() - 10)
    farm.sweep()
    assert len(farm.queue.rung) == 1, "it holds the message: the workers are busy"
    farm.queue.has_lost = True
    farm.sweep()
    farm.sweep()
    assert farm.queue.rung == [("pockfarm.compile", job_id)] * 2


def test_a_broker_that_cannot_be_asked_does_not_stop_the_sweep(farm: TestFarm) -> None:
    farm.compile()
    farm.queue.is_down = True
    age(farm, rung_at=time.time() - 60)
    farm.sweep()
    farm.queue.is_down = False
    with farm.farm.database.transaction() as session:
        session.execute(update(Outbox).values(created_at=time.time() - 10))
    farm.sweep()
    assert len(farm.queue.rung) == 2


def test_doubled_doorbell_claims_once(farm: TestFarm) -> None:
    job_id = farm.compile().json()["id"]
    take(farm, job_id)
    with farm.farm.database.transaction() as session:
        assert claims.claim(session, job_id, lease_s=60) is None


def test_silent_worker_loses_the_job_and_cannot_write_any_more(farm: TestFarm) -> None:
    job_id = farm.compile().json()["id"]
    old = take(farm, job_id)
    age(farm, lease_expires_at=time.time() - 1)
    farm.sweep()
    assert farm.http.get(f"/jobs/{job_id}").json()["state"] == "queued"
    new = take(farm, job_id)
    assert new.attempt == 2
    for claim, alive in ((old, False), (new, True)):
        with farm.farm.database.transaction() as session:
            if alive:
                assert claims.keep(session, claim, lease_s=60, stage="codegen", fraction=0.5) is False
            else:
                with pytest.raises(claims.LostClaim):
                    claims.keep(session, claim, lease_s=60)
    shown = farm.http.get(f"/jobs/{job_id}").json()
    assert (shown["state"], shown["stage"], shown["fraction"]) == ("compiling", "codegen", 0.5)


def test_job_whose_workers_keep_dying_fails_in_the_end(farm: TestFarm) -> None:
    job_id = farm.compile().json()["id"]
    for _ in range(3):
        take(farm, job_id)
        age(farm, lease_expires_at=time.time() - 1)
        farm.sweep()
    shown = farm.http.get(f"/jobs/{job_id}").json()
    assert (shown["state"], shown["ending"]["cause"], shown["ending"]["code"]) == (
        "failed",
        "infra",
        "infra.worker-lost",
    )
    assert farm.compile().json()["id"] != job_id


def test_job_nobody_takes_expires(farm: TestFarm) -> None:
    job_id = farm.compile().json()["id"]
    age(farm, queue_deadline_at=time.time() - 1)
    farm.sweep()
    shown = farm.http.get(f"/jobs/{job_id}").json()
    assert (shown["state"], shown["ending"]["code"]) == ("expired", "infra.queue-time")


def test_compiling_job_is_cancelled_through_its_worker_or_without_it(farm: TestFarm) -> None:
    job_id = farm.compile().json()["id"]
    claim = take(farm, job_id)
    assert farm.http.post(f"/jobs/{job_id}/cancel").json()["cancel_requested"] is True
    with farm.farm.database.transaction() as session:
        assert claims.keep(session, claim, lease_s=60) is True
    age(farm, lease_expires_at=time.time() - 1)
    farm.sweep()
    assert farm.http.get(f"/jobs/{job_id}").json()["state"] == "cancelled"


def test_sweeper_thread_sweeps_by_itself(tmp_path: Path, sqlite_url: str) -> None:
    with open_test_farm(tmp_path / "s", sqlite_url, sweep_s=0.05, doorbell_s=0.0) as farm:
        farm.compile()
        until(lambda: len(farm.queue.rung) >= 3)


def test_what_nobody_waits_for_is_done_in_every_fifth_pass(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(sweeper, "STEPS", (lambda _: done.append("urgent"),))
    monkeypatch.setattr(sweeper, "CALM_STEPS", (lambda _: done.append("calm"),))
    with open_test_farm(tmp_path / "s", sqlite_url, sweep_s=0.01):
        until(lambda: done.count("calm") >= 2)
    first = ["urgent", "calm", *4 * ["urgent"]]
    assert done[:8] == [*first, "urgent", "calm"]


def test_failing_step_does_not_stop_the_others(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("broken step")

    monkeypatch.setattr(sweeper, "STEPS", (broken, *sweeper.STEPS))
    job_id = farm.compile().json()["id"]
    age(farm, queue_deadline_at=time.time() - 1)
    farm.sweep()
    assert farm.http.get(f"/jobs/{job_id}").json()["state"] == "expired"
