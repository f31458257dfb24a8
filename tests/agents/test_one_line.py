"""`curl FARM/enrol.sh | sh`: word for word, by dash, in an environment that holds nothing else, against a real farm."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from device_agents.farm.state import StateFolder
from service.base.problems import Invalid
from service.boards.installation.agent_file import agent_digest, agent_file
from service.boards.installation.endpoints import enrolment_script, farm_address
from tests.agents.conftest import ROOT
from tests.agents.live_farm import LiveFarm, live_farm
from tests.agents.test_old_python import distribution_python
from tests.sample import thinned
from tests.skips import needs_program

PYTHON = Path(distribution_python() or sys.executable)
"""The system's own, if its `cryptography` is new enough: nothing of ours is installed there."""
TOOLS = ("sh", "dash", "id", "mkdir", "chmod", "cp", "mv", "rm", "rmdir", "mktemp", "sed", "cat", "stty")


@pytest.fixture
def farm(loopback: None, tmp_path: Path) -> Iterator[LiveFarm]:
    with live_farm(tmp_path / "farm") as running:
        yield running


class Board:
    """A machine with a few tools, a Python and an own root folder; nothing of this repository can be imported there."""

    def __init__(self, root: Path, *, python: Path | None = PYTHON) -> None:
        self.root = root
        (root / "bin").mkdir(parents=True)
        for tool in TOOLS:
            path = shutil.which(tool)
            assert path is not None, tool
            (root / "bin" / tool).symlink_to(path)
        if python is not None:
            (root / "bin" / "python3").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
            (root / "bin" / "python3").chmod(0o755)

    @property
    def variables(self) -> dict[str, str]:
        return {
            "PATH": str(self.root / "bin"),
            "HOME": str(self.root),
            "TMPDIR": str(self.root),
            "POCKFARM_STATE": str(self.root / "state"),
            "POCKFARM_PROGRAM": str(self.root / "program"),
            "POCKFARM_NO_SERVICE": "1",
            "POCKFARM_NAME": "fresh-board",
            "POCKFARM_LOG_FORMAT": "text",
        }

    def pipe(self, script: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """What `curl ... | sh` does with a script."""
        command = [str(self.root / "bin" / "dash"), *(("-s", "--", *words) if words else ())]
        return subprocess.run(
            command,
            input=script,
            env={**self.variables, **variables},
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            start_new_session=True,
        )


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path / "board")


def script(farm: LiveFarm) -> str:
    return httpx.get(f"{farm.url}/enrol.sh", trust_env=False).text


def test_one_line_makes_a_board_a_device_that_works(farm: LiveFarm, board: Board) -> None:
    done = board.pipe(script(farm), POCKFARM_ENROL_TOKEN=farm.token())
    assert done.returncode == 0, done.stderr
    for stray_file in (
        r"isolation level \d",
        r"sensors       ",
        r"clock         \d+\.\d s (ahead of|behind) the",
        r"3  empty root +(yes|NO)",
        r"enrolled as device dev_",
    ):
        assert re.search(stray_file, done.stdout + done.stderr), stray_file
    assert farm.device("fresh-board")["state"] == "active"
    assert (board.root / "state").stat().st_mode & 0o777 == 0o700
    run_id = farm.run(farm.keep_bundle())
    words = shlex.split(re.findall(r"^  (\S+ \S+agent\.pyz --server .*)$", done.stderr, re.MULTILINE)[-1])
    words += ["--once", "--run-as", "root", "--isolation", "1"]
    work = subprocess.run(
        words, env=board.variables, capture_output=True, text=True, cwd=board.root, timeout=60, check=False
    )
    assert farm.http.get(f"/runs/{run_id}").json()["state"] == "succeeded", work.stderr
    assert farm.device("fresh-board"), "the name that was chosen is told at each start"
    assert [path for path in board.root.iterdir() if path.name.startswith("tmp.")] == [], "nothing is left behind"
    again = board.pipe(script(farm))
    assert again.returncode == 0, "an enrolled board needs no token"
    assert len(farm.http.get("/devices").json()["items"]) == 1


