"""Webhooks: told once an end is committed, signed, tried again, never sent inside, never of another's work."""

from __future__ import annotations

import ipaddress
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from pockfarm import cli
from pockfarm.webhooks import NotFromTheFarm, verify_webhook
from service.base.problems import Invalid
from service.features.webhooks import courier, sending
from service.features.webhooks.addresses import Refused, check_address, check_url, networks, resolve
from service.features.webhooks.settings import WebhookSettings
from service.store.database.models import Webhook, WebhookDelivery
from tests.agents.live_farm import LiveFarm, live_farm
from tests.service.board import leased
from tests.service.farms import TestFarm, open_test_farm
from tests.service.receiver import Receiver, receiving

pytestmark = pytest.mark.usefixtures("loopback")
LOOPBACK = "127.0.0.0/8"
CLOSED = (
    "10.1.2.3",
    "127.0.0.1",
    "169.254.169.254",
    "192.168.0.1",
    "172.16.0.1",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fe80::1",
    "fec0::1",
    "feff::1",
    "5f00::1",
    "3fff::1",
    "fc00::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "::127.0.0.1",
    "240.0.0.1",
)


@pytest.fixture
def hooked(database_url: str, tmp_path: Path) -> Any:
    """A farm on each database that may send to this machine, and a receiver."""
    with open_test_farm(tmp_path / "state", database_url, webhook_networks=LOOPBACK) as farm, receiving() as receiver:
        yield farm, receiver


def add(farm: TestFarm, url: str, **changes: Any) -> dict[str, Any]:
    answer = farm.http.post("/webhooks", json={"url": url, **changes})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def deliveries(farm: TestFarm, webhook: dict[str, Any]) -> list[dict[str, Any]]:
    return list(farm.http.get(f"/webhooks/{webhook['id']}/deliveries").json()["items"])


def deliver_due(farm: TestFarm) -> int:
    """What the courier does in as many looks as there is something to send."""
    count = 0
    while True:
        with farm.farm.database.read() as session:
            found = courier.due(session)
        if not found:
            return count
        count += sum(courier.deliver(farm.farm.database, farm.farm.settings, one.id) is not None for one in found)


def forget_pauses(farm: TestFarm) -> None:
    with farm.farm.database.transaction() as session:
        session.execute(update(Webhook).values(resting_until=0.0))
        waiting = update(WebhookDelivery).where(WebhookDelivery.next_at.is_not(None))
        session.execute(waiting.values(next_at=time.time() - 1))


def test_ends_of_jobs_and_runs_are_told_signed(hooked: tuple[TestFarm, Receiver]) -> None:
    farm, receiver = hooked
    made = add(farm, receiver.url)
    bundle = farm.bundle()
    run = farm.run(bundle=bundle, steps=2)
    board = farm.board()
    board.report(leased(board))
    assert deliver_due(farm) == 2
    told = [verify_webhook(made["secret"], headers, body) for headers, body in receiver.received]
    assert [one["type"] for one in told] == ["job.ended", "run.ended"]
    assert told[0]["data"]["bundle_digest"] == bundle
    assert told[1]["data"]["id"] == run["id"]
    assert told[1]["data"]["state"] == "succeeded"
    assert told[1]["data"] == farm.http.get("/runs").json()["items"][0], "what the list of runs says"
    assert {one["state"] for one in deliveries(farm, made)} == {"delivered"}
    assert deliver_due(farm) == 0


def test_a_run_that_fails_is_told_with_its_cause_and_only_events_asked_for(hooked: tuple[TestFarm, Receiver]) -> None:
    farm, receiver = hooked
    made = add(farm, receiver.url, events=["run.ended"])
    run = farm.run(bundle=farm.bundle())
    farm.http.post(f"/runs/{run['id']}/cancel")
    assert deliver_due(farm) == 1
    told = verify_webhook(made["secret"], *receiver.received[0])
    assert told["data"]["ending"]["code"] == "run.cancelled"


def test_nothing_is_told_of_what_was_rolled_back(hooked: tuple[TestFarm, Receiver]) -> None:
    farm, receiver = hooked
    made = add(farm, receiver.url)
    board, run = farm.board(), farm.run(bundle=farm.bundle())
    work = leased(board)
    assert board.report(work, device_id="dev_other").status_code == 422
    assert [one["subject"] for one in deliveries(farm, made)].count(run["id"]) <= 1
    assert farm.show(run["id"])["state"] != "succeeded"


