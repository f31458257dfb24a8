"""The process that keeps a farm on this machine up: `python -m pockfarm.own_farm.supervisor STATE PORT`.

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
from pockfarm.errors import AS_LINES, FarmDown, PockfarmError
from pockfarm.own_farm.parts import FarmPlan, Part, admin, farm_parts
from pockfarm.own_farm.state import OFF, FarmStatus, PartStatus, StateFolder

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
    """A part and its current process."""

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
        for running in self.running:
            if self.stopping:
                return
            if running.part.why_missing is None:
                self._start(running)
                self._wait_until_up(running)
            else:
                self._start_optional(running, running.part.why_missing)
            if running.part.name == "valkey":
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

    def _start(self, running: Running) -> None:
        log = self.plan.state.logs / f"{running.part.name}.log"
        _shorten(log)
        command = list(running.part.command())
        with log.open("ab") as output:
            running.process = subprocess.Popen(
                command,
                env={**self.plan.environment(), **running.part.environment()},
                cwd=self.plan.state.path,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent(os.getpid()),
            )
        running.state, running.started_at = "starting", time.monotonic()
        running.watch, running.probe_at = Watch(), running.started_at + PROBE_INTERVAL_S
        print(f"supervisor: started {running.part.name}, pid {running.process.pid}", flush=True)
        self._save()

    def _wait_until_up(self, running: Running) -> None:
        deadline = time.monotonic() + running.part.up_within_s
        while not self.stopping:
            if running.process is not None and running.process.poll() is not None:
                raise _down(running, self.plan, f"ended with code {running.process.returncode} while starting")
            if running.part.is_up():
                break
            if time.monotonic() > deadline:
                raise _down(running, self.plan, f"was not up within {running.part.up_within_s:.0f} s")
            time.sleep(POLL_INTERVAL_S)
        running.state, running.watch = "up", Watch()
        self._save()

    def _tend(self) -> None:
        """Checks every part once: notices the dead, and restarts those whose time has come."""
        now = time.monotonic()
        for running in self.running:
            if running.state == OFF:
                continue
            if running.process is not None and running.process.poll() is not None:
                self._note_death(running, now)
            elif running.process is None and now >= running.restart_at:
                self._restart(running)
            elif running.process is not None and now >= running.probe_at:
                self._probe(running)
            elif running.state == "starting" and running.part.is_up():
                running.state, running.watch = "up", Watch()
        self._save()

    def _probe(self, running: Running) -> None:
        """Look for a sign of life; one that has given none for long is killed, and restarted like the dead."""
        assert running.process is not None
        if running.state == "starting" and running.part.is_up():
            running.state, running.watch = "up", Watch()
        now = time.monotonic()
        running.probe_at = now + PROBE_INTERVAL_S
        limit_s = running.part.hung_after_s if running.state == "up" else running.part.up_within_s
        if not running.watch.is_hung(running.process.pid, limit_s, lambda: _gives_sign(running)):
            return
        what = "hung" if running.state == "up" else "did not come up"
        _kill_group(running.process.pid, signal.SIGKILL)
        running.process.wait()
        self._note_death(running, now, f"{what}: no sign of life for {running.watch.silent_s:.0f} s, killed")

    def _note_death(self, running: Running, now: float, why: str = "") -> None:
        assert running.process is not None
        running.why = why or f"ended with code {running.process.returncode}"
        print(f"supervisor: {running.part.name} (pid {running.process.pid}) {running.why}", flush=True)
        _kill_group(running.process.pid, signal.SIGKILL)
        if now - running.started_at > STABLE_S:
            running.delay_s = FIRST_RESTART_S
        running.process, running.state, running.restart_at = None, "restarting", now + running.delay_s
        running.delay_s = min(2 * running.delay_s, SLOWEST_RESTART_S)

    def _restart(self, running: Running) -> None:
        running.restarts += 1
        try:
            self._start(running)
        except (PockfarmError, OSError, subprocess.SubprocessError) as problem:
            print(f"supervisor: {running.part.name} does not start: {problem}", flush=True)
            running.restart_at = time.monotonic() + running.delay_s
            running.delay_s = min(2 * running.delay_s, SLOWEST_RESTART_S)

    def _stop_all(self) -> None:
        for running in reversed(self.running):
            if running.process is not None:
                _stop(running.process, running.part.stop_within_s)
            running.process, running.state = None, "down"
        self.ready = False
        self._save()

    def _save(self) -> None:
        parts = {
            running.part.name: PartStatus(
                running.process.pid if running.process else None, running.restarts, running.state, running.why
            )
            for running in self.running
        }
        status = FarmStatus(os.getpid(), self.plan.url, self.ready, parts, self.problem)
        if status != self.saved:
            self.plan.state.save(status)
            self.saved = status


def _gives_sign(running: Running) -> bool:
    """A part that does not come up yet, but lives (it waits for another part, say), is left to it."""
    if running.part.is_alive is None:
        return running.state == "up"
    return running.part.is_alive()


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


def _down(running: Running, plan: FarmPlan, what: str) -> FarmDown:
    """Returns the error of a part that does not start, with the end of its log."""
    log = plan.state.logs / f"{running.part.name}.log"
    lines = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
    message = f"the {running.part.title} ({running.part.name}) {what}; the end of {log}:"
    return FarmDown(message, hint="\n".join(lines), hint_form=AS_LINES)


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
