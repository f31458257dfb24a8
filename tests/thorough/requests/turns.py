"""Reports of bundles that took turns, as a board signs them: such as can be, and such as cannot.

What the API's description has of a report is its envelope: no drawn one is signed by a board's key, and none says what
a comparison found.
"""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from device_agents import wire
from device_agents.figures.rounds import order_of
from device_agents.figures.warm_up import allowance
from tests.service.board import Board, assignment_of

OPERATION = "POST /agent/attempts/{lease_token}/report"
BROKEN = 0.6
"""Of reports: one or two of its values are others."""
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    0.5,
    7,
    1 << 40,
    1e308,
    -1e-308,
    "",
    "compare",
    "sha256:" + "0" * 64,
    [],
    [[]],
    {},
    {"bundle": 0},
)
STEPS = (1, 3, 20, 200)
EFFECTS = (None, 0.001, 0.01, 0.5)
RUN_S = 280.0
"""That its processes say to have run for: the clock of a board may be off by so much."""
TIMES_S = (None, 0.5, 60, 1200)
Sent = Callable[[str, str, Callable[[], httpx.Response]], httpx.Response | None]
"""(operation, who, how): sends and looks at the answer."""


@dataclass
class Turns:
    """A board that takes comparisons (another, once the farm gives it no more), and the operator who asks for them."""

    board: Board
    operator: Mapping[str, str]
    bundles: list[str]
    needed: set[str]
    """Ids that nobody is to take away."""

    def report(self, rng: random.Random, sent: Sent) -> str | None:
        """Take a run, or have one made, and report it; the run whose report counts."""
        work = self._work(rng, sent)
        if work is None:
            return None
        whole = self._report(work, rng)
        if rng.random() < BROKEN:
            answer = self._send(work, broken(whole, rng), sent)
            if _counts(answer):
                return work.run_id
        return work.run_id if _counts(self._send(work, whole, sent)) else None

    def look(self, runs: Sequence[str], sent: Sent) -> None:
        """At two reported runs beside each other, and at what the page of one says."""
        http, header, (one, other) = self.board.http, dict(self.operator), runs
        path = f"/runs/{one}/compare/{other}"
        sent("GET /runs/{run_id}/compare/{other_id}", "operator", lambda: http.get(path, headers=header))
        sent("GET /runs/{run_id}/report", "operator", lambda: http.get(f"/runs/{one}/report", headers=header))

    def _work(self, rng: random.Random, sent: Sent) -> wire.Assignment | None:
        request = {
            "bundle": self.bundles[0],
            "others": rng.choices(self.bundles, k=rng.randint(1, 3)),
            "mode": "compare",
            "device": self.board.device_id,
            "steps": rng.choice(STEPS),
            "effect": rng.choice(EFFECTS),
            "compare_s": rng.choice(TIMES_S),
            "seed": rng.randrange(1 << 31),
        }
        http, header = self.board.http, dict(self.operator)
        sent("POST /runs", "operator", lambda: http.post("/runs", json=request, headers=header))
        answer = sent(f"POST {wire.LEASE_PATH}", "board", self.board.try_lease)
        if answer is not None and answer.status_code == 200:
            return assignment_of(answer)
        self._enrol_another()  # this one gets no more work: it has told what cannot be
        return None

    def _enrol_another(self) -> None:
        http, header = self.board.http, dict(self.operator)
        token = http.post("/devices/enrolment-tokens", json={}, headers=header).raise_for_status().json()["token"]
        self.board = Board(http, name="turns", modes=("compare",)).enrol(token)
        self.needed.add(self.board.device_id)

    def _report(self, work: wire.Assignment, rng: random.Random) -> Any:
        found = _comparison(work, rng) if work.settings.mode == "compare" else None
        mode = work.settings.reported_mode
        losses = (2.5,) * work.settings.steps if mode in ("train", "profile") else ()
        report = self.board.make_report(
            work, mode=mode, losses=losses, verdict=None, comparison=found, run_s=RUN_S, finished_at=2 * RUN_S
        )
        return json.loads(wire.dumps(report))

    def _send(self, work: wire.Assignment, report: Any, sent: Sent) -> httpx.Response | None:
        payload = json.dumps(report).encode()
        signed = wire.Signature(self.board.device_id, self.board.sign(wire.REPORT_TYPE, payload))
        envelope = wire.Envelope(wire.REPORT_TYPE, base64.b64encode(payload).decode(), (signed,))
        path = wire.attempt_path(wire.REPORT_PATH, work.lease_token)
        return sent(OPERATION, "board", lambda: self.board.post(path, envelope))


def _counts(answer: httpx.Response | None) -> bool:
    """Whether the report was recorded; one that follows a refused one is evidence only."""
    return answer is not None and answer.status_code == 200 and answer.json()["state"] == "recorded"


def _comparison(work: wire.Assignment, rng: random.Random) -> wire.Comparison:
    """Of up to 40 rounds in the order of the run's seed; some of them say that nothing was left to find out."""
    count, steps = 1 + len(work.others), work.settings.steps
    rounds, noise, slower = rng.choice((1, 3, 4, 12, 18, 40)), rng.choice((0.0, 0.01, 0.3)), rng.choice((1.0, 1.1))
    processes = [
        wire.ComparedProcess(
            which,
            tuple(1000.0 * slower ** bool(which) * (1 + noise * rng.random()) for _ in range(steps + allowance(steps))),
        )
        for number in range(rounds)
        for which in order_of(number, bundles=count, seed=work.settings.seed)
    ]
    ended = "rounds" if rounds == 40 else rng.choice(("known", "time", "time", "cut"))
    return wire.Comparison(
        (work.bundle.digest, *(other.digest for other in work.others)),
        steps,
        tuple(processes),
        ended,  # type: ignore[arg-type]
        (2,) * count,
        rng.choice((None, 12, 40)),
    )


def broken(report: Any, rng: random.Random) -> Any:
    """The report with one or two values that are others, gone, or there twice; most often in its comparison."""
    made = copy.deepcopy(report)
    for _ in range(rng.randint(1, 2)):
        root = made.get("comparison") if rng.random() < 0.7 else made
        _break(root if isinstance(root, dict) and root else made, rng)
    return made


def _break(root: Any, rng: random.Random) -> None:
    while True:
        key = rng.choice(list(root)) if isinstance(root, dict) else rng.randrange(len(root))
        inner = root[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.7:
            root = inner
            continue
        break
    act = rng.random()
    if act < 0.2:
        del root[key]
    elif act < 0.3 and isinstance(root, list):
        root.insert(key, copy.deepcopy(inner))
    elif act < 0.5 and isinstance(inner, int | float):
        root[key] = inner * rng.choice((-1, 2, 1e-9, 1e9))
    else:
        root[key] = rng.choice(ODD_VALUES)