def test_the_unit_that_it_leaves_is_a_good_one(farm: LiveFarm, board: Board) -> None:
    board.pipe(script(farm), POCKFARM_ENROL_TOKEN=farm.token())
    unit = board.root / "program" / "pockfarm-agent.service"
    text = unit.read_text()
    assert "@" not in text
    assert f"ExecStart={board.root}/bin/python3 {board.root}/program/agent.pyz --server {farm.url}" in text
    for line in (
        "Delegate=yes",
        "KillMode=mixed",
        "Restart=always",
        "ProtectSystem=strict",
        "Type=notify",
        "NotifyAccess=main",
        "WatchdogSec=15",
        "WatchdogSignal=SIGKILL",
        "LimitNOFILE=4096",
    ):
        assert line in text.splitlines()


@needs_program("systemd-analyze")
def test_systemd_understands_the_unit_that_it_leaves(farm: LiveFarm, board: Board) -> None:
    board.pipe(script(farm), POCKFARM_ENROL_TOKEN=farm.token())
    words = ["systemd-analyze", "verify", "--man=no", str(board.root / "program" / "pockfarm-agent.service")]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "pockfarm-agent" not in said.stderr, said.stderr


def stub(board: Board, text: str) -> None:
    """Another python3 on the board."""
    (board.root / "bin" / "python3").unlink(missing_ok=True)
    (board.root / "bin" / "python3").write_text(text)
    (board.root / "bin" / "python3").chmod(0o755)


OLD = '#!/bin/sh\n[ "$1" = --version ] && { echo Python 3.7.3; exit 0; }\nexit 1\n'
BARE = f'#!/bin/sh\ncase "$2" in *cryptography*) exit 1;; esac\nexec {PYTHON} "$@"\n'


@pytest.mark.parametrize(
    ("python", "message"),
    [
        (None, "there is no python3 here"),
        (OLD, "Python 3.7.3 is too old: "),
        (BARE, "apt-get install python3-cryptography"),
    ],
)
def test_what_is_missing_is_said_with_the_way_to_get_it(tmp_path: Path, python: str | None, message: str) -> None:
    board = Board(tmp_path / "board", python=None)
    if python is not None:
        stub(board, python)
    done = board.pipe(enrolment_script("http://127.0.0.1:9"))
    assert done.returncode == 1
    assert message in done.stderr
    assert not (board.root / "state").exists(), "nothing was changed"


def refusals() -> Mapping[str, tuple[dict[str, str], str]]:
    return {
        "no token": ({}, "there is no one-time token, and no terminal to ask for it"),
        "a wrong token": ({"POCKFARM_ENROL_TOKEN": "0" * 64}, "this enrolment token is unknown or has expired"),
        "odd folder": ({"POCKFARM_STATE": "/tmp/a b"}, "only letters, digits"),
        "a dash first": ({"POCKFARM_NAME": "--help"}, "a letter or digit has to come first"),
        "a long name": ({"POCKFARM_NAME": "a" * 101}, "101 characters, 100 at most"),
        "odd name": ({"POCKFARM_NAME": "pi; rm -rf /"}, "only letters, digits, spaces"),
        "no whole path": ({"POCKFARM_STATE": "state"}, "must be whole paths"),
    }


@pytest.mark.parametrize("case", thinned(sorted(refusals()), 2))
def test_each_refusal_is_in_clear_words(farm: LiveFarm, board: Board, case: str) -> None:
    variables, message = refusals()[case]
    done = board.pipe(script(farm), **variables)
    assert done.returncode == 1
    assert message in done.stderr, done.stderr
    assert farm.http.get("/devices").json()["items"] == []
    assert "Traceback" not in done.stderr
    assert '{"' not in done.stderr, "a sentence, and no document"
    assert sorted(path.name for path in board.root.iterdir()) == ["bin"], "nothing is left behind"


def test_a_token_as_a_word_is_refused_and_not_repeated(farm: LiveFarm, board: Board) -> None:
    token = farm.token()
    done = board.pipe(script(farm), token)
    assert done.returncode == 1
    assert "could be read by every user" in done.stderr
    assert token not in done.stderr


def test_an_agent_that_was_changed_on_the_way_is_not_run(farm: LiveFarm, board: Board) -> None:
    done = board.pipe(script(farm).replace(agent_digest(), "f" * 64), POCKFARM_ENROL_TOKEN=farm.token())
    assert done.returncode == 1
    assert f"has digest {agent_digest()}, and should have {'f' * 64}" in done.stderr
    assert farm.http.get("/devices").json()["items"] == []


def test_a_farm_that_is_away_is_said(board: Board) -> None:
    done = board.pipe(enrolment_script("http://127.0.0.1:9"))
    assert done.returncode == 1
    assert "http://127.0.0.1:9/agent.pyz could not be fetched" in done.stderr


