"""The supervisor with small real processes in place of the farm's parts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from device_agents.wire import watchdog
from pockfarm.errors import FarmDown
from pockfarm.own_farm import parts, supervisor
from pockfarm.own_farm.parts import FarmPlan, Part, free_port
from pockfarm.own_farm.state import FarmStatus, StateFolder
from pockfarm.own_farm.supervisor import Supervisor
from pockfarm.own_farm.up import down, up
from tests.service.lone_processes import wait_for_state
from tests.thorough.chaos.processes import state_of
from tests.waiting import HANG_S, until

SLEEPER = "import time; time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
WITH_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPER!r}])"
HUNG_AFTER_S = Part.hung_after_s

pytestmark = pytest.mark.usefixtures("loopback")


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    state = StateFolder(tmp_path / "state")
    state.make()
    return state


def part(
    name: str, program: str, *, is_up: Callable[[], bool] = lambda: True, up_within_s: float = HANG_S, **more: Any
) -> Part:
    command = [sys.executable, "-c", program]
    return Part(name, f"the {name}", lambda: command, is_up, up_within_s, stop_within_s=0.2, **more)


class InThread:
    """A supervisor of given parts, running in a thread of the test."""

    def __init__(self, state: StateFolder, parts: Sequence[Part], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(supervisor, "farm_parts", lambda plan: tuple(parts))
        monkeypatch.setattr(supervisor, "POLL_INTERVAL_S", 0.02)
        monkeypatch.setattr(supervisor, "FIRST_RESTART_S", 0.05)
        monkeypatch.setattr(supervisor, "PROBE_INTERVAL_S", 0.1)
        # The parent-death signal belongs to the thread that forks; this one ends with the test, after all children.
        self.supervisor = Supervisor(FarmPlan(state, 1))
        self.code: int | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.code = self.supervisor.run()

    def stop(self) -> int | None:
        self.supervisor.ask_to_stop()
        self.thread.join(HANG_S)
        return self.code

    def until_ready(self) -> None:
        until(lambda: self.supervisor.ready)

    def pid(self, name: str) -> int:
        """Of a part's process of the moment; 0 if there is none."""
        [one] = [one for one in self.supervisor.running if one.part.name == name]
        return one.process.pid if one.process else 0


