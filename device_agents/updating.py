"""The way the running agent makes way for another: it checks the farm's offer, fetches the file, tries that it starts.

Nothing here replaces anything: the new file is put beside the one that runs, the record says that it is to be tried,
and the launcher does the rest (`slots/launcher.py`). What goes wrong before is told to the farm at once, what goes
wrong after by the agent that runs then, as it renews.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from device_agents import AGENT_VERSION
from device_agents.errors import AttemptError, BadUpdate, FarmError, Stale, Stopped, Untrusted, of_the_system
from device_agents.farm import retry
from device_agents.farm.client import FarmClient
from device_agents.farm.trust import verify_offer
from device_agents.slots import standing as steps
from device_agents.slots.launcher import LAUNCHER, PROGRAM, become
from device_agents.slots.standing import MOST_BEGINNINGS, Slots, Standing, StandingDamaged, Trial, digest_of
from device_agents.wire import (
    MOST_AGENT_BYTES,
    PROTOCOL,
    AgentOffer,
    Envelope,
    Outcome,
    Program,
    UpdateFailure,
    version_order,
)
from device_agents.wire.release import UPDATE_REFUSED, Updates

log = logging.getLogger("device_agents")

DOWNLOAD_S = 900.0
CHECK_S = 60.0
ANSWERS = 2
"""Answers of the farm, one after the other, after which a new agent has proven itself."""
UPDATES_VARIABLE = "POCKFARM_AGENT_UPDATES"


@dataclass(frozen=True)
class OneFile:
    """The file that the one-file agent runs from, and its launcher."""

    program: Path
    launcher: Path

    @classmethod
    def from_environment(cls) -> OneFile | None:
        """Returns the files of this agent; None: it is installed in another way."""
        program, launcher = os.environ.get(PROGRAM), os.environ.get(LAUNCHER)
        return cls(Path(program), Path(launcher)) if program and launcher else None


@dataclass(frozen=True)
class Wishes:
    """The board operator's wishes about updates."""

    is_wanted: bool = True
    oldest_version: str = "0"
    """The oldest version that is accepted, whatever the farm says."""


