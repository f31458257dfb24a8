"""Tags, and requests for many devices: who gets what, and what is said of what is not there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from device_agents import wire as p
from pockfarm import cli
from tests.agents.live_farm import LiveFarm
from tests.service.board import Board, leased
from tests.service.farms import TestFarm


def tag(farm: TestFarm, board: Board, **given: str) -> dict[str, str]:
    return change(farm, board, {"set": given})


def change(farm: TestFarm, board: Board, body: dict[str, Any]) -> dict[str, str]:
    answer = farm.http.post(f"/devices/{board.device_id}/tags", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["tags"])


def test_a_run_goes_only_to_devices_that_have_what_it_asks_for(farm: TestFarm) -> None:
    plain, tagged, both = (farm.board(name=name) for name in ("plain", "tagged", "both"))
    assert tag(farm, tagged, gpu="") == {"gpu": ""}
    assert tag(farm, both, gpu="", rack="7") == {"gpu": "", "rack": "7"}
    bundle = farm.bundle()
    on_both = farm.run(bundle=bundle, where=["gpu", "rack=7"])
    on_any_gpu = farm.run(bundle=bundle, where=["gpu"])
    assert on_both["where"] == ["gpu", "rack=7"]
    assert plain.lease() is None
    assert leased(tagged).run_id == on_any_gpu["id"]
    assert leased(both).run_id == on_both["id"]


def test_runs_for_others_hide_none_behind_them(farm: TestFarm) -> None:
    plain, tagged = farm.board(name="plain"), farm.board(name="tagged")
    tag(farm, tagged, gpu="")
    bundle = farm.bundle()
    for _ in range(60):
        farm.run(bundle=bundle, where=["gpu"])
    last = farm.run(bundle=bundle)
    assert leased(plain).run_id == last["id"]


def test_a_tag_that_is_taken_away_counts_from_the_next_request_for_work(farm: TestFarm) -> None:
    board = farm.board()
    tag(farm, board, gpu="")
    run = farm.run(bundle=farm.bundle(), where=["gpu"])
    assert change(farm, board, {"remove": ["gpu"]}) == {}
    assert board.lease() is None
    told = farm.http.get(f"/runs/{run['id']}/why").json()["waiting"]
    assert (told["code"], told["devices"][0]["code"]) == ("unavailable", "wants")
    assert "lacks the tag gpu" in told["message"]
    tag(farm, board, gpu="orin")
    assert leased(board).run_id == run["id"], "a key with any value has the key"


def test_an_unknown_tag_is_refused_with_what_there_is_or_waits(farm: TestFarm) -> None:
    board = farm.board()
    tag(farm, board, rack="7", camera="")
    bundle = farm.bundle()
    answer = farm.http.post("/runs", json={"bundle": bundle, "where": ["rack=8"]})
    body = answer.json()
    assert (answer.status_code, body["code"], body["where"]) == (422, "run.tag-unknown", "where")
    assert "camera, rack, rack=7" in body["detail"]
    assert "did you mean rack=7" in body["hint"]
    waiting = farm.run(bundle=bundle, where=["rack=8"], allow_waiting=True)
    assert "lacks the tag rack=8" in waiting["warnings"][0]["message"]
    assert board.lease() is None


@pytest.mark.parametrize("where", [["Rack"], ["rack=="], ["a b"], ["=7"], ["rack="], ["data:x"], ["x\ny"], ["tag:x"]])
def test_a_condition_that_is_none_is_refused(small_farm: TestFarm, where: list[str]) -> None:
    answer = small_farm.http.post("/runs", json={"bundle": small_farm.bundle(), "where": where})
    assert (answer.status_code, answer.json()["code"]) == (422, "run.where")


@pytest.mark.parametrize("given", [{"Rack": "7"}, {"": ""}, {"rack": "a\nb"}, {"rack": "=x"}, {"a" * 64: ""}])
def test_a_tag_that_is_none_is_refused(small_farm: TestFarm, given: dict[str, str]) -> None:
    board = small_farm.board()
    answer = small_farm.http.post(f"/devices/{board.device_id}/tags", json={"set": given})
    assert (answer.status_code, answer.json()["code"]) == (422, "device.tag")
    many = {f"key{n}": "" for n in range(64)}
    assert tag(small_farm, board, **many) == many
    answer = small_farm.http.post(f"/devices/{board.device_id}/tags", json={"set": {"one-more": ""}})
    assert answer.json()["code"] == "device.tags"


def test_a_group_is_a_run_on_each_device_that_fits(farm: TestFarm) -> None:
    boards = [farm.board(name=f"b{n}") for n in range(4)]
    for board in boards[:3]:
        tag(farm, board, shelf="1")
    farm.http.post(f"/devices/{boards[2].device_id}/drain", json={})
    answer = farm.http.post("/run-groups", json={"bundle": farm.bundle(), "where": ["shelf=1"], "name": "nightly"})
    assert answer.status_code == 202, answer.text
    group = answer.json()
    assert [run["wanted_device_id"] for run in group["runs"]] == [board.device_id for board in boards[:3]]
    for board in boards[:2]:
        board.report(leased(board))
        assert board.lease() is None, "each once"
    assert boards[3].lease() is None
    seen = farm.http.get(f"/run-groups/{group['id']}").json()
    assert (seen["states"], seen["is_open"]) == ({"queued": 1, "succeeded": 2}, True)
    assert [run["summary"] is not None for run in seen["runs"]] == [True, True, False]
    assert farm.http.post(f"/run-groups/{group['id']}/cancel").json()["states"] == {"cancelled": 1, "succeeded": 2}
    assert farm.http.get("/run-groups").json()["items"][0]["name"] == "nightly"


def test_a_group_of_n_takes_those_that_may_start_soonest(farm: TestFarm) -> None:
    busy, free, drained = (farm.board(name=name) for name in ("a busy", "b free", "c drained"))
    bundle = farm.bundle()
    farm.run(bundle=bundle, device=busy.device_id)
    leased(busy)
    farm.http.post(f"/devices/{drained.device_id}/drain", json={})
    group = farm.http.post("/run-groups", json={"bundle": bundle, "count": 2}).json()
    assert {run["wanted_device_id"] for run in group["runs"]} == {busy.device_id, free.device_id}


def test_a_group_is_queued_whole_or_not_at_all(farm: TestFarm) -> None:
    farm.board(name="fits")
    farm.board(name="another target", targets=("raspberry-pi-4",))
    bundle = farm.bundle()
    few = farm.http.post("/run-groups", json={"bundle": bundle, "count": 2})
    assert (few.status_code, few.json()["code"]) == (422, "group.devices")
    assert "another target runs raspberry-pi-4" in few.json()["detail"]
    assert farm.http.post("/run-groups", json={"bundle": bundle, "device": "dev_x"}).status_code == 422
    farm.board(name="fits too")
    with_many_threads = farm.http.post("/run-groups", json={"bundle": bundle, "threads": 9999})
    assert with_many_threads.status_code == 422
    assert farm.http.get("/runs").json()["items"] == []
    assert farm.http.get("/run-groups").json()["items"] == []


def test_the_same_request_again_makes_no_second_group(farm: TestFarm) -> None:
    farm.board()
    body, headers = {"bundle": farm.bundle()}, {"Idempotency-Key": "k1"}
    first, second = (farm.http.post("/run-groups", json=body, headers=headers).json() for _ in range(2))
    assert first["id"] == second["id"]
    assert len(farm.http.get("/runs").json()["items"]) == 1


def test_fifty_boards(farm: TestFarm) -> None:
    """A rack by one token, tagged, a group on all of it, one shelf in maintenance, one board drained."""
    token = farm.http.post("/devices/enrolment-tokens", json={"uses": 50}).json()["token"]
    boards = [Board(farm.anonymous, name=f"board {n:02}").enrol(token) for n in range(50)]
    assert Board(farm.anonymous).try_enrol(token).status_code == 403
    for n, board in enumerate(boards):
        tag(farm, board, shelf=str(n // 10), **({"camera": ""} if n % 2 else {}))
    group = farm.http.post("/run-groups", json={"bundle": farm.bundle(), "where": ["camera"]}).json()
    assert len(group["runs"]) == 25
    farm.http.post(f"/devices/{boards[1].device_id}/drain", json={"reason": "dust"})
    shelf: dict[str, Any] = {"starts_at": "2020-01-01T00:00:00Z", "ends_at": "2020-01-07T23:59:59Z", "weekly": True}
    for board in boards[40:50]:
        assert farm.http.post("/maintenance", json={**shelf, "device": board.device_id}).status_code == 201
    done = 0
    for board in boards:
        work = board.lease()
        if work is not None:
            assert board.report(work).status_code == 200
            done += 1
    assert done == 19, "25 cameras, less the drained one, less five on the shelf that is in maintenance"
    seen = farm.http.get(f"/run-groups/{group['id']}").json()
    assert seen["states"] == {"queued": 6, "succeeded": 19}
    assert len({run["device_id"] for run in seen["runs"] if run["state"] == "succeeded"}) == 19
    farm.http.post(f"/devices/{boards[1].device_id}/resume")
    for window in farm.http.get("/maintenance").json()["items"]:
        farm.http.delete(f"/maintenance/{window['id']}")
    for board in boards:
        work = board.lease()
        if work is not None:
            assert board.report(work).status_code == 200
    assert farm.http.get(f"/run-groups/{group['id']}").json()["states"] == {"succeeded": 25}


def test_pages_show_tags_data_and_how_far_a_group_is(small_farm: TestFarm) -> None:
    data = p.OwnDataset("digits", "sha256:" + "1" * 64, 9, 4, (p.OwnArray("x", "float32", (4, 2)),), None, True)
    board = small_farm.board(name="shelf", own_datasets=(data,))
    tag(small_farm, board, rack="7")
    group = small_farm.http.post("/run-groups", json={"bundle": small_farm.bundle(), "name": "nightly"}).json()
    other = small_farm.run(bundle=small_farm.bundle(b"other"))
    page = small_farm.http.get(f"/dashboard/devices/{board.device_id}").text
    for text in ("rack=7", "digits", "x float32 [4, 2]", "stay on it", "sha256:111"):
        assert text in page
    assert "rack=7" in small_farm.http.get("/dashboard/devices.csv").text
    page = small_farm.http.get(f"/dashboard/runs?group={group['id']}").text
    assert re.search(r"Group nightly, .* 1 devices: 1 queued", page)
    assert other["id"] not in page
    rows = small_farm.http.get(f"/dashboard/runs.json?group={group['id']}").json()["rows"]
    assert [row["id"] for row in rows] == [group["runs"][0]["id"]]
    small_farm.http.post(f"/devices/{board.device_id}/drain", json={"reason": "dust"})
    assert "shelf is drained: dust" in small_farm.http.get(f"/dashboard/devices/{board.device_id}").text


def test_the_command_line_tags_and_runs_on_each(live: LiveFarm, said: Callable[..., str]) -> None:
    token = live.token(uses=2)
    boards = [Board(live.http, name=f"shelf {n}").enrol(token) for n in range(2)]
    for board in boards:
        assert said("devices", "tag", board.device_id, "rack=7", "gpu") == "gpu rack=7\n"
    assert said("devices", "tag", boards[0].device_id, "--", "-gpu") == "rack=7\n"
    assert "gpu rack=7" in said("devices")
    bundle = live.keep_bundle()
    group = said("run", bundle, "profile", "--where", "rack=7", "--each").split()[0]
    assert "2 queued" in said("groups", "list")
    assert "shelf 1" in said("groups", "show", group)
    assert "2 cancelled" in said("groups", "cancel", group)
    assert "1 runs" in said("run", bundle, "profile", "--where", "gpu", "--each", "1")
    assert cli.main(["run", bundle, "profile", "--where", "gpux", "--no-wait"]) == 3
