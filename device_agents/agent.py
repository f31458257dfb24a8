"""The agent: `python -m device_agents.agent --server URL --state DIR [--enrol-token FILE] ...`.

Enrols once, then for ever: send what the spool holds, ask for work, do it. Ends on SIGTERM or SIGINT (a running job is
stopped and reported), with exit code 0; 2 without an identity; 3 when another agent works as this device;
4 when the self-test finds the board not fit. What the farm offers in its own place it gets ready, and starts over.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import secrets
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from device_agents.attempt import Attempt, Station
from device_agents.devices.accelerator import accelerator_of
from device_agents.devices.condition import ConditionReader
from device_agents.devices.describe import NO_FACTS, Device, describe_device
from device_agents.errors import EnrolmentError, EnrolmentRefused, FarmError, Stale, Unreachable
from device_agents.farm import retry
from device_agents.farm.client import FarmClient
from device_agents.farm.gate import admit
from device_agents.farm.spool import Spool, SpooledResult
from device_agents.farm.state import Choices, StateFolder
from device_agents.farm.unfinished import Unfinished
from device_agents.job import own_limits
from device_agents.job.matrix import described, matrix, say, table
from device_agents.job.own_data import LocalDatasets, parse_allowed
from device_agents.job.scratch import empty
from device_agents.joining import join_farm, read_token
from device_agents.options import DATA_VARIABLE, LONG_POLL_S, confinement, parser, wishes
from device_agents.self_test import self_test
from device_agents.updating import Updater, check_words, pass_trial, start_over
from device_agents.wire import (
    DEVICE_NAME,
    DEVICE_NAME_WORDS,
    OFFER_TYPE,
    Assignment,
    Envelope,
    LeaseRequest,
    Outcome,
    log_lines,
)
from device_agents.wire.service_manager import tell_manager, tell_ready

log = logging.getLogger("device_agents")

ALIVE, BEAT_S = "alive", 2.0
EXIT_NO_IDENTITY = 2
EXIT_TAKEN_OVER = 3
EXIT_NOT_FIT = 4
START_OVER = -1
"""No exit code: another file is to be tried."""
PATIENCE_S = 120.0
"""Seconds of retries for a result that the farm, though it is well, cannot take; then the agent requests new work all
the same.
"""
LEAVING = retry.Policy(attempts=1, first_s=0.5, most_s=0.5)
"""When the agent is going down, each result is tried once; the spool has it for the next start."""


class _Leave(BaseException):
    """Raised by the signal handler while the agent waits for work: nothing is in flight then."""


class Agent:
    """The loop around attempts."""

    def __init__(
        self, station: Station, updater: Updater, *, long_poll_s: float = LONG_POLL_S, patience_s: float = PATIENCE_S
    ) -> None:
        self._station = station
        self._updater = updater
        self._long_poll_s = long_poll_s
        self._patience_s = patience_s
        self._is_waiting = False
        self._stuck_since_s: dict[str, float] = {}
        """Results that the farm, though it answers, could not take: since when."""

    def run(self, *, once: bool) -> bool:
        """Works until it has to stop; with `once`, until one assignment is done. Returns True if another agent is to be
        tried.

        Raises: `Stale`, `EnrolmentError`.
        """
        log.info("waiting for work")
        while not self._station.is_stopping.is_set():
            self._empty_spool()
            envelope = self._lease()
            if envelope is None:
                continue
            if envelope.payloadType == OFFER_TYPE:
                if self._updater.take(envelope, self._station.is_stopping):
                    return True
                continue
            self._take(envelope)
            if once:
                break
        self._send_spooled(LEAVING if self._station.is_stopping.is_set() else retry.UPLOAD)
        return False

    def _take(self, envelope: Envelope) -> None:
        """Works off what the envelope holds if it is to be trusted; else reports that to the farm, and does no more."""
        admitted = admit(envelope, self._station.client.state, self._station.device.description)
        if isinstance(admitted, Outcome):
            self._refuse(admitted)
            return
        log.info("run %s attempt %d: %s", admitted.run_id, admitted.attempt, admitted.settings.mode)
        self._attempt(admitted)

    def _refuse(self, outcome: Outcome) -> None:
        station = self._station
        try:
            retry.call(retry.UPLOAD, lambda: station.client.refuse(outcome), sleep=station.is_stopping.wait)
        except FarmError as error:
            log.warning("the farm was not told of the refusal (%s); the lease will run out", error)
            station.is_stopping.wait(retry.LEASE.first_s)

    def _attempt(self, assignment: Assignment) -> None:
        try:
            with log_lines.bind_process(run=assignment.run_id, attempt=assignment.attempt):
                Attempt(self._station, assignment).run()
        except Exception:
            # The attempt has its own net; whatever falls through it must not take the agent down.
            log.exception("run %s: the attempt could not be carried out; its lease will run out", assignment.run_id)
            self._station.is_stopping.wait(retry.LEASE.first_s)

    def on_signal(self, number: int, _: object) -> None:
        """SIGTERM, SIGINT: finish in order."""
        log.info("%s: stopping", signal.Signals(number).name)
        self._station.is_stopping.set()
        if self._is_waiting:
            self._is_waiting = False
            raise _Leave

    def _wait_for_clock(self) -> None:
        """Makes no request for work while the clock is wrong: waits, then renews, by which the farm, and the agent, see
        what time it is.
        """
        self._station.is_stopping.wait(self._long_poll_s)
        if self._station.is_stopping.is_set():
            return
        try:
            self._station.client.renew()
        except Unreachable as error:
            log.warning("the farm cannot be asked for the time: %s", error)

    def _lease(self) -> Envelope | None:
        if self._station.client.clock_is_wrong():
            self._wait_for_clock()
            return None
        if not self._tell_own_data():
            return None
        Unfinished(self._station.client.state.unfinished).tidy(self._station.client)
        wait_s = 0.0 if self._updater.is_proving else self._long_poll_s
        request = LeaseRequest(self._station.client.session, wait_s, self._station.sandbox.level)
        try:
            with self._interruptible():
                answer = retry.call(
                    retry.LEASE,
                    lambda: self._station.client.lease(request),
                    sleep=self._station.is_stopping.wait,
                    trouble=self._station.client.trouble,
                )
            self._updater.note_answer()
            return answer
        except _Leave:
            return None
        except FarmError as error:
            if self._station.is_stopping.is_set():
                return None
            if isinstance(error, Stale):
                self._join_again(error)
                return None
            log.error("the farm refuses to give work: %s; asking again in a minute", error)
            self._station.is_stopping.wait(retry.REFUSED_S)
            return None

    def _join_again(self, error: Stale) -> None:
        """Another agent has become this device: the farm decides which of the two works. Raises: `Stale`."""
        log.warning("%s; asking the farm which of the two is to work", error.reason)
        station = self._station
        retry.call(retry.LEASE, station.client.renew, sleep=station.is_stopping.wait, trouble=station.client.trouble)

    def _tell_own_data(self) -> bool:
        """Reports to the farm when a data set of the board has changed. Returns False if that failed, so that work has
        to wait.
        """
        client, before = self._station.client, self._station.client.description
        client.describe_own_data(self._station.datasets.look())
        if client.description == before:
            return True
        try:
            client.renew()
            return True
        except FarmError as error:
            if isinstance(error, Stale):
                raise
            log.warning("the farm could not be told of a data set that has changed: %s", error)
            client.description = before
            self._station.is_stopping.wait(retry.LEASE.first_s)
            return False

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        self._is_waiting = not self._station.is_stopping.is_set()
        try:
            yield
        finally:
            self._is_waiting = False

    def _empty_spool(self) -> None:
        """Sends what is finished before a request for more work, which gives up the attempts that the farm still waits
        for.
        """
        waits = retry.waits_s(retry.LEASE)
        while not self._station.is_stopping.is_set():
            problem = self._send_spooled(retry.UPLOAD)
            if problem is None:
                return
            self._station.is_stopping.wait(retry.wait_after(problem, next(waits)))

    def _send_spooled(self, policy: retry.Policy) -> FarmError | None:
        """Tries each result. Returns the error that lets the spool stand in the way of new work, if there is one."""
        station = self._station
        for result in station.spool.pending():
            try:
                answer = station.spool.send(result, station.client, policy=policy, sleep=station.is_stopping.wait)
                log.info("the result of an attempt was sent: %s", answer)
            except FarmError as error:
                if station.is_stopping.is_set() or not self._is_given_up(result, error):
                    log.warning("the farm cannot take the result now (%s); it stays in the spool", error)
                    return error
                log.error(
                    "the farm still cannot take the result of lease %s... (%s); it stays in the spool, and the "
                    "agent works on",
                    result.lease_token[:8],
                    error,
                )
        return None

    def _is_given_up(self, result: SpooledResult, error: FarmError) -> bool:
        """Whether a result shall not stand in the way any more: the farm is well, but has not taken it for long."""
        if not self._farm_is_well(error):
            self._stuck_since_s.clear()
            return False
        since_s = self._stuck_since_s.setdefault(result.lease_token, time.monotonic())
        return time.monotonic() - since_s >= self._patience_s

    def _farm_is_well(self, error: FarmError) -> bool:
        if isinstance(error, Unreachable):
            return False
        try:
            self._station.client.renew()  # reads and writes the farm's database, as a report does
        except FarmError:
            return False
        return True


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    options = parser().parse_args(arguments)
    if options.check:
        print(check_words())
        return 0
    if options.probe:
        return _probe(options)
    log_lines.configure("agent", default_form="text")
    os.umask(0o022)  # the state folder is private as a whole; jobs of another user must be able to read their own
    state = StateFolder(options.state)
    try:
        with state.locked("agent", wait=False):
            state.forget_programs(running=Path(__file__).resolve().parents[1])
            code = _run(options, state)
        if code == START_OVER:
            log.info("starting over, to try another agent")
            start_over()
        return code
    except BlockingIOError:
        log.error("another agent runs on %s; give this one its own --state folder", state.path)
        return EXIT_NO_IDENTITY
    except EnrolmentError as error:
        log.error("%s", error)
        if not state.has_key():  # nobody has heard of it
            state.remove_if_new()
        return EXIT_NO_IDENTITY
    except Stale as error:
        log.error("another agent works as this device, so this one ends: %s", error.reason)
        return EXIT_TAKEN_OVER
    except FarmError as error:
        log.error("%s", error)
        return EXIT_NO_IDENTITY


def _probe(options: argparse.Namespace) -> int:
    """Prints the device that an agent with these options would serve, and what would confine its jobs."""
    try:
        device = _device(options).description
    except EnrolmentError as error:
        print(error, file=sys.stderr)
        return EXIT_NO_IDENTITY
    say(f"device: {device.device_class} ({device.measurement_class}), targets {', '.join(device.targets) or 'none'}\n")
    try:
        sandbox = confinement(options, None)
    except EnrolmentError as error:
        print(f"work is refused: {error}\n", file=sys.stderr)
        sandbox = confinement(argparse.Namespace(**{**vars(options), "run_as": str(os.geteuid())}), None)
    say(table(sandbox, matrix(sandbox)))
    return 0


def _device(options: argparse.Namespace, isolation_level: int = 0, facts: Mapping[str, str] = NO_FACTS) -> Device:
    """The device that the options name. Raises: `EnrolmentError` where its driver or emulator does not work."""
    for option, value in (("--name", options.name), ("--class", options.device_class)):
        if value is not None and not DEVICE_NAME.fullmatch(value):
            raise EnrolmentError(f"{option} {value!r:.120}: expected {DEVICE_NAME_WORDS}, a letter or digit first")
    return describe_device(
        name=options.name,
        device_class=options.device_class,
        runner=options.runner,
        isolation_level=isolation_level,
        facts=facts,
        accelerator=accelerator_of(options.engine) if options.engine else None,
    )


def _run(options: argparse.Namespace, state: StateFolder) -> int:
    token, has_chosen_name = read_token(options.enrol_token), options.name is not None
    chosen = Choices(options.name, options.device_class, options.runner, options.engine).filled(state.choices())
    vars(options).update(vars(chosen))
    empty(state.scratch)
    limits, sandbox = own_limits.parse(options.limit), confinement(options, state.path)
    allowed = parse_allowed([*shlex.split(os.environ.get(DATA_VARIABLE, "")), *options.data])
    datasets = LocalDatasets(allowed, state.path / "own-data")
    rows = matrix(sandbox)
    device = _device(options, sandbox.level, described(rows))
    log.info("%s, isolation level %d", device.description.device_class, sandbox.level)
    for row in rows:
        if not row.holds:
            log.warning("isolation lacks %s: %s", row.name, row.how)
    client = FarmClient(options.server, state, session=secrets.token_hex(16), description=device.description)
    stop = threading.Event()
    if options.self_test:
        return 0 if self_test(device, sandbox, client, state.path, print) else EXIT_NOT_FIT
    beating = threading.Thread(target=beat, args=(state.path / ALIVE, stop), name="beat", daemon=True)
    beating.start()
    interval_s = options.heartbeat_interval
    station = Station(
        client, device, sandbox, Spool(state.spool), stop, interval_s, options.exclusive, limits, datasets
    )
    updater = Updater(client, state.path, wishes(options), is_trial=options.trial)
    client.program = updater.program
    client.condition = ConditionReader(device.kind, device.board, state.path, state.scratch.name)
    agent = Agent(station, updater, long_poll_s=options.long_poll)
    signal.signal(signal.SIGTERM, agent.on_signal)
    signal.signal(signal.SIGINT, agent.on_signal)
    try:
        client.describe_own_data(datasets.look())
        if not options.trial:
            updater.judge()
        join_farm(client, token, stop, has_chosen_name=has_chosen_name)
        state.save_choices(replace(chosen, name=chosen.name or client.description.name))
        if options.enrol_only:
            return 0
        with log_lines.bind_process(device=_device_id(state)):
            if options.trial:
                pass_trial(client, sandbox.level, stop)
            elif agent.run(once=options.once):
                return START_OVER
    except EnrolmentRefused:
        stop.set()
        beating.join()
        state.remove_if_new()
        raise
    except FarmError:
        if not stop.is_set():
            raise
    return 0


def _device_id(state: StateFolder) -> str:
    identity = state.identity()
    return identity.device_id if identity else ""


def beat(path: Path, stop: threading.Event) -> None:
    """Touch a file now and then, so that whoever watches it sees that this process is neither dead nor stopped."""
    tell_ready()
    while True:
        with contextlib.suppress(OSError):
            path.touch(mode=0o600)
        tell_manager(b"WATCHDOG=1")
        if stop.wait(BEAT_S):
            return


if __name__ == "__main__":
    sys.exit(main())
