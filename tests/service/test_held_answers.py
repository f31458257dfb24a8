"""Answers that are held open count, each while it is, against a limit of its organisation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from service.people.quotas.held import HeldAnswers
from service.store.watching import Watchers
from tests.service.farms import TestFarm
from tests.service.test_quotas import limit, refused
from tests.waiting import HANG_S, until


def test_no_more_are_held_open_than_an_organisation_may(farm: TestFarm) -> None:
    """A long poll and a stream are held; more are refused before they begin, to no other organisation, and in the end
    there is room again. What is answered at once is no held answer."""
    acme, other = farm.tenant("acme"), farm.tenant("other")
    limit(farm, acme, open_streams=2)
    runs = [tenant.run(bundle=tenant.bundle())["id"] for tenant in (acme, other)]
    path, theirs = (f"/runs/{run}" for run in runs)
    tag = {"If-None-Match": acme.http.get(path).headers["etag"]}
    watchers = farm.farm.part(Watchers)
    with ThreadPoolExecutor(3) as threads:
        try:
            held = [
                threads.submit(acme.http.get, f"{path}?wait=60", headers=tag),
                threads.submit(acme.http.get, f"{path}/events"),
            ]
            until(lambda: len(watchers) == 2)
            for more in (acme.http.get(f"{path}?wait=60", headers=tag), acme.http.get(f"{path}/events")):
                refused(more, "open_streams", 429, at=2, use=2)
            assert acme.http.get(path, headers=tag).status_code == 304
            listed = acme.http.get(f"{path}/events", headers={"Accept": "application/json"})
            assert listed.status_code == 200
            assert acme.http.get(f"{path}?wait=60").status_code == 200, "it need not wait"
            held.append(threads.submit(other.http.get, f"{theirs}/events"))
            until(lambda: len(watchers) == 3)
            other.http.post(f"{theirs}/cancel")
            acme.http.post(f"{path}/cancel")
            answers = [one.result(timeout=HANG_S) for one in held]
        finally:  # a failure must not wait for answers that are held
            other.http.post(f"{theirs}/cancel")
            acme.http.post(f"{path}/cancel")
    assert [one.status_code for one in answers] == [200] * 3
    assert "event: end" in answers[1].text
    assert "event: end" in acme.http.get(f"{path}/events").text
    until(lambda: not farm.farm.part(HeldAnswers))


def test_what_is_held_open_ends_when_its_key_is_revoked(farm: TestFarm, loopback: None) -> None:
    """A stream of a run that goes on, and a long poll."""
    acme = farm.tenant("acme")
    run = acme.run(bundle=acme.bundle())["id"]
    key = acme.http.post("/keys", json={"name": "leaver"}).json()
    leaver = {"Authorization": f"Bearer {key['secret']}"}
    tag = {"If-None-Match": acme.http.get(f"/runs/{run}").headers["etag"]}
    watchers = farm.farm.part(Watchers)
    with ThreadPoolExecutor(2) as threads:
        try:
            stream = threads.submit(acme.anonymous.get, f"/runs/{run}/events", headers=leaver)
            poll = threads.submit(acme.anonymous.get, f"/runs/{run}?wait=60", headers={**tag, **leaver})
            until(lambda: len(watchers) == 2)
            assert acme.http.delete(f"/keys/{key['id']}").status_code == 200
            answers = [stream.result(timeout=HANG_S), poll.result(timeout=HANG_S)]
        finally:
            acme.http.post(f"/runs/{run}/cancel")
    assert answers[0].text.rstrip().splitlines()[-2:][0] == "event: refused"
    assert "was revoked" in answers[0].text
    assert (answers[1].status_code, answers[1].json()["code"]) == (401, "auth.invalid")
