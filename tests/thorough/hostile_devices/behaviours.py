"""What boards may do that they should not, and what the farm makes of each.

A behaviour is one turn: the board asks for work, and does its own to it. The others of a farm never notice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import httpx
from sqlalchemy import update

from device_agents import wire as p
from service.base.identifiers import digest_of
from service.store.database.models import Attempt
from tests.service.board import Board
from tests.thorough.hostile_devices.scene import STEPS, Scene, measurement

Turn = Callable[[Scene, Board, Board], bool]
"""One turn of the bad board beside the honest one; whether it had work."""
NONSENSE = (b"", b"\x00\xff" * 50, b"[" * 3000, b'{"payload": 3}', b'{"phase": "run", "steps_done": 1e999}')
ANSWERS: dict[str, list[str]] = {}
"""Codes that a board was answered with, by its device."""


@dataclass(frozen=True)
class Behaviour:
    """One row: what is done, and what must become of it."""

    name: str
    turn: Turn
    state: str = "active"
    """Of the device in the end."""
    code: str | None = None
    """Of its attempts; None: they succeeded."""
    marks: frozenset[str] = frozenset()
    message: str = ""
    """A word of the marks, or of why it is quarantined."""
    answer: str = ""
    """The code of a refusal that it must have got."""
    most_tries: int = 3
    """Attempts that it may have had of all runs together."""
    comes_back: str = ""
    """`canary` or `clock`."""
    lies_again: bool = False
    """Its first canary run is wrong, and brings it nowhere."""
    runs: int = 6
    """That there are for it and the honest board."""


def told(outcome: p.Outcome) -> Turn:
    """The board fails what it gets, and says so."""

    def turn(scene: Scene, bad: Board, good: Board) -> bool:
        work = bad.lease()
        if work is not None:
            bad.heartbeat(work)
            assert bad.report(work, outcome).status_code == 200
        return work is not None

    return turn


def reports(**lies: Any) -> Turn:
    """The board reports success, with something in it that is not so."""

    def turn(scene: Scene, bad: Board, good: Board) -> bool:
        work = bad.lease()
        if work is None:
            return False
        bad.heartbeat(work)
        sent = {"measurement": measurement()} | {name: lie() if callable(lie) else lie for name, lie in lies.items()}
        _note(bad, bad.report(work, **sent))
        return True

    return turn


def clock(off_s: float) -> Turn:
    def turn(scene: Scene, bad: Board, good: Board) -> bool:
        bad.clock_off_s = off_s
        return bad.lease() is not None

    return turn


def _note(board: Board, answer: httpx.Response) -> None:
    if answer.status_code >= 400:
        ANSWERS.setdefault(board.device_id, []).append(str(answer.json()["code"]))


def never_begins(scene: Scene, bad: Board, good: Board) -> bool:
    return bad.lease() is not None


def begins_and_drops(scene: Scene, bad: Board, good: Board) -> bool:
    work = bad.lease()
    if work is not None:
        bad.heartbeat(work)
    return work is not None


def goes_silent(scene: Scene, bad: Board, good: Board) -> bool:
    work = bad.lease()
    if work is None:
        return False
    bad.heartbeat(work)
    with scene.farm.farm.database.transaction() as session:
        session.execute(
            update(Attempt)
            .where(Attempt.run_id == work.run_id, Attempt.n == work.attempt)
            .values(lease_expires_at=time.time() - 1)
        )
    scene.farm.sweep()
    return True


def restarts(scene: Scene, bad: Board, good: Board) -> bool:
    work = bad.lease()
    if work is not None:
        bad.heartbeat(work)
        bad.restart()
    return work is not None


def replays_its_last_report(scene: Scene, bad: Board, good: Board) -> bool:
    """The first is good; for each later assignment it sends that one again."""
    work = bad.lease()
    if work is None:
        return False
    bad.heartbeat(work)
    old: p.Envelope | None = getattr(bad, "old", None)
    if old is None:
        old = bad.envelope(bad.make_report(work, measurement=measurement()))
        bad.old = old  # type: ignore[attr-defined]
    _note(bad, bad.post(p.attempt_path(p.REPORT_PATH, work.lease_token), old))
    return True


def doubles_every_message(scene: Scene, bad: Board, good: Board) -> bool:
    work = bad.lease()
    if work is None:
        return False
    envelope = bad.envelope(bad.make_report(work, measurement=measurement()))
    path = p.attempt_path(p.REPORT_PATH, work.lease_token)
    event = p.Event(1, time.time(), "log", message="once")
    for _ in range(2):
        assert bad.heartbeat(work).status_code == 200
        assert bad.send_events(work, event).status_code == 200
    assert [p.loads(p.ReportResponse, bad.post(path, envelope).content).state for _ in range(2)] == [
        "recorded",
        "already-recorded",
    ]
    return True


def changes_its_report(scene: Scene, bad: Board, good: Board) -> bool:
    """A better result for the same attempt, once the first is in."""
    work = bad.lease()
    if work is None:
        return False
    assert bad.report(work, measurement=measurement()).status_code == 200
    _note(bad, bad.report(work, measurement=measurement(1.0, 1.0, 1.0)))
    return True


def mutates_its_report(scene: Scene, bad: Board, good: Board) -> bool:
    """What is signed is not what is sent."""
    work = bad.lease()
    if work is None:
        return False
    bad.heartbeat(work)
    envelope = bad.envelope(bad.make_report(work, measurement=measurement()))
    other = bad.envelope(bad.make_report(work, measurement=measurement(1.0, 1.0, 1.0)))
    mixed = replace(envelope, payload=other.payload)
    _note(bad, bad.post(p.attempt_path(p.REPORT_PATH, work.lease_token), mixed))
    return True


def takes_anothers_work(scene: Scene, bad: Board, good: Board) -> bool:
    """It reports, uploads and cancels for the honest board, with that one's token."""
    given = good.lease()
    if given is None:
        return False
    good.heartbeat(given)
    for answer in (
        bad.heartbeat(given),
        bad.put_weights(given, b"w", digest_of(b"w")),
        bad.report(given),
        bad.send_events(given, p.Event(1, 1.0, "log", message="mine")),
    ):
        _note(bad, answer)
    assert good.report(given, measurement=measurement()).status_code == 200
    return True


