"""Names of devices: an operator's counts, is one device's only, and says so everywhere; refusals say what to do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from pockfarm import cli
from tests.agents.live_farm import LiveFarm
from tests.service.board import Board
from tests.service.farms import TestFarm
from tests.service.tenants import make_tenant


def rename(farm: TestFarm, board: Board, name: str) -> dict[str, str]:
    answer = farm.http.patch(f"/devices/{board.device_id}", json={"name": name})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def refused(farm: TestFarm, device_id: str, name: str) -> tuple[int, str, str]:
    answer = farm.http.patch(f"/devices/{device_id}", json={"name": name})
    assert answer.status_code >= 400, answer.text
    said = answer.json()
    assert said["hint"], "a refusal has its next step"
    return answer.status_code, said["code"], said["detail"]


def test_an_operators_name_counts_whatever_the_agent_says(farm: TestFarm) -> None:
    board = farm.board(name="pi")
    told = rename(farm, board, " bench left ")
    assert (told["name"], told["told_name"]) == ("bench left", "pi")
    board.restart()
    shown = farm.http.get(f"/devices/{board.device_id}").json()
    assert (shown["name"], shown["told_name"]) == ("bench left", "pi")
    (renamed,) = (line for line in shown["history"] if line["kind"] == "renamed")
    assert renamed["message"] == "from pi to bench left"
    (listed,) = farm.http.get("/devices").json()["items"]
    assert listed["name"] == "bench left"


def test_a_name_that_is_given_back_is_the_agents_again(farm: TestFarm) -> None:
    board = farm.board(name="pi")
    rename(farm, board, "bench")
    assert rename(farm, board, "pi")["name"] == "pi"
    board.description = type(board.description)(**{**vars(board.description), "name": "pi two"})
    board.restart()
    assert farm.http.get(f"/devices/{board.device_id}").json()["name"] == "pi two"


def test_what_was_measured_has_the_new_name(farm: TestFarm) -> None:
    board = farm.board(name="pi")
    run = farm.run(bundle=farm.bundle(), mode="profile", steps=10)["id"]
    work = board.lease()
    assert work is not None
    assert board.report(work).status_code == 200
    rename(farm, board, "bench left")
    for page in (f"/dashboard/runs/{run}", "/dashboard/runs", f"/dashboard/devices/{board.device_id}"):
        assert "bench left" in farm.http.get(page, headers={"Accept": "text/html"}).text, page
    assert farm.http.get(f"/runs/{run}/why").json()["tries"][0]["device_name"] == "bench left"
    again = farm.http.post(f"/runs/{run}/retry")
    assert again.status_code in (201, 202), again.text


def test_who_renamed_it_is_in_the_audit_log(farm: TestFarm) -> None:
    board = farm.board()
    rename(farm, board, "bench")
    refused(farm, board.device_id, "bench")
    entries = [one for one in farm.http.get("/audit").json()["items"] if one["action"] == "PATCH /devices/{device_id}"]
    assert [(one["subject"], one["outcome"]) for one in entries] == [
        (board.device_id, "refused"),
        (board.device_id, "done"),
    ]


def test_refusals_say_why(farm: TestFarm) -> None:
    board, other = farm.board(name="pi"), farm.board(name="desk")
    assert refused(farm, board.device_id, "desk") == (409, "device.name-taken", f"{other.device_id} is called 'desk'")
    rename(farm, board, "bench")
    assert refused(farm, board.device_id, "bench")[:2] == (409, "device.name-same")
    assert refused(farm, "dev_none", "bench")[:2] == (404, "device.unknown")
    farm.http.delete(f"/devices/{other.device_id}")
    assert refused(farm, other.device_id, "shelf")[:2] == (409, "device.removed")
    assert rename(farm, board, "desk")["name"] == "desk", "the one that had it is removed"


@pytest.mark.parametrize("name", ["", "  ", "-pi", "p\u00efe", "a\nb", "a/b", "x" * 101, "dev_x", "local"])
def test_what_is_no_name_is_refused(small_farm: TestFarm, name: str) -> None:
    board = small_farm.board()
    assert refused(small_farm, board.device_id, name)[:2] == (422, "device.name")
    assert small_farm.http.get(f"/devices/{board.device_id}").json()["name"] == board.description.name


def test_another_organisations_names_take_none_away(farm: TestFarm) -> None:
    acme = make_tenant(farm, "acme")
    theirs = acme.farm.http.get(f"/devices/{acme.device}").json()["name"]
    board = farm.board(name="pi")
    assert rename(farm, board, theirs)["name"] == theirs
    code = acme.farm.http.patch(f"/devices/{board.device_id}", json={"name": "mine"}).json()["code"]
    assert code in ("device.owner", "device.unknown")


def test_of_two_who_want_a_name_one_gets_it(farm: TestFarm) -> None:
    boards = [farm.board(name=f"pi-{n}") for n in range(4)]
    with ThreadPoolExecutor(len(boards)) as pool:
        answers = list(
            pool.map(lambda board: farm.http.patch(f"/devices/{board.device_id}", json={"name": "bench"}), boards)
        )
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]


def test_the_command_takes_the_old_name_or_the_id(
    live: LiveFarm, said: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    board = Board(live.http, name="pi").enrol(live.token())
    assert said("devices", "rename", "pi", "bench left") == f"{board.device_id} is called bench left\n"
    assert cli.main(["devices", "rename", "pi", "bench left"]) == 2
    assert "no device is called 'pi'" in capsys.readouterr().err
    assert cli.main(["devices", "rename", board.device_id, "bench left"]) != 0
    assert "is called 'bench left' already" in capsys.readouterr().err
    (told,) = (line for line in said("devices", "show", "bench left").splitlines() if "calls itself" in line)
    assert told.split() == ["calls", "itself", "pi"]


def test_a_taken_name_is_refused_at_enrolment_as_at_renaming_and_uses_no_token(farm: TestFarm) -> None:
    first = farm.board(name="shelf")
    token = farm.http.post("/devices/enrolment-tokens", json={}).json()
    second = Board(farm.anonymous, name="shelf")
    answer = second.try_enrol(token["token"])
    assert (answer.status_code, answer.json()["code"]) == (409, "device.name-taken")
    assert answer.json()["detail"] == f"{first.device_id} is called 'shelf'"
    assert refused(farm, farm.board(name="other").device_id, "shelf")[1] == "device.name-taken"
    assert farm.http.get(f"/devices/enrolment-tokens/{token['id']}").json()["uses"] == 0
    farm.http.delete(f"/devices/{first.device_id}")
    assert second.try_enrol(token["token"]).status_code == 201, "a removed device has no name any more"


def test_a_name_that_reads_as_an_id_is_refused_at_enrolment(small_farm: TestFarm) -> None:
    token = small_farm.http.post("/devices/enrolment-tokens", json={}).json()["token"]
    answer = Board(small_farm.anonymous, name="dev_mine").try_enrol(token)
    assert (answer.status_code, answer.json()["code"]) == (422, "device.name")


def test_an_agent_that_takes_anothers_name_later_keeps_its_own(farm: TestFarm) -> None:
    first, second = farm.board(name="shelf"), farm.board(name="bench")
    second.description = replace(second.description, name="shelf")
    second.restart()
    shown = farm.http.get(f"/devices/{second.device_id}").json()
    assert shown["name"] == "bench"
    (line,) = (line["message"] for line in shown["history"] if line["kind"] == "name-taken")
    assert line == f"its agent calls it shelf, as {first.device_id} is called: the name stays bench"


def test_a_token_for_one_board_is_not_made_for_a_name_that_would_be_refused(farm: TestFarm) -> None:
    farm.board(name="shelf")
    for name, code in (("shelf", "device.name-taken"), ("a;b", "device.name"), ("dev_x", "device.name")):
        assert farm.http.post("/devices/enrolment-tokens", json={"name": name}).json()["code"] == code
    answer = farm.http.post("/devices/enrolment-tokens", json={"name": "rack 7: all of it", "uses": 20})
    assert answer.status_code == 201, "of many boards it is the token's own name"
