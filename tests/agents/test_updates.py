"""An agent makes way for another: whatever is offered and whenever the board dies, a working agent is what is left."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_agents import wire as p
from device_agents.devices.describe import describe_device
from device_agents.errors import BadUpdate, Unreachable
from device_agents.farm.client import FarmClient
from device_agents.farm.state import Identity, StateFolder, public_key_text, seal
from device_agents.slots import launcher
from device_agents.slots.launcher import LAUNCHER, PROGRAM, Problem, Start, launch
from device_agents.slots.standing import Slots, Standing, digest_of
from device_agents.updating import Updater, Wishes, check_offer
from tests.waiting import HANG_S

OLD, GOOD, BAD, AWAY = b"the old agent", b"a good agent", b"a bad agent", b"an agent that does not get through"
DESCRIPTION = describe_device().description
KEY = Ed25519PrivateKey.generate()


LOGS_AND_ENDS = 'import sys; print(\'{"event": "no key"}\', file=sys.stderr); sys.exit(2)'


class Killed(BaseException):
    """The power is cut."""


class Became(BaseException):
    """The process runs another file now."""

    def __init__(self, program: Path) -> None:
        super().__init__(str(program))
        self.program = program


class FileFarm(FarmClient):
    """A farm whose answers are given by hand."""

    def __init__(self, state: StateFolder) -> None:
        super().__init__("http://127.0.0.1:9", state, session="session-1", description=DESCRIPTION)
        self.file = GOOD
        self.refused: list[p.Outcome] = []
        self.is_away = False
        self.disk_is_full = False

    def download(self, blob: p.Blob, to: Path, *, should_stop: Callable[[], Any]) -> None:
        if self.is_away:
            raise Unreachable("away")
        to.write_bytes(self.file[:-1])
        if self.disk_is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        to.write_bytes(self.file)

    def refuse(self, outcome: p.Outcome) -> None:
        self.refused.append(outcome)

    def clock_off_s(self) -> float:
        if self.is_away:
            raise Unreachable("away")
        return 0.0


class Board:
    """An installed file, its state, and a service manager that starts it again and again."""

    def __init__(self, folder: Path) -> None:
        self.base = folder / "agent.pyz"
        self.base.write_bytes(OLD)
        self.state = StateFolder(folder / "state")
        self.state.save_identity(Identity("device-1", "http://127.0.0.1:9", {"farm-1": public_key_text(KEY)}))
        self.slots = Slots(self.state.path)
        self.farm = FileFarm(self.state)
        self.stop = threading.Event()
        self.stop.wait = lambda _timeout=None: False  # type: ignore[assignment, method-assign]

    def start(self) -> bytes:
        """One start of the launcher; what runs then."""
        try:
            launch(Start(self.base, ["--state", "x"], self.state.path))
        except Became as became:
            os.environ[PROGRAM] = str(became.program)
            return became.program.read_bytes()
        return self.base.read_bytes()

    def updater(self, **how: Any) -> Updater:
        return Updater(self.farm, self.state.path, Wishes(), **how)

    def offer(self, file: bytes, sequence: int = 1, **fields: Any) -> p.Envelope:
        self.farm.file = file
        return seal(KEY, "farm-1", p.OFFER_TYPE, p.dumps(offer_of(file, sequence, **fields)))

    def live(self, program: bytes, sequence: int = 1) -> bytes:
        """From one start to the next: what runs is answered twice, or takes the offer. What ran."""
        running = self.start()
        updater = self.updater()
        updater.judge()
        for _ in range(2):
            updater.note_answer()
        told = updater.program()
        is_done = self.farm.refused or (told.failed and told.failed.sequence == sequence)
        if running != program and not is_done:
            updater.take(self.offer(program, sequence), self.stop)
        return running


def offer_of(file: bytes, sequence: int = 1, **fields: Any) -> p.AgentOffer:
    now = time.time()
    digest = f"sha256:{hashlib.sha256(file).hexdigest()}"
    given = {
        "sequence": sequence,
        "version": "9.1",
        "program": p.Blob(digest, len(file), p.release_path(sequence)),
        "device_id": "device-1",
        "oldest_python": "3.9",
        "protocol": p.PROTOCOL,
        "not_before": now - 5,
        "expires_at": now + 600,
        "release_number": 7,
    }
    return p.AgentOffer(**{**given, **fields})


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    """Trials and starts are said by the file's content."""

    def trial(program: Path, _arguments: object) -> Problem | None:
        said = program.read_bytes()
        assert said in (GOOD, BAD, AWAY), "only whole files are tried"
        if said == AWAY:
            return Problem("it did not get through", is_unreached=True)
        return None if said == GOOD else Problem("it ended with code 1: boom")

    def become(program: Path, _arguments: object) -> None:
        raise Became(program)

    monkeypatch.setenv(PROGRAM, "")
    monkeypatch.setenv(LAUNCHER, "")
    monkeypatch.setattr(launcher, "_run_trial", trial)
    monkeypatch.setattr(launcher, "become", become)
    monkeypatch.setattr(Updater, "_check_start", lambda *_: None)
    return Board(tmp_path)


