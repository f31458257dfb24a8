"""The client and the policies around it: real sockets, no mocks."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from device_agents import wire as p
from device_agents.errors import Busy, EnrolmentError, FarmError, Refused, Stale, Unreachable, Untrusted
from device_agents.farm import retry
from device_agents.farm.client import FarmClient
from device_agents.farm.events import EventSender
from device_agents.farm.spool import MAX_KEPT, Spool
from device_agents.farm.state import StateFolder
from tests.agents.fake_farm import FakeFarm, Fault
from tests.agents.test_protocol import DESCRIPTION


@pytest.fixture
def client(farm: FakeFarm, tmp_path: Path) -> FarmClient:
    made = FarmClient(farm.url, StateFolder(tmp_path / "state"), session="s" * 16, description=DESCRIPTION)
    made.enrol("one-time")
    return made


def test_enrolment_keeps_secrets_private(farm: FakeFarm, client: FarmClient) -> None:
    state = client.state
    identity = state.identity()
    assert identity is not None
    assert identity.device_id == "device-1"
    for name in ("device-key", "identity.json", "credential.json"):
        assert (state.path / name).stat().st_mode & 0o777 == 0o600
    assert state.path.stat().st_mode & 0o777 == 0o700
    assert b"PRIVATE" not in (state.path / "identity.json").read_bytes()
    with pytest.raises(EnrolmentError, match="new enrolment token"):
        client.enrol("one-time")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (302, Refused),
        (400, Refused),
        (403, Refused),
        (404, Refused),
        (422, Refused),
        (409, Stale),
        (429, Busy),
        (500, Busy),
        (503, Busy),
    ],
)
def test_statuses_are_translated(farm: FakeFarm, client: FarmClient, status: int, kind: type[FarmError]) -> None:
    farm.faults.append(Fault("/lease", status))
    with pytest.raises(kind) as caught:
        client.lease(p.LeaseRequest("s" * 16, 0.1))
    assert caught.value.status == status


def test_no_work_is_none(client: FarmClient) -> None:
    assert client.lease(p.LeaseRequest("s" * 16, 0.1)) is None


def test_nobody_there(loopback: None, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    client = FarmClient(f"http://127.0.0.1:{port}", StateFolder(tmp_path), session="s" * 16, description=DESCRIPTION)
    with pytest.raises(Unreachable):
        client.lease(p.LeaseRequest("s" * 16, 0.1))


@pytest.mark.parametrize("server", ["localhost:8000", "ftp://x", "http://", "http://host:99999999", "http://h/path"])
def test_bad_addresses(tmp_path: Path, server: str) -> None:
    with pytest.raises(EnrolmentError, match="--server"):
        FarmClient(server, StateFolder(tmp_path), session="s" * 16, description=DESCRIPTION)


def test_answers_that_are_no_answers(farm: FakeFarm, client: FarmClient) -> None:
    farm.faults.append(Fault("/heartbeat", 200))
    with pytest.raises(Refused, match="not a HeartbeatResponse"):
        client.heartbeat("lease-0001", p.HeartbeatRequest())


def test_credential_goes_to_the_farm_only(farm: FakeFarm, client: FarmClient, tmp_path: Path) -> None:
    seen: list[bytes] = []
    data = b"from elsewhere"

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            seen.append(connection.recv(65536))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))

    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        blob = p.Blob(digest, len(data), f"http://127.0.0.1:{server.getsockname()[1]}/presigned?x=1")
        client.download(blob, tmp_path / "blob", should_stop=lambda: None)
        thread.join()
    assert (tmp_path / "blob").read_bytes() == data
    assert seen[0].startswith(b"GET /presigned?x=1 ")
    assert b"authorization" not in seen[0].lower()


@pytest.mark.parametrize(("change", "error"), [(b"!", Untrusted), (b"", Unreachable)])
def test_download_sizes(
    farm: FakeFarm, client: FarmClient, tmp_path: Path, change: bytes, error: type[Exception]
) -> None:
    blob = farm.blob(b"content", "lease-0001", "bundle")
    farm.blobs["/agent/attempts/lease-0001/bundle"] = b"content" + change if change else b"conten"
    with pytest.raises(error):
        client.download(blob, tmp_path / "blob", should_stop=lambda: None)


def test_waits_grow_and_are_jittered_within_bounds() -> None:
    waits = list(retry.waits_s(retry.Policy(6, 1.0, 5.0), random.Random(1)))
    ceilings = [1.0, 2.0, 4.0, 5.0, 5.0]
    assert len(waits) == 5
    assert all(0.1 * ceiling <= wait <= ceiling for wait, ceiling in zip(waits, ceilings, strict=True))
    assert retry.wait_after(Busy("x", retry_after_s=30), 1.0) == 30
    assert retry.wait_after(Busy("x", retry_after_s=1e9), 1.0) == retry.MAX_RETRY_AFTER_S


def failing(times: int, error: FarmError) -> tuple[list[int], Callable[[], str]]:
    calls: list[int] = []

    def action() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return "ok"

    return calls, action


def test_retry_gives_up_as_the_policy_says() -> None:
    policy = retry.Policy(3, 0.0, 0.0)
    calls, action = failing(2, Busy("x"))
    assert retry.call(policy, action) == "ok"
    calls, action = failing(9, Unreachable("x"))
    with pytest.raises(Unreachable):
        retry.call(policy, action)
    assert len(calls) == 3
    calls, action = failing(9, Stale("x"))
    with pytest.raises(Stale):
        retry.call(policy, action)
    assert len(calls) == 1
    calls, action = failing(9, Busy("x"))
    with pytest.raises(Busy):
        retry.call(policy, action, sleep=lambda _: True)
    assert len(calls) == 1, "an interrupted wait ends the trying"


def test_spool_keeps_what_the_farm_refuses(farm: FakeFarm, client: FarmClient, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    policy = retry.Policy(1, 0.0, 0.0)
    result = spool.put("lease-0001", b"{}", weights=None, weights_digest=None)
    farm.faults.append(Fault("/report", 503))
    with pytest.raises(Busy):
        spool.send(result, client, policy=policy, sleep=lambda _: None)
    assert [one.lease_token for one in spool.pending()] == ["lease-0001"]
    farm.stale.add("lease-0001")
    assert "409" in spool.send(result, client, policy=policy, sleep=lambda _: None)
    assert not spool.pending()
    assert [refused.lease_token for refused in spool.refused()] == ["lease-0001"]
    for index in range(MAX_KEPT + 5):
        spool.keep(spool.put(f"lease-{index:04}x", b"{}", weights=None, weights_digest=None), "why")
    assert len(spool.refused()) == MAX_KEPT


def test_half_written_results_are_not_sent(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    (spool.pending_folder / ".half").mkdir()
    assert not Spool(tmp_path).pending()


def test_events_are_numbered_without_gaps_and_the_last_step_arrives(farm: FakeFarm, client: FarmClient) -> None:
    farm.faults.append(Fault("/events", 503, 2))
    with EventSender(client, "lease-0001") as sender:
        for number in range(1, 5001):
            sender.add("step", step=number, loss=0.5, step_us=1.0)
        sender.add("log", message="hello")
    events = farm.events["lease-0001"]
    assert sorted(events) == list(range(1, len(events) + 1))
    steps = [events[number].step for number in sorted(events) if events[number].kind == "step"]
    assert steps[0] == 1
    assert steps[-1] == 5000
    assert len(steps) < 100


def test_release_numbers_only_rise(client: FarmClient) -> None:
    for number in (3, 9, 5):
        client.state.raise_release("farm-1", number)
    identity = client.state.identity()
    assert identity is not None
    assert identity.highest_release == {"farm-1": 9}


@pytest.mark.parametrize("status", [400, 404, 409, 500])
def test_messages_do_not_hold_the_lease_token(farm: FakeFarm, client: FarmClient, tmp_path: Path, status: int) -> None:
    secret = "0123456789abcdef" * 4
    farm.faults.append(Fault("/agent/attempts/", status, times=9))
    blob = p.Blob("sha256:" + "0" * 64, 10, p.attempt_path(p.BUNDLE_PATH, secret))
    acts: list[Callable[[], object]] = [
        lambda: client.heartbeat(secret, p.HeartbeatRequest("run", 0)),
        lambda: client.send_events(secret, p.EventBatch(())),
        lambda: client.send_report(secret, b"{}"),
        lambda: client.download(blob, tmp_path / "x", should_stop=lambda: None),
    ]
    for act in acts:
        with pytest.raises(FarmError) as caught:
            act()
        assert secret not in str(caught.value)
        assert secret[:8] not in str(caught.value)
        assert "/agent/attempts/.../" in str(caught.value)