class Clock:
    """The supervisor's: each of its looks takes a second of those that the test lets pass, and none of the others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now_s = time.monotonic()
        self._left_s = 0
        self._looks = 0
        monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: self._now_s, sleep=self._sleep))
        monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: self._now_s))

    def let_pass(self, seconds: float) -> None:
        """Returns when they have passed, and a look was taken after them."""
        self._left_s = int(seconds)
        until(lambda: self._left_s == 0)
        looks = self._looks
        until(lambda: self._looks > looks + 1)

    def _sleep(self, _: float) -> None:
        time.sleep(0.001)
        self._looks += 1
        if self._left_s:
            self._now_s, self._left_s = self._now_s + 1, self._left_s - 1


def is_alive(pid: int | None) -> bool:
    if pid is None:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def status_of(state: StateFolder) -> FarmStatus:
    status = state.status()
    assert status is not None
    return status


def test_parts_start_in_order_and_stop_in_reverse(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    running = InThread(state, [part("one", SLEEPER), part("two", STUBBORN)], monkeypatch)
    running.until_ready()
    pids = [one.pid for one in status_of(state).parts.values()]
    assert all(is_alive(pid) for pid in pids)
    assert running.stop() == 0
    assert not any(is_alive(pid) for pid in pids), "one that ignores SIGTERM is killed"
    assert {one.state for one in status_of(state).parts.values()} == {"down"}


def test_a_part_that_dies_is_started_again(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    running = InThread(state, [part("one", SLEEPER)], monkeypatch)
    running.until_ready()
    first = status_of(state).parts["one"].pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: status_of(state).parts["one"].restarts == 1 and status_of(state).parts["one"].state == "up")
    assert status_of(state).parts["one"].pid != first
    assert running.stop() == 0


def test_what_a_dead_part_leaves_behind_is_killed(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    running = InThread(state, [part("one", WITH_CHILD)], monkeypatch)
    running.until_ready()
    parent = status_of(state).parts["one"].pid
    children = Path(f"/proc/{parent}/task/{parent}/children")
    until(lambda: bool(children.read_text().split()))
    child = int(children.read_text().split()[0])
    assert parent is not None
    os.kill(parent, signal.SIGKILL)
    until(lambda: not is_alive(child))
    assert running.stop() == 0


def is_running(pid: int) -> bool:
    """Whether it is there and not stopped: a sign of life, as a part that beats gives it."""
    return state_of(pid) not in ("", "T")


def test_a_stopped_part_is_killed_and_started_again_and_status_says_why(
    state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: InThread
    clock = Clock(monkeypatch)
    beating = part("one", SLEEPER, is_alive=lambda: is_running(running.pid("one")))
    running = InThread(state, [beating, part("two", SLEEPER)], monkeypatch)
    running.until_ready()
    first, other = running.pid("one"), running.pid("two")
    clock.let_pass(300)
    assert running.pid("one") == first, "one that beats is left alone"
    os.kill(first, signal.SIGSTOP)
    wait_for_state(first, "T")
    clock.let_pass(60)
    until(lambda: status_of(state).parts["one"].restarts == 1 and status_of(state).parts["one"].state == "up")
    assert not is_alive(first)
    one, two = (status_of(state).parts[name] for name in ("one", "two"))
    assert one.why.startswith("hung: no sign of life for")
    assert (two.pid, two.why) == (other, "")
    assert running.stop() == 0


def test_a_part_that_goes_on_after_a_pause_is_not_killed_although_it_says_so_late(
    state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    says_so = [True]
    clock = Clock(monkeypatch)
    running = InThread(state, [part("one", SLEEPER, is_alive=lambda: says_so[0])], monkeypatch)
    running.until_ready()
    clock.let_pass(10)
    pid, says_so[0] = running.pid("one"), False
    os.kill(pid, signal.SIGSTOP)
    wait_for_state(pid, "T")
    clock.let_pass(HUNG_AFTER_S - 2)
    assert running.supervisor.running[0].watch.silent_s > HUNG_AFTER_S / 2
    os.kill(pid, signal.SIGCONT)
    wait_for_state(pid, "S")
    clock.let_pass(HUNG_AFTER_S - 2)
    says_so[0] = True
    clock.let_pass(60)
    assert running.pid("one") == pid
    assert running.stop() == 0


def test_a_part_that_hangs_while_it_starts_again_is_killed_too(
    state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[int] = []
    ups = [True]

    def command() -> list[str]:
        commands.append(1)
        return [sys.executable, "-c", SLEEPER]

    clock = Clock(monkeypatch)
    hanging = Part("one", "the one", command, lambda: ups[0] or len(commands) > 2, up_within_s=20, stop_within_s=1)
    running = InThread(state, [hanging], monkeypatch)
    running.until_ready()
    ups[0] = False
    os.kill(running.pid("one"), signal.SIGKILL)
    until(lambda: status_of(state).parts["one"].state == "restarting")
    clock.let_pass(200)
    until(lambda: status_of(state).parts["one"].restarts == 2 and status_of(state).parts["one"].state == "up")
    assert status_of(state).parts["one"].why.startswith("did not come up")
    assert running.stop() == 0


def test_secrets_of_a_part_are_in_its_environment_only(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, time; open('said', 'w').write(os.environ['SECRET']); time.sleep(600)"
    secret = part("one", program, environment=lambda: {"SECRET": "5ecret"})
    running = InThread(state, [secret, part("two", SLEEPER)], monkeypatch)
    running.until_ready()
    until(lambda: (state.path / "said").exists() and (state.path / "said").read_text() == "5ecret")
    pids = [one.pid for one in status_of(state).parts.values()]
    assert not any(b"5ecret" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
    assert b"SECRET" not in Path(f"/proc/{pids[1]}/environ").read_bytes()
    assert running.stop() == 0


def test_the_farms_own_agents_get_their_token_by_the_environment(
    state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "admin", lambda plan, *words: "5ecret")
    for one in parts.farm_parts(FarmPlan(state, 1)):
        if one.name.startswith("agent-"):
            assert one.environment() == {"POCKFARM_ENROL_TOKEN": "5ecret"}
            assert "5ecret" not in " ".join(one.command())


def test_a_part_that_ends_at_once_is_told_with_its_log(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    never = part("two", "import sys; sys.exit('no disk left')", is_up=lambda: False)
    running = InThread(state, [part("one", SLEEPER), never], monkeypatch)
    running.thread.join(HANG_S)
    assert running.code == 1
    status = status_of(state)
    assert "no disk left" in status.problem
    assert "ended with code 1 while starting" in status.problem
    assert not is_alive(status.parts["one"].pid)


def test_a_part_that_never_comes_up_is_told(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    running = InThread(state, [part("one", SLEEPER, is_up=lambda: False, up_within_s=0.3)], monkeypatch)
    running.thread.join(HANG_S)
    assert "was not up within 0 s" in status_of(state).problem


def test_the_lock_says_who_is_up(state: StateFolder) -> None:
    assert not state.is_up()
    program = (
        "import sys; from pathlib import Path; from pockfarm.own_farm.state import StateFolder\n"
        "lock = StateFolder(Path(sys.argv[1])).lock(); print(lock is not None, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(state.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "True"
        assert state.is_up()
        assert state.lock() is None
        holder.kill()
    assert not state.is_up(), "a killed holder leaves nothing behind"


def test_down_with_nothing_up_says_so(state: StateFolder) -> None:
    said: list[str] = []
    down(state, say=said.append)
    assert said == [f"no farm is up in {state.path}"]


def test_up_tells_why_a_farm_does_not_start(
    loopback: None, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POCKFARM_DATABASE_URL", "sqlite:////proc/nowhere/farm.db")
    with pytest.raises(FarmDown, match=r"does not start.*migrate"):
        up(state, say=lambda _: None)
    until(lambda: not state.is_up())


def test_the_folder_is_private_and_a_deep_one_keeps_its_socket_short(tmp_path: Path) -> None:
    deep = StateFolder(tmp_path / ("x" * 120))
    deep.make()
    assert deep.path.stat().st_mode & 0o777 == 0o700
    socket = deep.socket
    assert len(os.fsencode(socket)) <= 100
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    assert deep.socket == socket, "the same one each time"


def test_a_busy_port_is_not_taken(loopback: None) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert free_port(taken.getsockname()[1]) != taken.getsockname()[1]