def test_a_script_that_was_cut_off_does_nothing(farm: LiveFarm, board: Board) -> None:
    whole = script(farm)
    for share in (0.3, 0.6, 0.9, 0.99):
        done = board.pipe(whole[: int(len(whole) * share)], POCKFARM_ENROL_TOKEN=farm.token())
        assert "self-test" not in done.stderr
    assert not (board.root / "state").exists()


WRONG_CLOCK = "import time as t; real = t.time; t.time = lambda: real() + 3600\n"


def test_a_wrong_clock_is_no_board_yet(farm: LiveFarm, board: Board) -> None:
    (board.root / "site").mkdir()
    (board.root / "site" / "sitecustomize.py").write_text(WRONG_CLOCK)
    done = board.pipe(script(farm), POCKFARM_ENROL_TOKEN=farm.token(), PYTHONPATH=str(board.root / "site"))
    assert done.returncode == 1
    assert re.search(r"^clock +3\d{3}\.\d s ahead of", done.stdout, re.M)
    assert "PROBLEM " in done.stdout
    assert "is not fit for the farm yet" in done.stderr
    assert farm.http.get("/devices").json()["items"] == []


def test_the_agent_is_one_file_the_same_each_time(farm: LiveFarm, tmp_path: Path) -> None:
    answer = httpx.get(f"{farm.url}/agent.pyz", trust_env=False)
    assert answer.headers["x-pockfarm-digest"] == f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
    copy = tmp_path / "elsewhere"
    shutil.copytree(ROOT / "device_agents", copy / "device_agents", ignore=shutil.ignore_patterns("__pycache__"))
    for path in sorted(copy.rglob("*.py"), reverse=True):
        os.utime(path, (0, 0))
        path.chmod(0o600)
    make = (
        "import sys; from pathlib import Path; import service.boards.installation.agent_file as made\n"
        "made.SOURCES = Path(sys.argv[1]); sys.stdout.buffer.write(made.agent_file())"
    )
    words = [sys.executable, "-c", make, str(copy / "device_agents")]
    again = subprocess.run(words, capture_output=True, check=True, cwd=ROOT, env={**os.environ, "TZ": "Asia/Tokyo"})
    assert again.stdout == agent_file() == answer.content
    (tmp_path / "agent.pyz").write_bytes(agent_file())
    with zipfile.ZipFile(tmp_path / "agent.pyz") as archive:
        assert {name.split("/")[0] for name in archive.namelist()} == {"__main__.py", "device_agents"}
    completed = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "agent.pyz"), "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert "--enrol-only" in completed.stdout


@pytest.mark.parametrize(
    ("public", "asked", "address"),
    [
        ("http://127.0.0.1:8000", "http://10.0.0.5:8000/", "http://10.0.0.5:8000"),
        ("https://farm.example.com", "http://api:8000/", "https://farm.example.com"),
        ("http://localhost:8000", "http://[fd00::5]:8000/", "http://[fd00::5]:8000"),
    ],
)
def test_the_script_names_the_farm_as_the_board_reaches_it(public: str, asked: str, address: str) -> None:
    assert farm_address(public, asked) == address


@pytest.mark.parametrize("host", ["a';reboot;'", "a b", "$(reboot)", "a/b", "a\nb", "a`b`"])
def test_a_host_that_is_no_host_does_not_get_into_the_script(host: str) -> None:
    with pytest.raises(Invalid):
        farm_address("http://127.0.0.1:8000", f"http://{host}/")


def test_programs_of_before_are_removed_but_the_last(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "state")
    names = [f"program-{n:016x}" for n in range(4)]
    for at, name in enumerate([*names, "program-draft", "scratchbook"]):
        (state.path / name / "device_agents").mkdir(parents=True)
        os.utime(state.path / name, (at, at))
    state.forget_programs(running=state.path / names[0])
    left = {path.name for path in state.path.iterdir()}
    assert left & set(names) == {names[0], names[3]}
    assert {"program-draft", "scratchbook"} <= left


def test_a_probe_whose_reader_goes_away_ends_in_peace(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "device_agents.agent", "--probe", "--run-as", str(os.geteuid()), "--isolation", "1"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as probe:
        assert probe.stdout is not None
        assert probe.stderr is not None
        probe.stdout.close()
        said = probe.stderr.read()
        assert (probe.wait(60), said) == (0, b"")