def enrols_with_anothers_key(scene: Scene, bad: Board, good: Board) -> bool:
    """With a good token, and the honest board's public key, which receipts show; signed as well as it can."""
    token = scene.token()
    for request in (
        bad.enrolment(token, public_key=good.public_key),
        replace(good.enrolment("another token"), token=token),
    ):
        _note(bad, bad.post(p.ENROL_PATH, request))
    return False


def enrols_again_as(**other: Any) -> Turn:
    """With its own key, and a good token: what it describes is another device."""

    def turn(scene: Scene, bad: Board, good: Board) -> bool:
        honest = bad.description
        bad.description = replace(honest, **other)
        _note(bad, bad.try_enrol(scene.token()))
        bad.description = honest
        return False

    return turn


def names_weights_that_it_never_sent(scene: Scene, bad: Board, good: Board) -> bool:
    work = bad.lease()
    if work is None:
        return False
    bad.heartbeat(work)
    _note(bad, bad.report(work, weights=p.Blob(digest_of(b"none"), 4)))
    return True


def speaks_nonsense(scene: Scene, bad: Board, good: Board) -> bool:
    """Bytes in place of each message."""
    work = bad.lease()
    if work is None:
        return False
    bad.heartbeat(work)
    for path in (p.HEARTBEAT_PATH, p.EVENTS_PATH, p.REPORT_PATH):
        for content in (
            b"",
            b"\x00\xff" * 50,
            b"[" * 3000,
            b'{"payload": 3}',
            b'{"phase": "run", "steps_done": 1e999}',
        ):
            answer = bad.post(p.attempt_path(path, work.lease_token), None, content=content)
            assert 400 <= answer.status_code < 500, (path, content[:20], answer.status_code)
            _note(bad, answer)
    return True


