"""The launcher of the installed one-file agent, which runs before anything else: it finds out which file runs, and
tries new ones.

A new file is started as a trial first, as a child and within a time: it has to come up, reach the farm and be
answered twice. Then this process becomes it. It has proven itself when the farm has answered it twice more; until then
each start is counted, before it happens, and the fourth is that of the file before. Whatever ends when: the next start
finds either the record from before or the one after, and both name a file that has worked.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, NoReturn

from device_agents.slots import standing as steps
from device_agents.slots.standing import MOST_STARTS, Slots, Standing, StandingDamaged, Trial, digest_of
from device_agents.wire.service_manager import ask_for_time

PROGRAM = "POCKFARM_AGENT_PROGRAM"
"""The one file that this process runs from."""
LAUNCHER = "POCKFARM_AGENT_LAUNCHER"
"""The installed one, which is started to start over."""
TRIAL_WORD = "--trial"
TRIAL_VARIABLE, TRIAL_S = "POCKFARM_AGENT_TRIAL_S", 90.0
UP_WITHIN_S = 300.0
"""Seconds for a start, as the unit's TimeoutStartSec: a trial, and then a start, on a slow board."""
LAST_WORDS_BYTES = 2000
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Start:
    """The way this process was started."""

    archive: Path
    arguments: Sequence[str]
    state: Path


def launch(start: Start) -> None:
    """Returns if the file that was started shall run now; else becomes the one that shall."""
    slots = Slots(start.state)
    os.environ[PROGRAM] = str(start.archive)
    if start.archive.parent == slots.folder:
        return
    os.environ[LAUNCHER] = str(start.archive)
    try:
        standing = slots.read()
    except StandingDamaged as error:
        say(str(error))
        return
    if standing is None or _is_running(start.state):  # the second says itself that there is one
        return
    try:
        if standing.base != digest_of(start.archive):
            _begin_anew(slots, standing, start.archive)
            return
        if standing.trial is not None:
            standing = tried(slots, standing, start)
    except OSError as error:  # what cannot be counted is not tried
        say(f"{slots.record} cannot be written ({error}): what has proven itself runs")
        standing = replace(standing, trial=None)
    chosen = choose(slots, standing)
    if chosen is not None:
        become(chosen, start.arguments)


def _begin_anew(slots: Slots, standing: Standing, archive: Path) -> None:
    """The operator has installed another file: that one counts, and what updates brought before does not."""
    say("another file was installed than the one that updates were made from: it runs now")
    anew = Standing(digest_of(archive), settled=standing.settled)
    slots.write(anew)
    slots.tidy(anew)


def choose(slots: Slots, standing: Standing) -> Path | None:
    """The file to run; None: the base itself."""
    trial = standing.trial.digest if standing.trial and standing.trial.is_reached else ""
    for digest in (trial, standing.current, standing.previous):
        if digest and slots.holds(digest):
            return slots.path(digest)
        if digest:
            say(f"{slots.path(digest)} is missing or damaged: the file before it runs")
    return None


def tried(slots: Slots, standing: Standing, start: Start) -> Standing:
    """Tries the file that has not proven itself, or gives it up. Returns the record as it is then."""
    trial = standing.trial
    assert trial is not None
    if trial.starts >= MOST_STARTS:
        reason = f"version {trial.version} was started {trial.starts} times and did not get through to the farm"
        return _give_up(slots, standing, trial, reason)
    if not slots.holds(trial.digest):
        return _give_up(slots, standing, trial, "the new file is missing or damaged on this board's disk")
    counted = replace(standing, trial=replace(trial, starts=trial.starts + 1))
    slots.write(counted)
    if trial.is_reached:
        return counted
    try:
        problem = _run_trial(slots.path(trial.digest), start.arguments)
    except Told:
        slots.write(standing)  # whoever stopped us says nothing about the file
        sys.exit(0)
    if problem is not None:
        return _give_up(slots, counted, trial, problem.reason, in_doubt=problem.is_unreached)
    reached = replace(counted, trial=replace(trial, starts=trial.starts + 1, is_reached=True))
    slots.write(reached)
    return reached


def _give_up(slots: Slots, standing: Standing, trial: Trial, reason: str, *, in_doubt: bool = False) -> Standing:
    say(f"update {trial.sequence} has failed: {reason}; the agent from before runs on")
    given_up = steps.fail(standing, trial.sequence, reason, in_doubt=in_doubt)
    slots.write(given_up)
    slots.tidy(given_up)
    return given_up


@dataclass(frozen=True)
class Problem:
    """Why a trial came to nothing."""

    reason: str
    is_unreached: bool = False


class Told(Exception):
    """Raised by a signal to end, while a trial goes on."""


def _run_trial(program: Path, arguments: Sequence[str]) -> Problem | None:
    limit_s = float(os.environ.get(TRIAL_VARIABLE, TRIAL_S))
    handlers = {number: signal.signal(number, _tell) for number in (signal.SIGTERM, signal.SIGINT)}
    command = [sys.executable, str(program), *without_token(arguments), TRIAL_WORD]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=_die_with_parent
    )
    assert child.stderr is not None
    words = LastWords(child.stderr)
    words.start()
    try:
        code = child.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return Problem(f"it did not get through to the farm within {limit_s:.0f} s", is_unreached=True)
    finally:
        _end(child)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        words.join(timeout=5)
    if code == 0:
        return None
    how = f"it ended by signal {-code}" if code < 0 else f"it ended with code {code}"
    return Problem(f"{how}: {words.last}")


def _tell(_number: int, _frame: object) -> None:
    raise Told


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class LastWords(threading.Thread):
    """Passes on what a trial logs, and keeps the end of it."""

    def __init__(self, source: IO[bytes]) -> None:
        super().__init__(name="last words", daemon=True)
        self._source = source
        self._end = b""

    def run(self) -> None:
        """Reads until the trial has closed its standard error."""
        with self._source:
            for line in iter(lambda: self._source.readline(LAST_WORDS_BYTES), b""):
                self._end = line if line.strip() else self._end
                with contextlib.suppress(OSError):
                    os.write(2, line)

    @property
    def last(self) -> str:
        """The last line that says something; of a line of the log in JSON, what happened."""
        line = self._end.decode("utf-8", "replace").strip()
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return str(json.loads(line)["event"])
        return line or "it said nothing"


def _is_running(state: Path) -> bool:
    """Whether an agent holds this state folder: its updates are its own business then."""
    try:
        with (state / "agent.lock").open("r") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def become(program: Path, arguments: Sequence[str]) -> NoReturn:
    """Goes on as another file, with the same process id.

    Until that is up, and has perhaps tried a new one, it gives no sign of life.
    """
    ask_for_time(UP_WITHIN_S)
    os.execv(sys.executable, [sys.executable, str(program), *without_token(arguments)])


def without_token(arguments: Sequence[str]) -> list[str]:
    """A one-time token was for the first start; standard input, where it may come from, has ended."""
    remaining: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--enrol-token":
            next(words, None)
        elif not word.startswith("--enrol-token="):
            remaining.append(word)
    return remaining


def say(message: str) -> None:
    """Writes a message for the journal: the agent's own log is not up yet."""
    sys.stderr.write(f"pockfarm-agent launcher: {message}\n")
    sys.stderr.flush()