class Updater:
    """The updater of a running agent."""

    def __init__(
        self, client: FarmClient, state: Path, wishes: Wishes, *, is_trial: bool = False, check_s: float = CHECK_S
    ) -> None:
        self._client = client
        self._slots = Slots(state)
        self._wishes = wishes
        self._is_trial = is_trial
        self._check_s = check_s
        self._file = OneFile.from_environment()
        self._digest = digest_of(self._file.program) if self._file else ""
        self._answers_left = 0 if is_trial or self._standing().trial is None else ANSWERS

    def program(self) -> Program:
        """Returns the program that the farm is told of at each renewal."""
        return Program(self._updates(), self._digest, failed=self._told_failure())

    def _updates(self) -> Updates:
        if self._file is None:
            return "installed"
        if self._is_trial:
            return "trial"
        try:
            self._slots.read()
        except StandingDamaged as error:
            log.error("%s", error)
            return "off"
        return "on" if self._wishes.is_wanted else "off"

    def _told_failure(self) -> UpdateFailure | None:
        standing = self._standing()
        return None if standing.in_doubt else standing.failed

    def _standing(self) -> Standing:
        """Returns the standing as it is on disk. A damaged one accepts nothing."""
        if self._file is None:
            return Standing("")
        try:
            return self._slots.read() or Standing(digest_of(self._file.launcher))
        except StandingDamaged:
            return Standing("", settled=sys.maxsize)

    def judge(self) -> None:
        """Judges whether the old agent can reach the farm, after a trial that did not, and before the old agent
        joins.
        """
        standing = self._standing()
        if not standing.in_doubt:
            return
        try:
            self._client.clock_off_s()
            is_there = True
        except FarmError as error:
            log.warning(
                "the farm is away for this agent too (%s): that the new one did not reach it says nothing", error
            )
            is_there = False
        self._slots.write(steps.judge(standing, farm_is_there=is_there))

    @property
    def is_proving(self) -> bool:
        """Whether this agent is new, and the farm has not answered it often enough."""
        return self._answers_left > 0

    def note_answer(self) -> None:
        """The farm has answered a request for work."""
        if not self.is_proving:
            return
        self._answers_left -= 1
        if self.is_proving:
            return
        proven = steps.prove(self._standing())
        try:
            self._slots.write(proven)
        except OSError as error:
            self._answers_left = 1  # the next answer tries again
            log.error("that this agent has proven itself cannot be kept: %s", error)
            return
        self._slots.tidy(proven)
        log.info("this agent, version %s, has proven itself", AGENT_VERSION)

    def take(self, envelope: Envelope, stop: threading.Event) -> bool:
        """Gets the offered agent ready. Returns True if the launcher has to be started, which tries it. Raises:
        `Stale`.
        """
        try:
            offer = self._believed(envelope)
        except AttemptError as error:
            self._refuse(error, stop)
            return False
        try:
            self._prepare(offer, stop)
            return True
        except Stopped:
            return False
        except Stale:
            raise
        except FarmError as error:
            log.warning("update %d could not be fetched (%s); the farm will offer it again", offer.sequence, error)
            stop.wait(retry.LEASE.first_s)
        except AttemptError as error:
            self._fail(offer, error, stop)
        except OSError as error:
            cause = of_the_system(error)
            self._fail(offer, BadUpdate(str(cause.code), cause.message, cause="device", hint=cause.hint), stop)
        return False

    def _believed(self, envelope: Envelope) -> AgentOffer:
        """Raises: `Untrusted`, `BadUpdate` (updates are off; done with it before)."""
        identity = self._client.state.identity()
        if identity is None:
            raise BadUpdate("agent.identity", "the device has lost its identity", cause="device")
        offer, key_id = verify_offer(envelope, identity, now=time.time())
        if self._updates() != "on":
            raise BadUpdate("off", "this agent takes no updates: its operator has switched them off, or it cannot")
        standing = self._standing()
        if offer.sequence <= standing.settled:
            if standing.failed is not None and standing.failed.sequence == offer.sequence:
                raise BadUpdate("failed", standing.failed.reason)
            message = f"update {offer.sequence} is not above {standing.settled}, with which this board is done"
            raise Untrusted("replayed", message, hint="publish the release again: it gets a higher number")
        self._client.state.raise_release(key_id, offer.release_number)
        return offer

    def _prepare(self, offer: AgentOffer, stop: threading.Event) -> None:
        """Raises: `BadUpdate`, `Untrusted`, `Stopped`, `FarmError`, `OSError`."""
        standing = self._begin(offer)
        check_offer(offer, self._wishes)
        log.info("update %d: version %s, %d bytes", offer.sequence, offer.version, offer.program.size_bytes)
        self._fetch(offer, stop)
        self._check_start(offer)
        self._slots.take_in(offer.program.digest)
        self._slots.write(steps.stage(standing, Trial(offer.sequence, offer.program.digest, offer.version)))

    def _begin(self, offer: AgentOffer) -> Standing:
        """Records on disk that the update begins, before anything of it is done."""
        assert self._file is not None
        standing = self._standing()
        if standing.base != digest_of(self._file.launcher):
            message = f"{self._file.launcher} was replaced since this agent started: start the agent again"
            raise BadUpdate("base", message, cause="device")
        updated = steps.begin(standing, offer.sequence)
        if updated.beginnings > MOST_BEGINNINGS:
            raise BadUpdate(
                "interrupted", f"it was begun {MOST_BEGINNINGS} times, and the agent ended each time", cause="device"
            )
        self._slots.write(updated)
        return updated

    def _fetch(self, offer: AgentOffer, stop: threading.Event) -> None:
        deadline_s = time.monotonic() + DOWNLOAD_S

        def should_stop() -> Stopped | None:
            if stop.is_set():
                return Stopped("agent.stopped", "the agent is going down", cause="infra")
            if time.monotonic() > deadline_s:
                raise BadUpdate("download.time", f"the download took more than {DOWNLOAD_S:.0f} s", cause="infra")
            return None

        retry.call(
            retry.DOWNLOAD,
            lambda: self._client.download(offer.program, self._slots.download, should_stop=should_stop),
            sleep=stop.wait,
        )

    def _check_start(self, offer: AgentOffer) -> None:
        """Checks that this board's Python starts the file, and that it is what it was offered as. Raises:
        `BadUpdate`.
        """
        command = [sys.executable, str(self._slots.download), "--check"]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
        ) as child:
            try:
                out, words = child.communicate(timeout=self._check_s)
            except subprocess.TimeoutExpired:
                raise BadUpdate("check.time", f"its self-test did not end within {self._check_s:.0f} s") from None
            finally:
                with contextlib.suppress(OSError):
                    os.killpg(child.pid, signal.SIGKILL)
        if child.returncode != 0:
            last = words.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise BadUpdate(
                "check.failed", f"its self-test ended with {child.returncode}: {''.join(last) or 'no word'}"
            )
        if _read_check(out) != (offer.version, PROTOCOL):
            raise BadUpdate("check.version", f"the file says {out[:200]!r}, offered was version {offer.version}")

    def _fail(self, offer: AgentOffer, error: AttemptError, stop: threading.Event) -> None:
        """Remembers the failure, and reports it to the farm."""
        with contextlib.suppress(OSError):
            self._slots.download.unlink(missing_ok=True)
        try:
            self._slots.write(steps.fail(self._standing(), offer.sequence, error.message))
        except OSError as problem:  # the farm knows, and does not offer it again
            log.error("that update %d has failed cannot be kept: %s", offer.sequence, problem)
        self._refuse(error, stop)

    def _refuse(self, error: AttemptError, stop: threading.Event) -> None:
        log.error("the offered update is refused: %s: %s", error.code, error)
        outcome = replace(error.outcome(), code=f"{UPDATE_REFUSED}{error.code}")
        try:
            retry.call(retry.UPLOAD, lambda: self._client.refuse(outcome), sleep=stop.wait)
        except Stale:
            raise
        except FarmError as problem:
            log.warning("the farm was not told of the refusal: %s", problem)
        stop.wait(retry.LEASE.first_s)


