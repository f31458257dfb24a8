"""One identity on two machines: the one that works goes on, the other waits or is refused, and operators hear of it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, update

from device_agents import wire as p
from pockfarm.webhooks import verify_webhook
from service.devices.machines import LATELY_S, MOST_MACHINES, UNDER_WAY_S
from service.devices.sightings import SILENT_AFTER_S, Sightings
from service.store.database.models import Device, DeviceMachine
from tests.service.board import Board, leased
from tests.service.farms import TestFarm
from tests.service.receiver import receiving
from tests.service.test_timed_canary import change_setting
from tests.service.test_webhooks import LOOPBACK, deliver_due

FIRST = p.Machine("10000000a1b2c3d4", "boot-1", "pi-first", "/var/lib/pockfarm", "7001")
COPY = p.Machine("10000000e5f6a7b8", "boot-9", "pi-copy", "/var/lib/pockfarm", "7001")
"""A copied memory card: all that is on it is the same."""
BESIDE = replace(FIRST, folder="/srv/copy", folder_id="8002")
"""A copied state folder, on the same machine."""


def enrolled(farm: TestFarm, machine: p.Machine | None = FIRST, *, name: str = "pi") -> Board:
    token = farm.http.post("/devices/enrolment-tokens", json={}).json()["token"]
    board = Board(farm.anonymous, name=name)
    board.machine = machine
    return board.enrol(token)


def passes(farm: TestFarm, seconds: float) -> None:
    """So long ago is all that happened until now."""
    with farm.farm.database.transaction() as session:
        session.execute(update(Device).values(last_seen_at=Device.last_seen_at - seconds))
        columns = {name: getattr(DeviceMachine, name) - seconds for name in ("waits_since", "seen_at", "refused_at")}
        session.execute(update(DeviceMachine).values(columns))


def starts(board: Board) -> httpx.Response:
    """Its agent starts, with a session of its own."""
    answer = board.try_renew(session=f"session-{time.monotonic_ns()}")
    if answer.status_code == 200:
        board.credential = p.loads(p.Credential, answer.content).token
    return answer


def refused(farm: TestFarm, board: Board, other: Board) -> httpx.Response:
    """What the other hears after it has asked, waited, and the board has asked for work meanwhile."""
    assert starts(other).status_code == 503
    passes(farm, UNDER_WAY_S + 1)
    asks(farm, board)
    return starts(other)


def asks(farm: TestFarm, board: Board) -> None:
    """For work, and the farm notes it."""
    assert board.try_lease().status_code in (200, 204)
    farm.farm.part(Sightings).write(farm.farm.database)


def marks(farm: TestFarm, board: Board) -> dict[str, str]:
    shown = farm.http.get(f"/devices/{board.device_id}").json()
    return {mark["code"]: mark["message"] for mark in shown["marks"]}


@pytest.mark.parametrize("machine", [COPY, BESIDE, replace(COPY, serial="")], ids=["card", "folder", "no serial"])
def test_the_machine_that_works_goes_on_and_its_copy_is_refused(farm: TestFarm, machine: p.Machine) -> None:
    board = enrolled(farm)
    machine = machine if machine.serial else replace(machine, folder_id="9003")
    other = board.copy(machine)
    run = farm.run(bundle=farm.bundle())
    work = leased(board)
    waits = starts(other)
    assert (waits.status_code, waits.json()["code"], waits.headers["Retry-After"]) == (503, "device.elsewhere", "5")
    assert "pi-first (hardware 10000000a1b2c3d4" in waits.json()["detail"]
    passes(farm, UNDER_WAY_S + 1)
    assert board.heartbeat(work).status_code == 200
    answer = starts(other)
    assert (answer.status_code, answer.json()["code"]) == (409, "device.two-machines")
    assert "pi-first" in answer.json()["detail"]
    assert "delete its state folder" in answer.json()["hint"]
    assert board.report(work).status_code == 200
    shown = farm.show(run["id"])
    assert (shown["state"], len(shown["tries"])) == ("succeeded", 1), "the run ended once, on the one that works"
    with farm.farm.database.read() as session:
        assert session.get_one(Device, board.device_id).strikes == 0


def test_both_machines_are_named_wherever_operators_look(farm: TestFarm) -> None:
    board = enrolled(farm)
    assert marks(farm, board) == {}
    refused(farm, board, board.copy(COPY))
    message = marks(farm, board)["two-machines"]
    assert all(
        word in message for word in ("pi-first", "pi-copy", FIRST.serial, COPY.serial, "enrol it with a new token")
    )
    history = farm.http.get(f"/devices/{board.device_id}").json()["history"]
    assert [line["message"] for line in history if line["kind"] == "two-machines"] == [message]
    page = farm.http.get(f"/dashboard/devices/{board.device_id}").text
    assert "pi-copy" in page
    overview = farm.http.get("/dashboard/").text
    assert "pi is used on two machines" in overview
    run = farm.run(bundle=farm.bundle(), device=board.device_id)
    why = farm.http.get(f"/runs/{run['id']}/why").json()
    assert "is free (its identity is used on two machines" in why["waiting"]["devices"][0]["message"]
    work = leased(board)
    assert "its identity is used on two machines" in farm.http.get(f"/runs/{run['id']}/why").json()["message"]
    board.report(work)


def test_operators_are_told_once_by_a_webhook(farm: TestFarm, loopback: None) -> None:
    change_setting(farm, webhook_networks=LOOPBACK)
    board = enrolled(farm)
    other = board.copy(COPY)
    with receiving() as receiver:
        webhook = farm.http.post("/webhooks", json={"url": receiver.url, "events": ["device.two-machines"]}).json()
        for boot in ("boot-9", "boot-10", "boot-10"):
            other.machine = replace(COPY, boot_id=boot)
            refused(farm, board, other)
            passes(farm, SILENT_AFTER_S + 1)
            asks(farm, board)
        deliver_due(farm)
        messages: list[Any] = [verify_webhook(webhook["secret"], *message) for message in receiver.received]
    assert [message["type"] for message in messages] == ["device.two-machines"]
    assert messages[0]["data"]["device_id"] == board.device_id
    assert "pi-copy" in messages[0]["data"]["message"]


def test_a_card_that_moves_to_another_board_works_once_the_first_is_silent(farm: TestFarm) -> None:
    board = enrolled(farm)
    other = board.copy(COPY)
    assert starts(other).status_code == 503
    passes(farm, SILENT_AFTER_S + 1)
    assert starts(other).status_code == 200
    assert other.try_lease().status_code == 204
    assert marks(farm, board) == {}, "nothing says that both are there"
    assert board.try_lease().status_code == 409
    assert starts(board).status_code == 503, "now it is the one that comes from elsewhere"


@pytest.mark.parametrize(
    "machine", [FIRST, replace(FIRST, boot_id="boot-2"), None], ids=["same", "boot", "older agent"]
)
def test_an_agent_that_starts_again_on_its_machine_works_at_once(farm: TestFarm, machine: p.Machine | None) -> None:
    board = enrolled(farm)
    board.machine = machine
    assert starts(board).status_code == 200
    assert board.try_lease().status_code == 204


def test_an_agent_that_learns_to_tell_its_machine_works_at_once(farm: TestFarm) -> None:
    board = enrolled(farm, None)
    board.machine = FIRST
    assert starts(board).status_code == 200


def test_cloned_machines_are_told_apart_by_their_boots(farm: TestFarm) -> None:
    """Virtual machines with one serial number: the second looks like a reboot, until the first comes back."""
    board = enrolled(farm)
    clone = board.copy(replace(FIRST, boot_id="boot-2"))
    assert starts(clone).status_code == 200
    assert refused(farm, clone, board).json()["code"] == "device.two-machines"
    assert "two-machines" in marks(farm, board)


def test_a_boot_that_was_not_there_before_does_not_take_a_run_from_the_one_that_has_it(farm: TestFarm) -> None:
    board = enrolled(farm)
    farm.run(bundle=farm.bundle())
    work = leased(board)
    clone = board.copy(replace(FIRST, boot_id="boot-2"))
    assert starts(clone).status_code == 503
    assert board.heartbeat(work).status_code == 200


def test_a_copy_that_enrols_anew_settles_it(farm: TestFarm) -> None:
    board = enrolled(farm)
    refused(farm, board, board.copy(COPY))
    enrolled(farm, COPY, name="pi two")
    assert marks(farm, board) == {}


def test_it_is_history_after_a_day(farm: TestFarm) -> None:
    board = enrolled(farm)
    refused(farm, board, board.copy(COPY))
    passes(farm, LATELY_S)
    assert marks(farm, board) == {}


def test_a_copy_that_enrols_with_the_same_key_does_not_use_its_token_up(farm: TestFarm) -> None:
    board = enrolled(farm)
    token = farm.http.post("/devices/enrolment-tokens", json={}).json()
    other = board.copy(COPY)
    assert other.try_enrol(token["token"]).status_code == 503
    assert farm.http.get(f"/devices/enrolment-tokens/{token['id']}").json()["uses"] == 0


@pytest.mark.parametrize("header", ["{", "x" * 3000, '{"serial": 5}', '{"host": "\\u0000\\ud800"}'])
def test_a_header_that_cannot_be_read_says_nothing(farm: TestFarm, header: str) -> None:
    board = enrolled(farm)
    post = board.http.post
    board.http.headers[p.MACHINE_HEADER] = header
    board.machine = None
    try:
        assert starts(board).status_code == 200, post
    finally:
        del board.http.headers[p.MACHINE_HEADER]


def test_an_agent_that_tells_of_ever_other_machines_fills_no_table(farm: TestFarm) -> None:
    board = enrolled(farm)
    for number in range(MOST_MACHINES + 5):
        board.machine = replace(FIRST, boot_id=f"boot-{number + 2}")
        assert starts(board).status_code == 200
    with farm.farm.database.read() as session:
        assert (session.scalar(select(func.count()).select_from(DeviceMachine)) or 0) <= MOST_MACHINES + 2
