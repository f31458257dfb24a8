"""`curl FARM/enrol.sh | sh` on a board whose agent systemd keeps running: whatever fails, an agent runs afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.live_farm import LiveFarm, live_farm
from tests.agents.test_one_line import WRONG_CLOCK, Board, script

SYSTEMCTL = """#!/bin/sh
# It keeps what it was told, and whether the agent runs, in files.
echo "$*" >>"$SYSTEMD_FOLDER/told"
case $1 in
is-active) [ -e "$SYSTEMD_FOLDER/runs" ] ;;
stop) rm -f "$SYSTEMD_FOLDER/runs" ;;
start | restart) cat "$POCKFARM_PROGRAM/agent.pyz" >"$SYSTEMD_FOLDER/runs" ;;
esac
"""
OLDER = b"the agent of before"


@pytest.fixture
def farm(loopback: None, tmp_path: Path) -> Iterator[LiveFarm]:
    with live_farm(tmp_path / "farm") as running:
        yield running


class SystemdBoard(Board):
    """A board with a systemd that is a script, and an agent that runs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.folder, self.program = root / "systemd", root / "program/agent.pyz"
        for folder in (self.folder, root / "units", root / "program"):
            folder.mkdir()
        self.program.write_bytes(OLDER)
        (self.folder / "runs").write_bytes(OLDER)
        self.put("systemctl", SYSTEMCTL)
        self.put("id", "#!/bin/sh\necho 0\n")

    def put(self, name: str, text: str) -> None:
        (self.root / "bin" / name).unlink(missing_ok=True)
        (self.root / "bin" / name).write_text(text)
        (self.root / "bin" / name).chmod(0o755)

    @property
    def variables(self) -> dict[str, str]:
        return super().variables | {
            "POCKFARM_NO_SERVICE": "",
            "POCKFARM_SYSTEMD": str(self.folder),
            "POCKFARM_UNITS": str(self.root / "units"),
            "SYSTEMD_FOLDER": str(self.folder),
        }

    @property
    def told(self) -> list[str]:
        """What systemctl was asked to do; questions left out."""
        path = self.folder / "told"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[0] for line in lines if not line.startswith("is-active")]

    @property
    def runs(self) -> bytes | None:
        """The file of the agent that runs."""
        path = self.folder / "runs"
        return path.read_bytes() if path.exists() else None


@pytest.fixture
def board(tmp_path: Path) -> SystemdBoard:
    return SystemdBoard(tmp_path / "board")


def test_an_update_takes_the_place_of_the_agent_that_ran(farm: LiveFarm, board: SystemdBoard) -> None:
    done = board.pipe(script(farm), POCKFARM_ENROL_TOKEN=farm.token())
    assert done.returncode == 0, done.stderr
    assert board.told == ["stop", "daemon-reload", "enable", "restart"]
    assert board.runs == board.program.read_bytes() != OLDER
    assert (
        f"ExecStart={board.root}/bin/python3 {board.program}"
        in (board.root / "units/pockfarm-agent.service").read_text()
    )
    assert list((board.root / "state").glob("self-test.*")) == []


def test_a_board_that_is_not_fit_keeps_its_agent_running(farm: LiveFarm, board: SystemdBoard) -> None:
    (board.root / "site").mkdir()
    (board.root / "site" / "sitecustomize.py").write_text(WRONG_CLOCK)
    done = board.pipe(script(farm), POCKFARM_ENROL_TOKEN=farm.token(), PYTHONPATH=str(board.root / "site"))
    assert done.returncode == 1
    assert "is not fit for the farm yet" in done.stderr
    assert (board.told, board.runs, board.program.read_bytes()) == ([], OLDER, OLDER)
    assert list((board.root / "state").glob("self-test.*")) == []


@pytest.mark.parametrize("case", ["the farm refuses", "the program cannot be written"])
def test_what_fails_after_the_stop_starts_the_agent_again(farm: LiveFarm, board: SystemdBoard, case: str) -> None:
    token = farm.token() if case == "the program cannot be written" else "0" * 64
    if case == "the program cannot be written":
        board.put("cp", "#!/bin/sh\nexit 1\n")
    done = board.pipe(script(farm), POCKFARM_ENROL_TOKEN=token)
    assert done.returncode == 1
    assert board.told == ["stop", "start"]
    assert (board.runs, board.program.read_bytes()) == (OLDER, OLDER)


def test_an_agent_that_did_not_run_is_not_started_by_a_failure(farm: LiveFarm, board: SystemdBoard) -> None:
    os.remove(board.folder / "runs")
    done = board.pipe(script(farm), POCKFARM_ENROL_TOKEN="0" * 64)
    assert (done.returncode, board.told, board.runs) == (1, [], None)
