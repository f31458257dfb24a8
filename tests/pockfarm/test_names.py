"""Devices by their names, and what was meant by a name or a class that there is not."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from pockfarm import cli
from tests.pockfarm.fake_farm import Answer, FakeFarm, fake_farm

Capture = pytest.CaptureFixture[str]
DESK = {"id": "dev_1", "name": "desk-pi", "state": "active", "device_class": "raspberry-pi-4"}
TWINS = [{**DESK, "id": f"dev_{n}", "name": "twin"} for n in (2, 3)]
GONE = {**DESK, "id": "dev_4", "state": "removed"}


@pytest.fixture
def farm(loopback: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFarm]:
    with fake_farm() as farm:
        monkeypatch.setenv("POCKFARM_URL", farm.url)
        monkeypatch.setenv("POCKFARM_API_KEY", "key-1")
        farm.on("GET", "/devices", Answer(200, {"items": [DESK, *TWINS, GONE]}))
        farm.on("GET", "/devices/dev_1", Answer(200, DESK))
        yield farm


def test_a_device_is_named_by_its_name_or_its_id(farm: FakeFarm, capsys: Capture) -> None:
    for name in ("desk-pi", "dev_1"):
        assert cli.main(["devices", "show", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["id"] == "dev_1"
    farm.on("GET", "/runs", Answer(200, {"items": []}))
    assert cli.main(["runs", "--device", "desk-pi"]) == 0
    assert any("device=dev_1" in one.path for one in farm.seen)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("desk-pie", "did you mean 'desk-pi'?"),
        ("toaster", "'toaster' (`pockfarm devices` lists them)\n"),
        ("twin", "say which by its id, dev_2 or dev_3"),
    ],
)
def test_a_name_that_no_device_has_or_two_have_is_refused(
    farm: FakeFarm, name: str, message: str, capsys: Capture
) -> None:
    for words in (["devices", "drain", name], ["run", "sha256:" + "a" * 64, "profile", "--device", name]):
        assert cli.main(words) == 2
        assert message in capsys.readouterr().err
    assert not [request for request in farm.seen if request.method == "POST"], "nothing is done"


def test_what_class_was_meant_is_told_where_none_is_found(farm: FakeFarm, capsys: Capture) -> None:
    response = Answer(200, {"items": [DESK]})
    farm.on("GET", "/devices", Answer(200, {"items": []}), response)
    assert cli.main(["devices", "--class", "rasberry-pi-4"]) == 0
    assert "did you mean 'raspberry-pi-4'?" in capsys.readouterr().out
