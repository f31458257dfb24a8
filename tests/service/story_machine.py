"""Owners, devices, operators and time do what they like, in any order; what must hold, holds after every step.

The rules speak HTTP as users and agents do. What each may change is foretold by `story_model.py`; the invariants
compare that with the rows. `python -m tests.service.story_campaign` runs many more examples.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from sqlalchemy import select

from device_agents import wire as p
from service.base.identifiers import digest_of
from service.boards.canary.building import HEALTH
from service.devices import canary_reference as reference
from service.store.database.models import Job
from tests.service.board import Board, assignment_of
from tests.service.story_jobs import PICK, JobBook, where
from tests.service.story_model import (
    ABANDONED,
    KEY_S,
    LEASE_S,
    NOT_RECEIVED,
    OPEN,
    OVERDUE,
    RUN_ATTEMPTS,
    End,
    Lease,
    Track,
    forget_everything,
    let_time_pass,
    lost,
)
from tests.service.story_record import RecordedStory

BOARDS = (
    ("x86 one", "x86-64", ("x86-64-v3",)),
    ("x86 two", "x86-64", ("x86-64-v3",)),
    ("x86 other", "server", ("x86-64-v3",)),
    ("pi", "raspberry-pi-4", ("raspberry-pi-4",)),
)
OUTCOMES = (
    p.Outcome("succeeded"),
    p.Outcome("succeeded"),
    *(p.Outcome("failed", cause, "a.code", "m") for cause in ("user", "model", "limits", "compiler", "policy")),
    *(p.Outcome("failed", cause, "a.code", "m") for cause in ("infra", "service", "device")),
    p.Outcome("failed", "device", "step.killed", "m"),
    p.Outcome("failed", "policy", "envelope.expired", "m"),
    p.Outcome("failed", "policy", "download.digest", "m"),
    p.Outcome("failed", "infra", "agent.internal", "m"),
    p.Outcome("failed", "infra", "agent.stopped", "m"),
    p.Outcome("inconclusive", "device", "device.hot", "m"),
    p.Outcome("cancelled", "user", "run.cancelled", "m"),
)
DISK, STRIKES = p.Outcome("failed", "device", "device.disk", "full"), 3
JUMPS_S = (22.0, 90.0, 700.0, 4000.0, 23000.0)


class Story(RecordedStory):
    """`farm` and `built` (bundles by target) are those of the test; every example begins on empty tables."""

    built: dict[str, str]

    @initialize()
    def begin(self) -> None:
        with self.farm.farm.database.transaction() as session:
            forget_everything(session)
        type(self).stories += 1
        assert self.farm.farm.settings.run_attempts == RUN_ATTEMPTS
        self.now, self.jobs = 0.0, JobBook()
        self.tracks = {}
        self.keys: dict[str, tuple[dict[str, Any], str]] = {}
        self.boards = [self.farm.board(name=name, device_class=kind, targets=targets) for name, kind, targets in BOARDS]
        self.removed = set()
        self.held, self.struck = set(), set()
        for pick in (0, 3, 24, 2):
            self.submit(pick, "")

    # What owners do

    def body(self, pick: int) -> dict[str, Any]:
        target = ("x86-64-v3", "x86-64-v3", "raspberry-pi-4")[pick % 3]
        fitting = [board for board in self.boards if target in board.description.targets]
        board = fitting[pick // 3 % len(fitting)]
        where: tuple[dict[str, Any], ...] = (
            {},
            {},
            {"device_class": board.description.device_class},
            {"device": board.device_id},
        )
        return {"bundle": self.built[target], "allow_waiting": True, **where[pick // 12 % 4]}

    @rule(pick=PICK, key=st.sampled_from(("", "", "a", "b")))
    def ask(self, pick: int, key: str) -> None:
        self.submit(pick, key)

    def submit(self, pick: int, key: str) -> None:
        body, headers = self.body(pick), {"Idempotency-Key": f"key-{key}"} if key else {}
        answer = self.farm.http.post("/runs", json=body, headers=headers)
        known = self.keys.get(key)
        if known is not None and self.tracks[known[1]].asked_at + KEY_S <= self.now:
            known = None
        if known is not None and known[0] != body:
            assert (answer.status_code, answer.json()["code"]) == (422, "idempotency.reused")
            return
        if body.get("device") in self.removed and known is None:
            assert answer.json()["code"] == "device.removed"
            return
        assert answer.status_code == 202, answer.text
        run_id = answer.json()["id"]
        if known is not None:
            assert run_id == known[1], "the same request again is the same run"
            self.seen["replayed"] += 1
            return
        if key:
            self.keys[key] = (body, run_id)
        assert run_id not in self.tracks
        self.tracks[run_id] = Track(run_id, body, self.now, asked_at=self.now)

    @rule(pick=PICK)
    @where(lambda self: self.tracks, lambda self: self.submit(0, ""))
    def cancel(self, pick: int) -> None:
        if pick % 3:
            return
        track = self.any_of([one for one in self.tracks.values() if not one.is_canary], pick)
        assert self.farm.http.post(f"/runs/{track.id}/cancel").status_code == 202
        if track.state == "queued":
            track.foretold = "cancelled"
        track.is_cancelled = track.is_cancelled or track.state in OPEN

    # What devices do

    def asked(self, board: Board, ask: Any) -> Any:
        """An answer; a credential that ran out is renewed as an agent does."""
        answer = ask()
        if answer.status_code == 401 and board.device_id not in self.removed:
            renewed = board.try_renew()
            assert renewed.status_code == 200, renewed.text
            board.credential = p.loads(p.Credential, renewed.content).token
            answer = ask()
        return answer

    @rule(pick=PICK, is_lost=st.integers(0, 5).map(lambda number: number == 5))
    def want(self, pick: int, is_lost: bool) -> None:
        self.lease(self.any_of(self.boards, pick), is_lost)

    @rule()
    def want_all(self) -> None:
        """Every board that has nothing to do asks for work."""
        busy = {track.live.board.device_id for track in self.tracks.values() if track.live}
        for board in self.boards:
            if board.device_id not in busy:
                self.lease(board, False)

    def lease(self, board: Board, is_lost: bool) -> None:
        answer = self.asked(board, board.try_lease)
        if board.device_id in self.removed:
            assert answer.status_code in (401, 403)
            return
        self.give_up(board, is_restart=False)
        assert answer.status_code in (200, 204), answer.text
        if answer.status_code == 204:
            return
        work = assignment_of(answer)
        track = self.tracks[work.run_id]
        assert track.foretold == "queued", "only what waits is given away"
        assert track.waits_until > self.now, "and has not waited too long"
        assert board.device_id not in self.held
        assert track.body.get("device") in (None, board.device_id)
        assert track.body.get("device_class") in (None, board.description.device_class)
        assert track.live is None
        assert work.attempt == len(track.leases) + 1
        self.seen["leased, answer lost" if is_lost else "leased"] += 1
        overdue_at = self.now + self.farm.farm.settings.transfer_s + work.limits.run_s
        track.leases.append(
            Lease(track, work.attempt, board, work, self.now + LEASE_S, overdue_at, is_heard=not is_lost)
        )
        track.foretold = track.state = "leased"

    def give_up(self, board: Board, *, is_restart: bool) -> None:
        for track in self.tracks.values():
            if track.live is not None and track.live.board is board:
                is_received = is_restart or track.foretold != "leased"
                self.seen["not received"] += not is_received
                track.settle(track.live, lost(ABANDONED if is_received else NOT_RECEIVED), self.now)

    def leases(self) -> list[Lease]:
        return [lease for track in self.tracks.values() for lease in track.leases if lease.is_heard]

    @rule(pick=PICK, kind=st.sampled_from(("heartbeat", "event", "weights")))
    @where(lambda self: self.leases(), lambda self: self.want_all())
    def write(self, pick: int, kind: str) -> None:
        self.tell(self.any_of(self.leases(), pick), kind, steps_done=pick % 7)

    def tell(self, lease: Lease, kind: str, *, steps_done: int = 0) -> None:
        board, work = lease.board, lease.work
        acts = {
            "heartbeat": lambda: board.heartbeat(work, steps_done=steps_done),
            "event": lambda: board.send_events(work, p.Event(1, 1.0, "log", message="hello")),
            "weights": lambda: board.put_weights(work, b"w", digest_of(b"w")),
        }
        answer = self.asked(board, acts[kind])
        if board.device_id in self.removed:
            assert answer.status_code in (401, 403)
        elif lease.is_live:
            assert answer.status_code in (200, 201), answer.text
            if kind != "weights":
                lease.run.foretold = "running"
            if kind == "heartbeat":
                lease.expires_at = self.now + LEASE_S
        else:
            late = kind == "weights" and self.may_count(lease)
            assert answer.status_code == (201 if late else 409), answer.text

    def may_count(self, lease: Lease) -> bool:
        track = lease.run
        if lease.is_live:
            return True
        return track.foretold == "queued" and lease.n == len(track.leases) and lease.report is None

    @rule(pick=PICK, outcome=st.sampled_from(OUTCOMES), is_lost=st.booleans())
    @where(lambda self: self.leases(), lambda self: self.want_all())
    def end(self, pick: int, outcome: p.Outcome, is_lost: bool) -> None:
        self.report(self.any_of(self.leases(), pick), outcome, is_lost)

    @rule(pick=PICK, outcome=st.sampled_from(OUTCOMES), is_lost=st.booleans())
    @where(lambda self: any(lease.is_live for lease in self.leases()), lambda self: self.want_all())
    def end_live(self, pick: int, outcome: p.Outcome, is_lost: bool) -> None:
        self.report(self.any_of([lease for lease in self.leases() if lease.is_live], pick), outcome, is_lost)

    def report(self, lease: Lease, outcome: p.Outcome, is_lost: bool) -> None:
        board, track = lease.board, lease.run
        losses = tuple(reference.losses(lease.work.settings.seed)) if track.is_canary else (2.5, 1.25)
        envelope = board.envelope(board.make_report(lease.work, outcome, losses=losses))
        path = p.attempt_path(p.REPORT_PATH, lease.work.lease_token)
        answer = self.asked(board, lambda: board.post(path, envelope))
        if board.device_id in self.removed:
            assert answer.status_code in (401, 403)
            return
        if lease.report is not None:
            is_same = lease.report.payload == envelope.payload
            self.seen["reported again" if is_same else "another report"] += 1
            assert answer.status_code == (200 if is_same else 409), answer.text
            return
        assert answer.status_code == 200, answer.text
        said = p.loads(p.ReportResponse, answer.content).state
        self.seen[said if lease.is_live else f"{said} late"] += 1
        counts = self.may_count(lease)
        assert said == ("recorded" if counts else "superseded")
        lease.report = envelope
        is_stopped = outcome.state == "cancelled" and not track.is_cancelled and self.now >= lease.overdue_at
        if counts:
            end = OVERDUE if is_stopped else End(outcome.state, outcome.cause, outcome.code)
            track.settle(lease, end, self.now)
            track.is_won = outcome.state == "succeeded"
        if is_lost:  # the board did not hear the answer, and sends it again
            again = self.asked(board, lambda: board.post(path, envelope))
            assert p.loads(p.ReportResponse, again.content).state == "already-recorded"

    @rule(pick=PICK, other=PICK)
    @where(lambda self: self.leases(), lambda self: self.want_all())
    def steal(self, pick: int, other: int) -> None:
        """A device writes with a token that it was not given."""
        lease: Lease = self.any_of(self.leases(), pick)
        thief = self.any_of([board for board in self.boards if board is not lease.board], other)
        path = p.attempt_path(p.REPORT_PATH, lease.work.lease_token)
        envelope = thief.envelope(thief.make_report(lease.work))
        answers = (
            self.asked(thief, lambda: thief.heartbeat(lease.work)),
            self.asked(thief, lambda: thief.post(path, envelope)),
        )
        for answer in answers:
            assert answer.status_code in ((401, 403) if thief.device_id in self.removed else (409,)), answer.text

    @rule(pick=PICK)
    def restart(self, pick: int) -> None:
        board: Board = self.any_of(self.boards, pick)
        if board.device_id in self.removed:
            assert board.try_renew(session="another-session").status_code == 403
            return
        board.restart()
        self.give_up(board, is_restart=True)

    # What operators and time do

    @rule(pick=PICK, act=st.sampled_from(("quarantine", "release", "release", "remove")))
    def operate(self, pick: int, act: str) -> None:
        board: Board = self.any_of(self.boards, pick)
        if pick >> 8 & (15 if act == "remove" else 1):
            return
        path = f"/devices/{board.device_id}"
        answer = self.farm.http.delete(path) if act == "remove" else self.farm.http.post(f"{path}/{act}", json={})
        if board.device_id in self.removed:
            assert answer.status_code == (200 if act == "remove" else 409)
            return
        assert answer.status_code == 200, answer.text
        (self.held.add if act == "quarantine" else self.held.discard)(board.device_id)
        if act == "remove":
            self.removed.add(board.device_id)

    @rule(seconds=st.sampled_from(JUMPS_S))
    def wait(self, seconds: float) -> None:
        with self.farm.farm.database.transaction() as session:
            let_time_pass(session, seconds)
        self.now += seconds

    @rule()
    def sweep(self) -> None:
        self.farm.sweep()
        for track in self.tracks.values():
            if track.live is not None and (end := track.live.taken_back(self.now)) is not None:
                self.seen[f"taken back: {end.code}"] += 1
                track.settle(track.live, end, self.now)
            if track.foretold == "queued" and track.waits_until <= self.now:
                track.foretold = "expired"
        self.sweep_jobs()

    @rule()
    @where(lambda self: any(track.live for track in self.jobs.tracks.values()), lambda self: self.claim(1))
    def worker_dies(self) -> None:
        """Nobody keeps the claims any more, nor the leases."""
        self.wait(90.0)
        self.sweep()

    @rule(pick=PICK)
    @where(lambda self: any(lease.is_live for lease in self.leases()), lambda self: self.want_all())
    def never_end(self, pick: int) -> None:
        """A board says that it is alive long after its clock has run out."""
        lease: Lease = self.any_of([lease for lease in self.leases() if lease.is_live], pick)
        self.wait(max(lease.overdue_at + LEASE_S - self.now, 0.0) + 1.0)
        self.tell(lease, "heartbeat")
        self.nothing_is_lost_doubled_or_untold()
        self.sweep()

    # What brings a device to the point where it has to prove that it works, and back

    @rule(pick=PICK)
    def strike_out(self, pick: int) -> None:
        """A board fails one run after another, each time for a reason of its own."""
        board: Board = self.any_of(self.boards, pick)
        if board.device_id in self.removed | self.held | self.struck or pick >> 8 & 1:
            return
        for _ in range(STRIKES):
            self.submit_for(board)
            self.lease(board, False)
            self.nothing_is_lost_doubled_or_untold()
            live = [lease for lease in self.leases() if lease.is_live and lease.board is board]
            if live:
                self.report(live[0], DISK, False)
                self.nothing_is_lost_doubled_or_untold()

    def compile_canary(self) -> None:
        with self.farm.farm.database.read() as session:
            waiting = session.scalar(select(Job.id).where(Job.model_name == HEALTH.name, Job.state == "queued"))
        if waiting is not None:
            self.farm.work_off(waiting)

    def submit_for(self, board: Board) -> None:
        body: dict[str, Any] = {"bundle": self.built[board.description.targets[0]], "device": board.device_id}
        run_id = self.farm.http.post("/runs", json=body).json()["id"]
        self.tracks[run_id] = Track(run_id, body, self.now)

    @rule(pick=PICK, outcome=st.sampled_from((p.Outcome("succeeded"), p.Outcome("succeeded"), DISK)))
    @where(lambda self: self.struck - self.removed, lambda self: self.strike_out(1))
    def prove(self, pick: int, outcome: p.Outcome) -> None:
        """A quarantined board goes on asking; when its pause is over it gets a canary run, and nothing else."""
        board: Board = next(one for one in self.boards if one.device_id in self.struck - self.removed)
        self.seen["has to prove that it works"] += 1
        for _ in range(3):  # its pause begins, its canary's bundle is compiled, the run is sent
            self.lease(board, False)
            self.sweep()
            self.nothing_is_lost_doubled_or_untold()
            self.compile_canary()
            self.wait(700.0)
        self.lease(board, False)
        self.nothing_is_lost_doubled_or_untold()
        live = [lease for lease in self.leases() if lease.is_live and lease.board is board]
        assert all(lease.run.is_canary for lease in live) or board.device_id not in self.struck
        if live:
            was_struck = board.device_id in self.struck
            self.report(live[0], outcome, False)
            self.nothing_is_lost_doubled_or_untold()
            is_back = was_struck and board.device_id not in self.struck
            assert is_back == (was_struck and outcome.state == "succeeded")
            self.seen[f"canary {outcome.state}"] += was_struck
