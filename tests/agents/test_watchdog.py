"""When a part is hung, and when only the machine is slow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from device_agents.wire import watchdog
from device_agents.wire.watchdog import LONGEST_LOOK_S, Watch
from tests.service.lone_processes import stopped_process, wait_for_state
from tests.waiting import until


def test_silence_adds_up_and_a_sign_ends_it() -> None:
    watch = Watch()
    with stopped_process() as pid:
        silences = [watch.look(pid, now, has_sign=False) for now in (0.0, 2.0, 4.0, 6.0)]
        assert silences == [0.0, 2.0, 4.0, 6.0]
        assert watch.look(pid, 8.0, has_sign=True) == 0.0
        assert (watch.silent_s, watch.looks) == (0.0, 0)
        assert watch.look(pid, 10.0, has_sign=False) == 2.0


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """A laptop that was asleep for an hour, a container that was frozen: the parts have not had their chance."""
    watch = Watch()
    with stopped_process() as pid:
        watch.look(pid, 0.0, has_sign=True)
        assert watch.look(pid, 3600.0, has_sign=False) == LONGEST_LOOK_S


def test_one_that_goes_on_after_a_pause_has_its_chance_once() -> None:
    watch = Watch()
    with stopped_process() as pid:
        silences = [watch.look(pid, now, has_sign=False) for now in (0.0, 4.0, 8.0, 12.0)]
        assert silences[-1] == 12.0, "while it is stopped, its silence counts: a part that stays so is restarted"
        send(pid, signal.SIGCONT, then="S")
        assert watch.look(pid, 14.0, has_sign=False) == 0.0, "it goes on, and had no time to say so"
        send(pid, signal.SIGSTOP, then="T")
        watch.look(pid, 16.0, has_sign=False)
        send(pid, signal.SIGCONT, then="S")
        assert watch.look(pid, 18.0, has_sign=False) > 3.0, "who never gives a sign is not forgiven for ever"
        watch.look(pid, 20.0, has_sign=True)
        send(pid, signal.SIGSTOP, then="T")
        watch.look(pid, 22.0, has_sign=False)
        send(pid, signal.SIGCONT, then="S")
        assert watch.look(pid, 24.0, has_sign=False) == 0.0, "a sign is a new beginning"


def send(pid: int, number: signal.Signals, *, then: str) -> None:
    os.kill(pid, number)
    wait_for_state(pid, then)


@pytest.mark.parametrize("what", ["goes on", "gives a sign", "stays stopped"])
def test_before_a_verdict_it_is_asked_once_more(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [1000.0], [0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = Watch()
    with stopped_process() as pid:

        def gives_sign() -> bool:
            asked[0] += 1
            if asked[0] == 10 and what == "goes on":  # while it is asked for the second time in one look
                send(pid, signal.SIGCONT, then="S")
            return asked[0] == 10 and what == "gives a sign"

        verdicts = []
        for _ in range(9):
            verdicts.append(watch.is_hung(pid, 15.0, gives_sign))
            now[0] += 2.0
    assert asked[0] == 10
    assert verdicts == [False] * 8 + [what == "stays stopped"]


def test_waiting_for_a_processor_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = tmp_path / "1"
    thread.mkdir()
    (thread / "stat").write_text("1 (a b) S 0")
    monkeypatch.setattr(watchdog, "_threads", lambda pid: [thread])
    watch, queued_s = Watch(), 0.0
    for now in range(0, 60, 2):
        (thread / "schedstat").write_text(f"1 {int(queued_s * 1e9)} 1")
        watch.look(1, float(now), has_sign=False)
        queued_s += 2.0
    assert watch.silent_s < 0.1, "a loaded machine restarts nothing"
    for now in range(60, 80, 2):
        watch.look(1, float(now), has_sign=False)
    assert watch.silent_s == pytest.approx(20.0, abs=0.1), "once it could have run, it counts"


def test_a_process_that_waits_for_a_disk_is_not_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = tmp_path / "1"
    thread.mkdir()
    (thread / "stat").write_text("1 (a) D 0")
    (thread / "schedstat").write_text("1 1 1")
    monkeypatch.setattr(watchdog, "_threads", lambda pid: [thread])
    watch = Watch()
    assert [watch.look(1, float(now), has_sign=False) for now in range(0, 40, 2)][-1] == 0.0


def test_a_real_process_that_is_busy_and_says_nothing_is_hung() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        watch = Watch()
        watch.look(busy.pid, time.monotonic(), has_sign=True)
        try:
            until(lambda: watch.look(busy.pid, time.monotonic(), has_sign=False) >= 0.5)
        finally:
            busy.kill()