def check_offer(offer: AgentOffer, wishes: Wishes, *, running: str = AGENT_VERSION) -> None:
    """Whether this board may and can take it, by what the offer itself says. Raises: `BadUpdate`."""
    offered = version_order(offer.version)
    if offered < version_order(wishes.oldest_version):
        message = (
            f"version {offer.version} is below {wishes.oldest_version}, the oldest that this board's operator wants"
        )
        raise BadUpdate("oldest", message, cause="policy")
    if offered < version_order(running) and not offer.is_rollback:
        message = f"version {offer.version} is older than {running}, and the offer does not say that it goes back"
        raise BadUpdate("downgrade", message, cause="policy", hint="publish it as a rollback")
    if offer.protocol != PROTOCOL:
        raise BadUpdate("protocol", f"it speaks {offer.protocol}, and the farm, as this agent knows it, {PROTOCOL}")
    python = ".".join(map(str, sys.version_info[:3]))
    if version_order(offer.oldest_python) > version_order(python):
        raise BadUpdate("python", f"it needs Python {offer.oldest_python}, this board has {python}", cause="device")
    if not 0 < offer.program.size_bytes <= MOST_AGENT_BYTES:
        raise BadUpdate("size", f"{offer.program.size_bytes:,} bytes, and an agent has {MOST_AGENT_BYTES:,} at most")


def check_words() -> str:
    """Returns the output of `--check`, once all of the agent has been imported."""
    return json.dumps({"version": AGENT_VERSION, "protocol": PROTOCOL})


def _read_check(out: bytes) -> tuple[str, str] | None:
    try:
        answer = json.loads(out)
        return answer["version"], answer["protocol"]
    except (ValueError, KeyError, TypeError):
        return None


def pass_trial(client: FarmClient, isolation_level: int, stop: threading.Event) -> None:
    """Passes the trial of a new agent: it is answered `ANSWERS` times, and takes no work. Raises: `FarmError`."""
    for _ in range(ANSWERS):
        envelope = retry.call(retry.LEASE, lambda: client.ask_for_nothing(isolation_level), sleep=stop.wait)
        if envelope is not None:
            client.refuse(Outcome("failed", "infra", "agent.stopped", "an agent on trial takes no work"))


def start_over() -> None:
    """Become the launcher, which tries what was staged. Does not return."""
    become(Path(os.environ[LAUNCHER]), sys.argv[1:])
