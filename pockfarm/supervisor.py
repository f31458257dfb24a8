"""The process that keeps a farm on this machine up: `python -m pockfarm.supervisor STATE PORT`.

It starts the parts in order, waits until each is up, restarts one that dies (after 1, 2 ... 30 s), and kills one that
gives no sign of life any more (a stopped process does not die) to start it again. On SIGTERM it stops them in reverse
order: SIGTERM, the part's own time, then SIGKILL of its process group. Should the supervisor be killed itself, the
kernel sends its parts SIGTERM. Single-threaded: that signal belongs to the thread that forks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from device_agents.wire.watchdog import Watch
from pockfarm.errors import FarmDown, PockfarmError
from pockfarm.parts import FarmPlan, Part, admin, farm_parts
from pockfarm.state import OFF, FarmStatus, PartStatus, StateFolder

POLL_INTERVAL_S = 0.2
FIRST_RESTART_S = 1.0
SLOWEST_RESTART_S = 30.0
PROBE_INTERVAL_S = 2.5
"""Longer than the pause between two signs of any part."""
STABLE_S = 60.0
"""A part that has lived this long starts again from the shortest delay."""
LOG_LIMIT_BYTES = 20_000_000
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Running:
    """One part and its process of the moment."""

    part: Part
    process: subprocess.Popen[bytes] | None = None
    state: str = "down"
    restarts: int = 0
    delay_s: float = FIRST_RESTART_S
    started_at: float = 0.0
    restart_at: float = 0.0
    probe_at: float = 0.0
    watch: Watch = field(default_factory=Watch)
    why: str = ""


@dataclass
class Supervisor:
    """Runs the parts of one plan until it is asked to stop."""

    plan: FarmPlan
    parts: Sequence[Part] | None = None
    """None: those of a farm on this machine."""
    running: list[Running] = field(default_factory=list)
    stopping: bool = False
    ready: bool = False
    problem: str = ""
    saved: FarmStatus | None = None

    def run(self) -> int:
        """Start everything, then keep it up until SIGTERM or SIGINT. Returns an exit code."""
        self.running = [Running(part) for part in (farm_parts(self.plan) if self.parts is None else self.parts)]
        try:
            self._start_all()
            self.ready = True
            while not self.stopping:
                self._tend()
                time.sleep(POLL_INTERVAL_S)
        except PockfarmError as problem:
            self.problem = str(problem)
            print(f"supervisor: {problem}", flush=True)
        finally:
            self._stop_all()
        return 1 if self.problem else 0

    def ask_to_stop(self, *_: object) -> None:
        self.stopping = True

    def _start_all(self) -> None:
        for one in self.running:
            if self.stopping:
                return
            if one.part.why_missing is None:
                self._start(one)
                self._wait_until_up(one)
            else:
                self._start_optional(one, one.part.why_missing)
            if one.part.name == "valkey":
                admin(self.plan, "migrate")
                self._make_api_key()

    def _start_optional(self, running: Running, why_missing: Callable[[], str]) -> None:
        """Start a part that a farm can do without; where it does not come up, it is off until the next start."""
        why = why_missing()
        try:
            if not why:
                self._start(running)
                self._wait_until_up(running)
        except (PockfarmError, OSError, subprocess.SubprocessError) as problem:
            why = str(problem)
        if why:
            print(f"supervisor: going without {running.part.name}: {why}", flush=True)
            if running.process is not None:
                _stop(running.process, running.part.stop_within_s)
            lines = why.splitlines()
            running.process, running.state, running.why = None, OFF, " ".join(dict.fromkeys((lines[0], lines[-1])))
            self._save()

    def _make_api_key(self) -> None:
        if self.plan.state.api_key() is None:
            admin(self.plan, "create-key", "--save")

    def _start(self, one: Running) -> None:
        log = self.plan.state.logs / f"{one.part.name}.log"
        _shorten(log)
        command = list(one.part.command())
        with log.open("ab") as output:
            one.process = subprocess.Popen(
                command,
                env={**self.plan.environment(), **one.part.environment()},
                cwd=self.plan.state.path,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent(os.getpid()),
            )
        one.state, one.started_at = "starting", time.monotonic()
        one.watch, one.probe_at = Watch(), one.started_at + PROBE_INTERVAL_S
        print(f"supervisor: started {one.part.name}, pid {one.process.pid}", flush=True)
        self._save()

    def _wait_until_up(self, one: Running) -> None:
        deadline = time.monotonic() + one.part.up_within_s
        while not self.stopping:
            if one.process is not None and one.process.poll() is not None:
                raise FarmDown(_why_down(one, self.plan, f"ended with code {one.process.returncode} while starting"))
            if one.part.is_up():
                break
            if time.monotonic() > deadline:
                raise FarmDown(_why_down(one, self.plan, f"was not up within {one.part.up_within_s:.0f} s"))
            time.sleep(POLL_INTERVAL_S)
        one.state, one.watch = "up", Watch()
        self._save()

    def _tend(self) -> None:
        """One look at every part: notice the dead, restart those whose time has come."""
        now = time.monotonic()
        for one in self.running:
            if one.state == OFF:
                continue
            if one.process is not None and one.process.poll() is not None:
                self._note_death(one, now)
            elif one.process is None and now >= one.restart_at:
                self._restart(one)
            elif one.process is not None and now >= one.probe_at:
                self._probe(one)
            elif one.state == "starting" and one.part.is_up():
                one.state, one.watch = "up", Watch()
        self._save()

    def _probe(self, one: Running) -> None:
        """Look for a sign of life; one that has given none for long is killed, and restarted like the dead."""
        assert one.process is not None
        if one.state == "starting" and one.part.is_up():
            one.state, one.watch = "up", Watch()
        now = time.monotonic()
        one.probe_at = now + PROBE_INTERVAL_S
        limit_s = one.part.hung_after_s if one.state == "up" else one.part.up_within_s
        if not one.watch.is_hung(one.process.pid, limit_s, lambda: _gives_sign(one)):
            return
        what = "hung" if one.state == "up" else "did not come up"
        _kill_group(one.process.pid, signal.SIGKILL)
        one.process.wait()
        self._note_death(one, now, f"{what}: no sign of life for {one.watch.silent_s:.0f} s, killed")

    def _note_death(self, one: Running, now: float, why: str = "") -> None:
        assert one.process is not None
        one.why = why or f"ended with code {one.process.returncode}"
        print(f"supervisor: {one.part.name} (pid {one.process.pid}) {one.why}", flush=True)
        _kill_group(one.process.pid, signal.SIGKILL)
        if now - one.started_at > STABLE_S:
            one.delay_s = FIRST_RESTART_S
        one.process, one.state, one.restart_at = None, "restarting", now + one.delay_s
        one.delay_s = min(2 * one.delay_s, SLOWEST_RESTART_S)

    def _restart(self, one: Running) -> None:
        one.restarts += 1
        try:
            self._start(one)
        except (PockfarmError, OSError, subprocess.SubprocessError) as problem:
            print(f"supervisor: {one.part.name} does not start: {problem}", flush=True)
            one.restart_at = time.monotonic() + one.delay_s
            one.delay_s = min(2 * one.delay_s, SLOWEST_RESTART_S)

    def _stop_all(self) -> None:
        for one in reversed(self.running):
            if one.process is not None:
                _stop(one.process, one.part.stop_within_s)
            one.process, one.state = None, "down"
        self.ready = False
        self._save()

    def _save(self) -> None:
        parts = {
            one.part.name: PartStatus(one.process.pid if one.process else None, one.restarts, one.state, one.why)
            for one in self.running
        }
        status = FarmStatus(os.getpid(), self.plan.url, self.ready, parts, self.problem)
        if status != self.saved:
            self.plan.state.save(status)
            self.saved = status


def _gives_sign(one: Running) -> bool:
    """A part that does not come up yet, but lives (it waits for another part, say), is left to it."""
    if one.part.is_alive is None:
        return one.state == "up"
    return one.part.is_alive()


def _die_with_parent(parent: int) -> Callable[[], None]:
    def in_child() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return in_child


def _stop(process: subprocess.Popen[bytes], within_s: float) -> None:
    """SIGTERM to the process (its own clean way out), then SIGKILL to all that is left of its group."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(within_s)
    _kill_group(process.pid, signal.SIGKILL)
    process.wait()


def _kill_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _why_down(one: Running, plan: FarmPlan, what: str) -> str:
    log = plan.state.logs / f"{one.part.name}.log"
    lines = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
    return "\n".join([f"the {one.part.title} ({one.part.name}) {what}; the end of {log}:", *lines])


def _shorten(log: Path) -> None:
    """Keep one older log, so that a farm that stays up does not fill the disk."""
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.replace(log.with_suffix(".log.1"))


def main(arguments: list[str]) -> int:
    os.umask(0o077)
    state = StateFolder(Path(arguments[0]))
    state.make()
    lock = state.lock()
    if lock is None:
        print(f"supervisor: a farm is already up on {state.path}", flush=True)
        return 1
    supervisor = Supervisor(FarmPlan(state, int(arguments[1])))
    signal.signal(signal.SIGTERM, supervisor.ask_to_stop)
    signal.signal(signal.SIGINT, supervisor.ask_to_stop)
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