class PowerCut:
    """Cuts the power at the n-th thing that changes the disk, before it or right after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.is_after = False
        monkeypatch.setattr(os, "fsync", lambda _file: None)  # nothing is lost here but by this very class
        for module, name in ((os, "replace"), (os, "fsync"), (os, "open"), (Path, "write_bytes"), (Path, "unlink")):
            monkeypatch.setattr(module, name, self._counted(getattr(module, name)))

    def _counted(self, action: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self.is_after:
                raise Killed
            found = action(*args, **kwargs)
            if self.left == 0:
                raise Killed
            return found

        return counted


@pytest.mark.parametrize("offered", [GOOD, BAD])
@pytest.mark.parametrize("is_after", [False, True])
def test_killed_at_any_step_a_board_ends_with_a_working_agent(
    board: Board, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, offered: bytes, *, is_after: bool
) -> None:
    board.start()
    cut = PowerCut(monkeypatch)
    for step in range(1, 200):
        folder = tmp_path / f"board-{step}"
        folder.mkdir()
        fresh, cut.left, cut.is_after = Board(folder), step + 10**6, is_after
        fresh.start()
        cut.left = step
        try:
            ran = [fresh.live(offered) for _ in range(3)]
        except Killed:
            ran = []
        is_cut, cut.left = not ran, 0
        ran = [fresh.live(offered) for _ in range(5)]
        assert set(ran) <= {OLD, offered if offered == GOOD else OLD}
        assert ran[-1] == (GOOD if offered == GOOD else OLD)
        standing = fresh.slots.read()
        assert standing is not None
        assert (standing.trial, standing.settled) == (None, 1)
        assert (standing.failed is None) == (offered == GOOD)
        if not is_cut:
            break
    assert 12 < step < 199, "each step was cut, down to the last"


def test_a_file_that_does_not_prove_itself_is_started_three_times(board: Board) -> None:
    board.start()
    assert board.updater().take(board.offer(GOOD), board.stop)
    assert [board.start() for _ in range(5)] == [GOOD, GOOD, GOOD, OLD, OLD]
    failed = board.updater().program().failed
    assert failed is not None
    assert "was started 3 times" in failed.reason


def test_what_cannot_be_counted_is_not_tried(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    board.start()
    board.updater().take(board.offer(GOOD), board.stop)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Slots, "write", full)
        assert board.start() == OLD
    assert board.start() == GOOD, "once there is room"


def test_who_stops_a_trial_says_nothing_about_the_file(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    board.start()
    board.updater().take(board.offer(GOOD), board.stop)

    def told(*_: object) -> None:
        raise launcher.Told

    for _ in range(5):
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(launcher, "_run_trial", told)
            with pytest.raises(SystemExit, match=r"^0$"):
                board.start()
    assert board.start() == GOOD


def test_a_farm_that_is_away_from_both_agents_is_not_the_new_ones_fault(board: Board) -> None:
    board.start()
    assert board.updater().take(board.offer(AWAY), board.stop)
    assert board.start() == OLD
    updater = board.updater()
    assert updater.program().failed is None, "nobody knows yet"
    board.farm.is_away = True
    updater.judge()
    assert updater.program().failed is None
    board.farm.is_away = False
    assert board.updater().take(board.offer(AWAY), board.stop), "it is tried again"
    assert board.start() == OLD
    updater = board.updater()
    updater.judge()
    assert updater.program().failed == p.UpdateFailure(1, "it did not get through"), "the old one gets through"


def test_two_files_are_kept_and_a_damaged_one_makes_way(board: Board) -> None:
    board.live(GOOD)
    assert board.live(GOOD) == GOOD
    for sequence, version in ((2, "9.2"), (3, "9.3")):
        board.updater().take(board.offer(GOOD, sequence, version=version), board.stop)
        board.live(GOOD, sequence)
    newer = GOOD
    standing = board.slots.read()
    assert standing is not None
    assert len(list(board.slots.folder.glob("*.pyz"))) == len({standing.current, standing.previous})
    board.slots.path(standing.current).write_bytes(newer[:-1])
    assert board.start() == OLD, "its digest is looked at before each start"


def test_a_newly_installed_file_counts_and_old_offers_stay_old(board: Board) -> None:
    board.live(GOOD)
    assert board.live(GOOD) == GOOD
    board.base.write_bytes(b"installed by hand")
    assert board.start() == b"installed by hand"
    assert board.start() == b"installed by hand"
    board.updater().take(board.offer(GOOD, 1), board.stop)
    assert [one.code for one in board.farm.refused] == ["update.replayed"]


def refused(board: Board, envelope: p.Envelope, **how: Any) -> str:
    assert not board.updater(**how).take(envelope, board.stop)
    [outcome] = board.farm.refused
    assert outcome.state == "failed"
    assert board.start() == OLD
    assert not list(board.slots.folder.glob("*.pyz")), "nothing is left"
    return str(outcome.code)


def test_offers_that_are_not_the_farms_or_not_for_this_board(board: Board) -> None:
    board.start()
    good = board.offer(GOOD)
    stranger = seal(Ed25519PrivateKey.generate(), "farm-2", p.OFFER_TYPE, good.payload_bytes())
    imitator = seal(Ed25519PrivateKey.generate(), "farm-1", p.OFFER_TYPE, good.payload_bytes())
    expected = {
        "update.envelope.key": stranger,
        "update.envelope.signature": imitator,
        "update.envelope.type": dataclasses.replace(good, payloadType=p.ASSIGNMENT_TYPE),
        "update.envelope.device": board.offer(GOOD, device_id="device-2"),
        "update.envelope.expired": board.offer(GOOD, not_before=1.0, expires_at=2.0),
        "update.envelope.payload": seal(KEY, "farm-1", p.OFFER_TYPE, b'{"sequence": 1}'),
    }
    for code, envelope in expected.items():
        assert refused(board, envelope) == code
        board.farm.refused.clear()
    assert board.slots.read() is None, "none of it was begun"
    assert board.updater().take(good, board.stop)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"version": "0.0.9"}, "update.downgrade"),
        ({"oldest_python": "4.0"}, "update.python"),
        ({"protocol": "pockfarm.agent/3"}, "update.protocol"),
        ({"program": p.Blob("sha256:" + "0" * 64, p.MOST_AGENT_BYTES + 1, "/agent/releases/1")}, "update.size"),
    ],
)
def test_what_an_offer_says_is_checked(board: Board, fields: dict[str, Any], code: str) -> None:
    board.start()
    assert refused(board, board.offer(GOOD, **fields)) == code
    board.farm.refused.clear()
    assert refused(board, board.offer(GOOD, **fields)) == "update.failed", "it is not tried again"


def test_going_back_is_allowed_when_it_is_meant_down_to_the_operators_oldest() -> None:
    back = offer_of(GOOD, version="0.0.9", is_rollback=True)
    check_offer(back, Wishes())
    with pytest.raises(BadUpdate, match=r"0\.0\.9 is below 0\.0\.10") as caught:
        check_offer(back, Wishes(oldest_version="0.0.10"))
    assert caught.value.code == "oldest"


def test_a_full_disk_is_told_and_leaves_nothing(board: Board) -> None:
    board.start()
    board.farm.disk_is_full = True
    assert refused(board, board.offer(GOOD)) == "update.device.disk"
    assert "No space left" in board.farm.refused[0].message
    assert not board.slots.download.exists()


def test_a_farm_that_goes_away_meanwhile_is_no_failure(board: Board) -> None:
    board.start()
    board.farm.is_away = True
    for _ in range(3):
        assert not board.updater().take(board.offer(GOOD), board.stop)
    assert board.farm.refused == []
    board.farm.is_away = False
    assert refused(board, board.offer(GOOD)) == "update.interrupted", "but it is not tried for ever"


def test_who_takes_no_updates_says_so(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    board.start()
    unwilling = Updater(board.farm, board.state.path, Wishes(is_wanted=False))
    assert unwilling.program().updates == "off"
    assert not unwilling.take(board.offer(GOOD), board.stop)
    assert board.updater().program() == p.Program("on", digest_of(board.base))
    assert board.updater(is_trial=True).program().updates == "trial"
    board.slots.write(Standing("x"))
    board.slots.record.write_text("{")
    assert board.updater().program().updates == "off"
    assert board.start() == OLD
    monkeypatch.delenv(LAUNCHER)
    assert board.updater().program() == p.Program("installed")


def test_a_self_test_that_hangs_or_breaks(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    board.start()
    assert refused(board, board.offer(b"import time\ntime.sleep(600)\n"), check_s=0.3) == "update.check.time"
    board.farm.refused.clear()
    assert refused(board, board.offer(b"raise SystemExit('no library')\n", 2)) == "update.check.failed"
    assert board.farm.refused[0].message.endswith("no library")
    board.farm.refused.clear()
    assert refused(board, board.offer(b"print('{}')\n", 3)) == "update.check.version"


@pytest.mark.parametrize(
    ("script", "reason", "is_unreached"),
    [
        ("import time; time.sleep(600)", "it did not get through to the farm within 0 s", True),
        ("import sys; sys.exit('boom')", "it ended with code 1: boom", False),
        ("import os; os.kill(os.getpid(), 11)", "it ended by signal 11: it said nothing", False),
        (LOGS_AND_ENDS, "it ended with code 2: no key", False),
    ],
)
def test_how_a_trial_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str, *, is_unreached: bool
) -> None:
    monkeypatch.setenv(launcher.TRIAL_VARIABLE, "0.4" if is_unreached else str(HANG_S))
    (tmp_path / "agent.pyz").write_text(script)
    assert launcher._run_trial(tmp_path / "agent.pyz", []) == Problem(reason, is_unreached=is_unreached)