def test_what_another_organisation_does_is_not_told_and_webhooks_are_their_own(
    hooked: tuple[TestFarm, Receiver],
) -> None:
    farm, receiver = hooked
    made, acme = add(farm, receiver.url), farm.tenant("acme")
    run = acme.run(bundle=acme.bundle())
    acme.http.post(f"/runs/{run['id']}/cancel")
    assert deliveries(farm, made) == []
    for method, path in (("GET", "/deliveries"), ("POST", "/test"), ("DELETE", "")):
        answer = acme.http.request(method, f"/webhooks/{made['id']}{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "webhook.unknown")
    assert acme.http.get("/webhooks").json()["items"] == []
    assert "secret" not in farm.http.get("/webhooks").text
    theirs = add(acme, receiver.url)
    acme.bundle(b"other")
    assert deliver_due(farm) == 1
    assert verify_webhook(theirs["secret"], *receiver.received[0])["type"] == "job.ended"


def test_a_failed_delivery_comes_again_with_the_same_id_and_body(hooked: tuple[TestFarm, Receiver]) -> None:
    farm, receiver = hooked
    receiver.answers = [500, 503, 204]
    made = add(farm, receiver.url, events=["job.ended"])
    farm.bundle()
    assert deliver_due(farm) == 1
    assert deliver_due(farm) == 0, "it rests"
    (waiting,) = deliveries(farm, made)
    assert (waiting["state"], waiting["status"], waiting["error"]) == ("waiting", 500, "answered 500")
    for _ in range(2):
        forget_pauses(farm)
        assert deliver_due(farm) == 1
    (sent,) = deliveries(farm, made)
    assert (sent["state"], sent["attempts"], sent["error"]) == ("delivered", 3, "")
    assert len({headers["webhook-id"] for headers, _ in receiver.received}) == 1
    assert len({body for _, body in receiver.received}) == 1
    assert farm.http.get("/webhooks").json()["items"][0]["failures"] == 0


def test_a_delivery_is_given_up_after_its_last_attempt(hooked: tuple[TestFarm, Receiver]) -> None:
    farm, receiver = hooked
    receiver.answers = [500]
    made = add(farm, receiver.url, events=["job.ended"])
    farm.bundle()
    for _ in range(len(courier.PAUSES_S) + 3):
        forget_pauses(farm)
        deliver_due(farm)
    (given_up,) = deliveries(farm, made)
    assert (given_up["state"], given_up["attempts"]) == ("failed", len(courier.PAUSES_S) + 1)
    assert len(receiver.received) == len(courier.PAUSES_S) + 1


def test_an_address_that_is_gone_is_told_nothing_more(hooked: tuple[TestFarm, Receiver]) -> None:
    farm, receiver = hooked
    receiver.answers = [410]
    add(farm, receiver.url)
    farm.bundle()
    deliver_due(farm)
    farm.bundle(b"another")
    forget_pauses(farm)
    assert deliver_due(farm) == 0
    assert len(receiver.received) == 1
    assert "410" in farm.http.get("/webhooks").json()["items"][0]["removed_because"]


def test_redirects_are_not_followed(hooked: tuple[TestFarm, Receiver]) -> None:
    farm, receiver = hooked
    with receiving() as elsewhere:
        receiver.answers, receiver.location = [307], elsewhere.url
        made = add(farm, receiver.url)
        sent = farm.http.post(f"/webhooks/{made['id']}/test").json()
        assert (sent["state"], sent["status"]) == ("failed", 307)
        assert elsewhere.received == []


def test_two_processes_send_a_delivery_once(hooked: tuple[TestFarm, Receiver]) -> None:
    farm, receiver = hooked
    add(farm, receiver.url, events=["job.ended"])
    farm.bundle()
    with farm.farm.database.read() as session:
        (found,) = courier.due(session)
    delivery_id = found.id
    now = time.time()
    with farm.farm.database.transaction() as session:
        assert courier.claim(session, delivery_id, now=now) is not None
    with farm.farm.database.transaction() as session:
        assert courier.claim(session, delivery_id, now=now) is None
    with farm.farm.database.transaction() as session:
        assert courier.claim(session, delivery_id, now=now + courier.CLAIM_S + 1) is not None, "its sender died"


def test_many_deliveries_of_one_do_not_hold_up_anothers(
    hooked: tuple[TestFarm, Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "MOST_EACH", 4)
    farm, receiver = hooked
    acme, other = farm.tenant("acme"), farm.tenant("other")
    hooks = [add(acme, receiver.url + f"&hook={number}")["id"] for number in range(6)]
    now = time.time()
    with farm.farm.database.transaction() as session:
        for number in range(60):
            session.add(
                WebhookDelivery(
                    webhook_id=hooks[number % 6],
                    organisation_id=acme.organisation_id,
                    event="webhook.test",
                    subject="x",
                    next_at=now - 1000 + number,
                )
            )
    theirs = add(other, receiver.url)["id"]
    other.bundle()
    with farm.farm.database.read() as session:
        found = courier.due(session)
        again = courier.due(session, found[:4])
    assert [one.webhook_id for one in found] == [hooks[0], theirs, *hooks[1:4]], "an organisation has its share only"
    assert [one.webhook_id for one in again] == [hooks[3]], "none that something is sent to, and no more than its share"
    with farm.farm.database.read() as session:
        oldest = session.get_one(WebhookDelivery, found[0].id)
        assert oldest.next_at == pytest.approx(now - 1000)


def test_addresses_that_hang_do_not_delay_another_of_their_organisation(hooked: tuple[TestFarm, Receiver]) -> None:
    """All but one of as many webhooks as there may be wait for an answer; six held the others' messages for 15 s."""
    farm, receiver = hooked
    most = farm.farm.settings.section(WebhookSettings).webhooks_per_organisation
    hooks = [add(farm, receiver.url + f"&hook={number}", events=["job.ended"])["id"] for number in range(most)]
    hanging = [courier.Due(f"dlv_{hook}", hook, farm.organisation_id) for hook in hooks[:-1]]
    farm.bundle()
    with farm.farm.database.read() as session:
        found = courier.due(session, hanging)
    assert [one.webhook_id for one in found] == [hooks[-1]]
    assert courier.SENDERS >= 2 * courier.MOST_EACH, "and another organisation's are sent too"


def test_an_address_that_answers_slowly_rests(hooked: tuple[TestFarm, Receiver]) -> None:
    farm, receiver = hooked
    made = add(farm, receiver.url, events=["job.ended"])
    for number, took_s in enumerate((courier.SLOW_S + 1, courier.SLOW_S - 1)):
        farm.bundle(bytes([number]))
        forget_pauses(farm)
        with farm.farm.database.transaction() as session:
            (found,) = courier.due(session)
            parcel = courier.claim(session, found.id, now=time.time())
            assert parcel is not None
            delivery = courier.record(session, parcel, sending.Outcome(204, "", took_s))
            webhook = session.get_one(Webhook, made["id"])
            assert (delivery.state, webhook.failures) == ("delivered", 0)
            assert (webhook.resting_until > time.time()) == (took_s > courier.SLOW_S)


def test_a_test_says_what_came_of_it_and_comes_seldom(hooked: tuple[TestFarm, Receiver]) -> None:
    farm, receiver = hooked
    made = add(farm, receiver.url)
    answers = [farm.http.post(f"/webhooks/{made['id']}/test") for _ in range(7)]
    assert [one.status_code for one in answers] == [200] * 6 + [429]
    assert answers[0].json()["state"] == "delivered"
    assert verify_webhook(made["secret"], *receiver.received[0])["type"] == "webhook.test"


def test_a_removed_webhook_is_not_told_what_waits(hooked: tuple[TestFarm, Receiver]) -> None:
    farm, receiver = hooked
    made = add(farm, receiver.url)
    farm.bundle()
    assert farm.http.delete(f"/webhooks/{made['id']}").status_code == 200
    deliver_due(farm)
    assert receiver.received == []
    assert deliveries(farm, made)[0]["state"] == "failed"
    assert farm.http.post(f"/webhooks/{made['id']}/test").json()["code"] == "webhook.removed"


def test_a_slow_answer_is_cut_off(small_farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then keeps every single wait short: the whole has a limit."""
    monkeypatch.setattr(sending, "TIMEOUT_S", 1.0)
    with receiving() as receiver:
        receiver.drip_s = 0.1
        said = sending.send(receiver.url, sending.new_webhook_secret(), "dlv_1", b"{}", networks(LOOPBACK))
        assert said.error == "no answer within 1 s"


def test_a_quota_bounds_webhooks(sqlite_url: str, tmp_path: Path) -> None:
    with open_test_farm(tmp_path / "state", sqlite_url, webhooks_per_organisation=1) as farm:
        add(farm, "https://example.com/a")
        answer = farm.http.post("/webhooks", json={"url": "https://example.com/b"})
        assert (answer.status_code, answer.json()["code"]) == (429, "webhook.quota")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com",
        "https://",
        "https://user:word@example.com/",
        "https://example.com/#x",
        "http://127.0.0.1/",
        "http://[::1]:80/",
        "http://169.254.169.254/latest",
        "https://example.com:0/",
        "https://exa mple.com/",
        "https://ex\u00e4mple.com/",
        "http://[::ffff:10.0.0.1]/",
        "https://[x/",
        "javascript:alert(1)",
    ],
)
def test_a_url_that_is_none_or_leads_inside_is_refused_at_once(small_farm: TestFarm, url: str) -> None:
    answer = small_farm.http.post("/webhooks", json={"url": url})
    assert (answer.status_code, answer.json()["code"], answer.json()["where"]) == (422, "webhook.url", "url")


@pytest.mark.parametrize("address", CLOSED)
def test_addresses_inside_are_refused(address: str) -> None:
    with pytest.raises(Refused):
        check_address(ipaddress.ip_address(address), ())


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_addresses_of_the_open_internet_are_taken(address: str) -> None:
    check_address(ipaddress.ip_address(address), ())


def test_an_allowed_network_opens_itself_only() -> None:
    allowed = networks("10.20.0.0/16, 127.0.0.1")
    check_address(ipaddress.ip_address("10.20.3.4"), allowed)
    check_address(ipaddress.ip_address("::ffff:127.0.0.1"), allowed)
    for outside in ("10.21.0.1", "127.0.0.2"):
        with pytest.raises(Refused):
            check_address(ipaddress.ip_address(outside), allowed)
    check_url("http://10.20.0.1/", allowed)
    with pytest.raises(Invalid):
        check_url("http://10.21.0.1/", allowed)


def test_a_setting_that_names_no_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="webhook_networks"):
        WebhookSettings(webhook_networks="10.0.0.0/99")


def test_a_name_that_leads_inside_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it led to when it was added; one bad address among good ones spoils it."""

    def look_up(host: str, port: int, **_: object) -> list[Any]:
        names = {"inside.example": ["10.0.0.7"], "both.example": ["93.184.216.34", "127.0.0.1"]}
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in names[host]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for host in ("inside.example", "both.example"):
        with pytest.raises(Refused):
            resolve(host, 80, ())
        said = sending.send(f"http://{host}/", sending.new_webhook_secret(), "dlv_1", b"{}", ())
        assert said.status is None
        assert "no address of the open internet" in said.error


def test_what_was_changed_or_is_old_is_not_taken_for_the_farms() -> None:
    secret, body, now = sending.new_webhook_secret(), b'{"a":1}', int(time.time())
    headers = {
        "Webhook-Id": "dlv_1",
        "Webhook-Timestamp": str(now),
        "Webhook-Signature": "v1,x " + sending.signature(secret, "dlv_1", now, body),
    }
    assert verify_webhook(secret, headers, body) == {"a": 1}
    old = now - 301
    changed: list[tuple[str, dict[str, str], bytes]] = [
        (secret, headers, b'{"a":2}'),
        (secret, headers | {"Webhook-Id": "dlv_2"}, body),
        (sending.new_webhook_secret(), headers, body),
        (secret, headers | {"Webhook-Signature": ""}, body),
        (secret, headers | {"Webhook-Timestamp": str(now + 1)}, body),
        (
            secret,
            {
                **headers,
                "Webhook-Timestamp": str(old),
                "Webhook-Signature": sending.signature(secret, "dlv_1", old, body),
            },
            body,
        ),
    ]
    for one in changed:
        with pytest.raises(NotFromTheFarm):
            verify_webhook(*one)


def test_the_specifications_own_example() -> None:
    """Standard Webhooks, "Verifying signatures": the example of its reference libraries."""
    body = b'{"test": 2432232314}'
    made = sending.signature("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("live", [{"webhook_networks": LOOPBACK}], indirect=True)
def test_the_command_line_adds_tests_lists_and_removes(
    live: LiveFarm, said: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    with receiving() as receiver:
        added = said("webhooks", "add", receiver.url, "--event", "run.ended")
        webhook, secret = (line.split()[1] for line in added.splitlines())
        said("webhooks", "test", webhook)
        assert verify_webhook(secret, *receiver.received[0])["type"] == "webhook.test"
        receiver.answers = [500]
        assert cli.main(["webhooks", "test", webhook]) == 4
        assert "failed: answered 500" in capsys.readouterr().out
        assert said("webhooks", "deliveries", webhook).count("webhook.test") == 2
        out = said("webhooks", "remove", webhook) + said("webhooks", "list")
        assert "its owner removed it" in out
        assert secret not in out
        assert cli.main(["webhooks", "add", "http://10.0.0.1/"]) == 3


def test_a_farm_on_a_socket_tells_by_itself(tmp_path: Path) -> None:
    with receiving() as receiver, live_farm(tmp_path, webhook_networks=LOOPBACK) as farm:
        made = farm.http.post("/webhooks", json={"url": receiver.url}).json()
        run = farm.run(farm.keep_bundle())
        farm.http.post(f"/runs/{run}/cancel")
        headers, body = receiver.wait_for(1)[0]
        assert verify_webhook(made["secret"], headers, body)["data"]["id"] == run
        assert json.loads(body)["type"] == "run.ended"
