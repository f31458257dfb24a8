"""Signs of life of a worker: its event loop, its processes, and the children that compile."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from device_agents.wire import watchdog
from service.base.settings import Settings
from service.store.queue import make_celery
from tests.service.farms import open_test_farm
from tests.service.lone_processes import sleeping_process, stopped_process, wait_for_state
from tests.waiting import until
from tests.workers.test_compiling import FAKE, run_compile, show
from workers import alive, child_watch, compiling, ownership
from workers.alive import LoopWatch
from workers.child_watch import ChildWatch
from workers.ownership import Beats


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that `time.monotonic` says."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_loop_that_stands_still_is_hung_unless_the_broker_is_away(clock: list[float]) -> None:
    answers = [True]
    watch = LoopWatch(lambda: answers[0])
    assert watch.is_well()
    said = []
    for _ in range(4):
        clock[0] += 2
        said.append(watch.is_well())
    assert said == [True, True, False, False], "the broker answers, and the loop does not turn"
    watch.tick()
    answers[0] = False
    for _ in range(300):  # ten minutes without a broker
        clock[0] += 2
        assert watch.is_well()
    answers[0] = True
    for _ in range(int(alive.CONNECTING_S / 2)):
        clock[0] += 2
        assert watch.is_well(), "it connects again"
    clock[0] += 2
    assert not watch.is_well()
    watch.tick()
    assert watch.is_well()


def test_a_thread_that_wakes_late_gives_its_sign_at_once_and_a_hung_loop_gains_nothing(clock: list[float]) -> None:
    watch = LoopWatch(lambda: True)
    clock[0] += 2 + 12
    assert watch.is_well(), "stopped for twelve seconds: the loop could not turn either"
    said = []
    for _ in range(4):
        clock[0] += 2
        said.append(watch.is_well())
    assert said == [True, False, False, False], "but it has to, once it can"


GONE = 1 << 22
"""No process has a greater number."""


HELD: dict[Path, int] = {}


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    """Of folders that a test holds."""
    yield
    while HELD:
        os.close(HELD.popitem()[1])


def folder_of(root: Path, pid: int) -> Path:
    """Held, as the process would."""
    path = root / f"{ownership._prefix(7)}{pid}.{'0' * 16}"
    path.mkdir(parents=True)
    HELD[path] = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(HELD[path], fcntl.LOCK_EX)
    return path


def test_the_number_of_a_process_that_has_died_is_anothers(tmp_path: Path, clock: list[float]) -> None:
    """Nobody is killed for a folder that its owner has let go by dying."""
    with sleeping_process() as other:
        os.close(HELD.pop(folder_of(tmp_path, other.pid)))
        beats = Beats(tmp_path, lambda: 7)
        for _ in range(12):
            assert beats.silent() == []
            clock[0] += 2


def test_a_process_that_does_not_touch_its_folder_is_stuck(tmp_path: Path, clock: list[float]) -> None:
    still, moving = folder_of(tmp_path, GONE + 1), folder_of(tmp_path, GONE + 2)
    beats = Beats(tmp_path, lambda: 7)
    assert beats.silent() == []
    for step in range(7):
        clock[0] += 2
        os.utime(moving, ns=(step, step))
        assert beats.silent() == []
    clock[0] += 2
    os.utime(moving, ns=(99, 99))
    assert beats.silent() == [GONE + 1]
    os.utime(still, ns=(5, 5))
    clock[0] += 2
    assert beats.silent() == []


def test_a_clock_that_jumps_and_a_machine_that_slept_stop_nobody(tmp_path: Path, clock: list[float]) -> None:
    path = folder_of(tmp_path, GONE + 1)
    os.utime(path, ns=(0, 0))  # to the wall clock, touched in 1970
    beats = Beats(tmp_path, lambda: 7)
    assert beats.silent() == []
    for _ in range(watchdog.FEWEST_LOOKS - 1):
        clock[0] += 3600
        assert beats.silent() == [], "nobody has looked for an hour"


def test_a_process_that_goes_on_after_a_pause_is_not_killed(tmp_path: Path, clock: list[float]) -> None:
    with stopped_process() as pid:
        folder_of(tmp_path, pid)
        beats = Beats(tmp_path, lambda: 7)
        for _ in range(8):
            assert beats.silent() == []
            clock[0] += 2
        os.kill(pid, signal.SIGCONT)
        wait_for_state(pid, "S")
        assert beats.silent() == [], "it goes on, and has not come to touch its folder yet"
        for _ in range(7):
            clock[0] += 2
            assert beats.silent() == []
        clock[0] += 2
        assert beats.silent() == [pid], "it has had its chance"


def test_a_process_that_stays_stopped_is_killed_after_fifteen_seconds(tmp_path: Path, clock: list[float]) -> None:
    with stopped_process() as pid:
        folder_of(tmp_path, pid)
        beats = Beats(tmp_path, lambda: 7)
        found = []
        for _ in range(10):
            found.append(beats.silent())
            clock[0] += 2
    assert found.index([pid]) == 8, "after sixteen seconds: the first look past fifteen"


def test_a_child_that_is_stopped_is_hung_and_one_that_says_something_is_not(clock: list[float]) -> None:
    with stopped_process() as pid:
        watch = ChildWatch(pid)
        seen = []
        for _ in range(12):
            clock[0] += child_watch.LOOK_S
            seen.append(watch.is_hung())
        assert seen.index(True) in (7, 8), "after fifteen seconds"
    with sleeping_process() as process:
        watch = ChildWatch(process.pid)
        for _ in range(20):
            clock[0] += child_watch.LOOK_S
            watch.heard()
            assert not watch.is_hung()


def test_a_child_whose_children_work_is_not_hung(clock: list[float]) -> None:
    busy = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {'while True: pass'!r}])"
    with subprocess.Popen([sys.executable, "-c", busy], start_new_session=True) as process:
        try:
            until(lambda: child_watch._family(process.pid)[1:])
            watch = ChildWatch(process.pid)
            for _ in range(20):
                clock[0] += child_watch.LOOK_S
                assert not watch.is_hung()
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_stopped_compile_is_killed_and_its_job_queued_again(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_watch, "HUNG_S", 0.6)
    monkeypatch.setattr(child_watch, "LOOK_S", 0.2)
    settings: dict[str, Any] = {"compile_function": FAKE, "cache_dir": str(tmp_path / "cache"), "compile_s": 60.0}
    monkeypatch.setattr(compiling.Compile, "_take", stop_at_the_first_word)
    with open_test_farm(tmp_path / "state", sqlite_url, **settings) as farm:
        job_id = farm.compile(b"hang").json()["id"]
        run_compile(farm, job_id)
        job = show(farm, job_id)
        assert job["state"] == "queued", job
        events = farm.http.get(f"/jobs/{job_id}/events", headers={"Accept": "application/json"}).json()
    assert "no sign of life" in str(events[-1]["body"])


def stop_at_the_first_word(compile: compiling.Compile, line: str) -> None:
    """As somebody with a debugger would: everything of the child."""
    for pid in child_watch._family(os.getpid())[1:]:
        if b"workers.compile_child" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGSTOP)


def test_workers_take_no_commands_over_the_broker() -> None:
    """A real one shows it in `tests/thorough/workers/test_live.py`."""
    conf = make_celery(Settings()).conf
    assert not conf.worker_enable_remote_control
    assert not conf.worker_send_task_events