def _failed(code: str, cause: p.Cause = "device") -> Turn:
    return told(p.Outcome("failed", cause, code, f"{code} happened"))


def _sensor(**reading: Any) -> Turn:
    return reports(device_states=lambda: (p.DeviceState(time.time(), 45.0, 1e9), p.DeviceState(time.time(), **reading)))


def _refused(name: str, where: str, **lies: Any) -> Behaviour:
    marks, code = frozenset({"impossible-reports"}), "report.impossible"
    return Behaviour(
        name, reports(**lies), "quarantined", code, marks, where, code, comes_back="canary", lies_again="median" in name
    )


def _struck(name: str, code: str, turn: Turn | None = None, cause: p.Cause = "device") -> Behaviour:
    return Behaviour(
        name,
        turn or _failed(code, cause),
        "quarantined",
        code,
        message=code,
        comes_back="canary",
        lies_again=code == "device.disk",
    )


def _backwards() -> tuple[p.DeviceState, ...]:
    now = time.time()
    return p.DeviceState(now, 45.0), p.DeviceState(now - 600.0, 45.0)


OFF: dict[str, Any] = {"state": "quarantined", "most_tries": 0, "comes_back": "clock"}
NOISY = p.Verdict("noisy", "spread")
BEHAVIOURS = (
    Behaviour("clock-ahead", clock(4000.0), message="ahead of the farm's", **OFF),
    Behaviour("clock-behind", clock(-4000.0), message="behind the farm's", **OFF),
    _struck("clock-of-an-older-agent", "envelope.expired", cause="policy"),
    _struck("sandbox-fails", "launch.sandbox"),
    _struck("nothing-starts", "launch.exec"),
    _struck("disk-full", "device.disk"),
    _struck("file-system-read-only", "device.system"),
    _struck("jobs-are-killed", "step.killed"),
    _struck("begins-and-drops", "infra.abandoned", begins_and_drops),
    _struck("goes-silent", "infra.lease-expired", goes_silent),
    _struck("restarts-in-the-middle", "infra.abandoned", restarts),
    Behaviour(
        "never-begins", never_begins, code="infra.not-received", marks=frozenset({"not-received"}), most_tries=18
    ),
    Behaviour(
        "always-noisy",
        reports(verdict=NOISY),
        marks=frozenset({"always-noisy"}),
        message="noisy",
        most_tries=12,
        runs=12,
    ),
    Behaviour(
        "500-degrees", _sensor(temperature_c=500.0), marks=frozenset({"sensors"}), message="temperature_c", most_tries=6
    ),
    Behaviour(
        "minus-400-degrees",
        _sensor(temperature_c=-400.0),
        marks=frozenset({"sensors"}),
        message="temperature_c",
        most_tries=6,
    ),
    Behaviour("negative-power", _sensor(power_mw=-5.0), marks=frozenset({"sensors"}), message="power_mw", most_tries=6),
    Behaviour(
        "100-terahertz", _sensor(frequency_hz=1e14), marks=frozenset({"sensors"}), message="frequency_hz", most_tries=6
    ),
    Behaviour(
        "energy-beyond-the-rails",
        reports(energy=p.Energy(1e12, 1e9, "rapl")),
        marks=frozenset({"sensors"}),
        message="energy",
        most_tries=6,
    ),
    Behaviour(
        "ends-before-it-began",
        reports(started_at=5000.0, finished_at=10.0),
        marks=frozenset({"time"}),
        message="before it began",
        most_tries=6,
    ),
    Behaviour(
        "sensors-read-backwards",
        reports(device_states=_backwards),
        marks=frozenset({"time"}),
        message="before the reading that came first",
        most_tries=6,
    ),
    Behaviour(
        "ran-longer-than-it-took",
        reports(started_at=1.0, finished_at=2.0, run_s=100.0),
        marks=frozenset({"time"}),
        message="between begin and end",
        most_tries=6,
    ),
    Behaviour(
        "contradicts-its-own-isolation",
        reports(environment={"isolation": "no privileges, no new privileges"}),
        code="device.isolation",
        marks=frozenset({"isolation"}),
        message="system calls",
        most_tries=6,
    ),
    _refused("ran-longer-than-it-had-the-run", "run_s", run_s=100_000.0, finished_at=200_000.0),
    _refused("more-steps-than-the-clock-allows", "measurement.step_us", measurement=measurement(*[2e6] * STEPS)),
    _refused("more-steps-than-asked", "measurement.step_us", measurement=measurement(*[1000.0] * (STEPS + 1))),
    _refused("more-losses-than-asked", "losses", losses=(1.0,) * (STEPS + 1)),
    _refused("median-not-of-its-samples", "measurement.median_us", measurement=measurement(median_us=500.0)),
    _refused("mean-not-of-its-samples", "measurement.mean_us", measurement=measurement(mean_us=500.0)),
    _refused(
        "spread-not-of-its-samples",
        "measurement.cv_within",
        measurement=measurement(100.0, 900.0, 100.0, 900.0, cv_within=0.001),
    ),
    _refused(
        "throughput-not-of-its-median",
        "measurement.samples_per_second",
        measurement=measurement(samples_per_second=1e9),
    ),
    _refused("percentiles-beyond-its-samples", "measurement.p90_us", measurement=measurement(p90_us=1.0)),
    _refused("samples-not-of-its-blocks", "measurement.step_us", measurement=measurement(step_us=(1.0, 1.0))),
    _refused("another-batch", "measurement.batch", measurement=measurement(batch=800)),
    _refused("another-mode", "mode", mode="eval"),
    _refused("negative-time", "measurement", measurement=lambda: _unchecked(measurement(), median_us=-1.0)),
    _refused("negative-energy", "energy", energy=lambda: _unchecked(p.Energy(1.0, 1.0, "rapl"), total_mj=-5.0)),
    _refused("faster-than-its-silicon", "kernels", kernels=(p.KernelTime(0, "k", "forward", 1.0, 10**12, 4, 4),)),
    _refused("more-memory-than-it-has", "memory.peak_rss_bytes", memory=p.Memory(peak_rss_bytes=1 << 50)),
    Behaviour(
        "replays-its-last-report",
        replays_its_last_report,
        "quarantined",
        "infra.abandoned",
        answer="report.mismatch",
        most_tries=4,
        comes_back="canary",
    ),
    Behaviour(
        "mutates-its-report",
        mutates_its_report,
        "quarantined",
        "infra.abandoned",
        answer="report.signature",
        comes_back="canary",
    ),
    Behaviour(
        "names-weights-it-never-sent",
        names_weights_that_it_never_sent,
        "quarantined",
        "infra.abandoned",
        answer="report.weights",
        comes_back="canary",
    ),
    Behaviour(
        "speaks-nonsense",
        speaks_nonsense,
        "quarantined",
        "infra.abandoned",
        answer="protocol.invalid",
        comes_back="canary",
    ),
    Behaviour("doubles-every-message", doubles_every_message, most_tries=6),
    Behaviour("changes-its-report", changes_its_report, answer="report.other", most_tries=6),
    Behaviour("takes-anothers-work", takes_anothers_work, answer="lease.stale", most_tries=0),
    Behaviour("enrols-with-anothers-key", enrols_with_anothers_key, answer="enrol.signature", most_tries=0),
    Behaviour(
        "enrols-again-as-hardware", enrols_again_as(measurement_class="hardware"), answer="enrol.class", most_tries=0
    ),
)


def _unchecked(value: Any, **lies: Any) -> Any:
    """As no code of ours could make it."""
    for name, lie in lies.items():
        object.__setattr__(value, name, lie)
    return value
