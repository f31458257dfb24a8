"""The documented way to enrol a board, word for word, on boards of every class that is recognised."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.conftest import ROOT
from tests.agents.live_farm import LiveFarm, live_farm
from tests.sample import sample

RECOGNISED = """
import device_agents.devices.raspberry_pi as pi, device_agents.devices as devices, dataclasses, sys
from device_agents.devices.board import Board
kind = dataclasses.replace(pi.KIND, detect=lambda board: {board!r})
import device_agents.devices.describe as describe
describe.DEVICE_KINDS = (kind, *devices.DEVICE_KINDS[1:])
from device_agents.agent import main; sys.exit(main())
"""


@pytest.fixture
def farm(loopback: None, tmp_path: Path) -> Iterator[LiveFarm]:
    with live_farm(tmp_path / "farm") as running:
        yield running


def documented(document: str, module: str) -> list[str]:
    """The words of the command for `module` in a document."""
    text = (ROOT / "docs" / document).read_text()
    found = re.search(rf"python -m ({re.escape(module)}[^\n`#]*)", text)
    assert found is not None
    return found.group(1).split()


def token_of(farm: LiveFarm, *words: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "POCKFARM_STATE": str(farm.farm.settings.state),
        "POCKFARM_DATABASE_URL": farm.farm.settings.database,
    }
    done = subprocess.run([sys.executable, "-m", *words], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def enrol(farm: LiveFarm, document: str, board: str, token: str, state: Path, *more: str) -> tuple[str, str]:
    """Start the documented agent command on a board until it has enrolled or ended; its log, and the device class."""
    words = documented(document, "device_agents.agent")[1:]
    words[words.index("--server") + 1], words[words.index("--state") + 1] = farm.url, str(state)
    command = [sys.executable, "-c", RECOGNISED.format(board=board), *words, *more, "--long-poll", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdin is not None
        assert agent.stderr is not None
        agent.stdin.write(token + "\n")
        agent.stdin.close()
        lines = []
        for line in agent.stderr:
            lines.append(line)
            if "waiting for work" in line:
                agent.terminate()
    devices = farm.http.get("/devices").json()["items"]
    return "".join(lines), devices[0]["device_class"] if devices else ""


BOARDS = [
    pytest.param(document, board, id=f"{board}-{document}")
    for board in ("raspberry-pi-4", "raspberry-pi-5")
    for document in ("agent.md", "operations.md")
]


@pytest.mark.parametrize(("document", "board"), sample(BOARDS, ("raspberry-pi-5-agent.md",)))
def test_the_documented_commands_enrol_each_board(farm: LiveFarm, tmp_path: Path, document: str, board: str) -> None:
    token = token_of(farm, *documented(document, "service.admin enrolment-token"))
    said, device_class = enrol(farm, document, board, token, tmp_path / "board")
    assert "enrolled as device" in said, said
    assert device_class == board


def test_a_token_for_another_class_is_refused_with_both_classes_and_each_way_out_works(
    farm: LiveFarm, tmp_path: Path
) -> None:
    token = farm.token(device_class="raspberry-pi-4")
    said, found = enrol(farm, "agent.md", "raspberry-pi-5", token, tmp_path / "board")
    assert found == ""
    assert not (tmp_path / "board").exists(), "a refusal leaves nothing behind"
    for words in (
        "for devices of class raspberry-pi-4, and this device is a raspberry-pi-5",
        "make a token for class raspberry-pi-5",
        "--class raspberry-pi-4",
    ):
        assert words in said, said
    said, found = enrol(farm, "agent.md", "raspberry-pi-5", token, tmp_path / "board", "--class", "raspberry-pi-4")
    assert found == "raspberry-pi-4", said
    fitting = farm.token(device_class="raspberry-pi-5")
    said, found = enrol(farm, "agent.md", "raspberry-pi-5", fitting, tmp_path / "other")
    assert found == "raspberry-pi-5", said


def test_boards_that_were_never_named_get_names_of_their_own(farm: LiveFarm, tmp_path: Path) -> None:
    """Fresh cards have one host name."""
    log, _ = enrol(farm, "agent.md", "raspberry-pi-5", farm.token(), tmp_path / "first")
    log, _ = enrol(farm, "agent.md", "raspberry-pi-5", farm.token(), tmp_path / "second")
    names = sorted(device["name"] for device in farm.http.get("/devices").json()["items"])
    assert re.fullmatch(f"{re.escape(names[0])}-[0-9a-f]{{4}}", names[1]), names
    assert f"another device is called {names[0]}, so this one enrols as {names[1]}; --name chooses" in log
    log, _ = enrol(farm, "agent.md", "raspberry-pi-5", farm.token(), tmp_path / "third", "--name", names[0])
    assert f"is called '{names[0]}'; choose another name" in log
    assert not (tmp_path / "third").exists(), "a refusal leaves nothing behind"


def test_what_was_there_before_a_refusal_stays(farm: LiveFarm, tmp_path: Path) -> None:
    for name, files in (("empty", ()), ("used", ("notes.txt",))):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_text("mine")
        log, device_class = enrol(farm, "agent.md", "raspberry-pi-5", "0" * 64, tmp_path / name)
        assert "this enrolment token is unknown or has expired; make another on the farm" in log
        assert device_class == ""
        assert {path.name for path in (tmp_path / name).iterdir()} >= set(files)
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize("name", ["a;rm", "K\u00fcche", "a" * 200, "   ", "../../etc", "a\nb"])
def test_a_name_that_is_none_is_refused_in_a_sentence(farm: LiveFarm, tmp_path: Path, name: str) -> None:
    log, device_class = enrol(farm, "agent.md", "raspberry-pi-5", farm.token(), tmp_path / "board", "--name", name)
    assert "expected 1-100 letters, digits, spaces and ._:@+-, a letter or digit first" in log
    assert "Traceback" not in log
    assert device_class == ""
    assert not (tmp_path / "board").exists(), "a refusal leaves nothing behind"
