"""Real agents at a real farm, while answers get lost, leases run out, operators interfere and time jumps, in any order.

`story_machine.py` foretells every row, with boards that only speak HTTP. Here the agent's own code decides what to send
again, what to keep and what to give up, and what must hold is what both sides together promise: no result is lost or
counted twice, every history is one of the table's, and once all is well again every run ends.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from device_agents.agent import Agent
from device_agents.attempt import Station
from device_agents.devices.describe import describe_device
from device_agents.errors import Stopped, Unreachable
from device_agents.farm.client import FarmClient
from device_agents.farm.spool import Spool
from device_agents.farm.state import StateFolder
from device_agents.job.sandbox import probe
from device_agents.joining import join_farm
from device_agents.updating import Updater, Wishes
from device_agents.wire import Blob
from service.operations.sweeper import sweep
from service.store import states
from tests.agents.live_farm import LiveFarm
from tests.service.story_model import OPEN, check_history, forget_everything, let_time_pass
from tests.service.story_record import rows_of

BOARDS = ("one", "two")
STEPS = 3
LOSSES = (16.0, 0.64 * 16.0, 0.64**2 * 16.0)
"""Of `tests/agents/fake_step.py`, by hand: from 5.0 the weight goes towards 1, a tenth of the slope at a time."""
PICK = st.integers(0, 1 << 12)
MOMENTS = ("/lease", "download", "/report")
LOST, ACTS = ("request lost", "answer lost"), ("cancelled", "lease over", "quarantined")
MISHAPS = tuple((moment, what) for moment in MOMENTS for what in (*LOST, *ACTS))
ALL_ACTS = ("submit", "restart", "release", "cancel", "wait", "sweep")
JUMPS_S = (22.0, 90.0, 4000.0)
ALL_WELL_TURNS = 40


class Hasty(threading.Event):
    """Waits for nothing: what would be tried again later is tried again soon."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(min(0.02, timeout or 0.02))


class ShakyClient(FarmClient):
    """A client to which one thing happens, at the moment that a rule has chosen."""

    mishap: tuple[str, str] | None = None
    act: Callable[[str], None]

    def _exchange(self, method: str, path: str, body: bytes, *, timeout_s: float = 10.0) -> tuple[int, bytes]:
        return self._through(path, lambda: super(ShakyClient, self)._exchange(method, path, body, timeout_s=timeout_s))

    def _download(self, blob: Blob, to: Path, should_stop: Callable[[], Stopped | None]) -> None:
        self._through("download", lambda: super(ShakyClient, self)._download(blob, to, should_stop))

    def _through(self, path: str, go: Callable[[], Any]) -> Any:
        if self.mishap is None or not path.endswith(self.mishap[0]):
            return go()
        what, self.mishap = self.mishap[1], None
        if what in ACTS:
            self.act(what)
            return go()
        if what == "answer lost":
            go()
        raise Unreachable(what)


class AgentBoard:
    """One board: its state folder outlives its agents."""

    def __init__(self, farm: LiveFarm, name: str, folder: Path, act: Callable[[str], None]) -> None:
        self._farm, self._name, self._folder, self._act = farm, name, folder, act
        self._starts = 0
        self.start(farm.token())

    def start(self, token: str | None = None) -> None:
        """An agent with nothing in its memory."""
        self._starts += 1
        state, device, stop = StateFolder(self._folder), describe_device(name=self._name), Hasty()
        self.client = ShakyClient(
            self._farm.url, state, session=f"session-{self._starts:08d}", description=device.description
        )
        self.client.act = self._act
        self.spool = Spool(state.spool)
        station = Station(self.client, device, probe(hide=state.path, most=1), self.spool, stop, 0.2)
        self._agent = Agent(station, Updater(self.client, self._folder, Wishes()), long_poll_s=0.0)
        join_farm(self.client, token, stop)

    def turn(self) -> bool:
        """One round of the agent's loop; whether there was work."""
        agent = self._agent
        agent._empty_spool()
        envelope = agent._lease()
        if envelope is not None:
            agent._take(envelope)
        agent._empty_spool()
        return envelope is not None

    @property
    def device_id(self) -> str:
        identity = self.client.state.identity()
        assert identity is not None
        return identity.device_id


class AgentStory(RuleBasedStateMachine):
    """`farm` and `built` are those of the test; every example begins on empty tables and with new boards."""

    farm: LiveFarm
    built: dict[str, str]
    """Bundles by what their binary does."""
    folder: Path
    seen: Counter[str]
    stories = 0

    @initialize()
    def begin(self) -> None:
        with self.farm.farm.database.transaction() as session:
            forget_everything(session)
        type(self).stories += 1
        here = self.folder / f"story-{self.stories}"
        self.boards = [AgentBoard(self.farm, name, here / name, self.happen) for name in BOARDS]
        self.runs: dict[str, str] = {}
        self.at_work: AgentBoard | None = None
        for pick in range(3):
            self.submit(pick)

    def any_board(self, pick: int) -> AgentBoard:
        return self.boards[pick % len(self.boards)]

    def submit(self, pick: int) -> None:
        kind = "crash" if pick % 3 == 1 else "normal"
        body = {"bundle": self.built[kind], "steps": STEPS, "warmup": 0}
        answer = self.farm.http.post("/runs", json=body)
        assert answer.status_code == 202, answer.text
        self.runs[answer.json()["id"]] = kind

    @rule(act=st.sampled_from(ALL_ACTS), pick=PICK, mishap=st.sampled_from((None, None, *MISHAPS)))
    def go_on(self, act: str, pick: int, mishap: tuple[str, str] | None) -> None:
        """Somebody does something, then an agent has its next round. One rule: in every story all of it happens."""
        self.seen[act] += 1
        getattr(self, act)(pick)
        self.nothing_is_doubled_or_untold()
        self.work(pick // len(ALL_ACTS), mishap)

    def work(self, pick: int, mishap: tuple[str, str] | None) -> None:
        """An agent's next round, and what happens to it meanwhile."""
        self.at_work = self.any_board(pick)
        self.at_work.client.mishap = mishap
        had_work = self.at_work.turn()
        self.seen["worked" if had_work else "found no work"] += 1
        if mishap and self.at_work.client.mishap is None:
            self.seen[" at ".join(reversed(mishap))] += 1
        self.at_work.client.mishap = None

    def happen(self, what: str) -> None:
        """In the middle of an agent's work."""
        assert self.at_work is not None
        if what == "quarantined":
            self.farm.http.post(f"/devices/{self.at_work.device_id}/quarantine", json={"reason": "r"})
        elif what == "lease over":
            self.let_time_pass(90.0)
            self.sweep()
        else:
            for run in self.farm.runs():
                if run["device_id"] == self.at_work.device_id and run["state"] in OPEN:
                    self.farm.http.post(f"/runs/{run['id']}/cancel")

    def restart(self, pick: int) -> None:
        self.any_board(pick).start()

    def release(self, pick: int) -> None:
        self.farm.http.post(f"/devices/{self.any_board(pick).device_id}/release", json={"reason": "r"})

    def cancel(self, pick: int) -> None:
        self.farm.http.post(f"/runs/{list(self.runs)[pick % len(self.runs)]}/cancel")

    def wait(self, pick: int) -> None:
        self.let_time_pass(JUMPS_S[pick % len(JUMPS_S)])

    def let_time_pass(self, seconds: float) -> None:
        with self.farm.farm.database.transaction() as session:
            let_time_pass(session, seconds)

    def sweep(self, _: int = 0) -> None:
        sweep(self.farm.farm)

    @invariant()
    def nothing_is_doubled_or_untold(self) -> None:
        if not hasattr(self, "runs"):
            return
        with self.farm.farm.database.read() as session:
            runs, attempts, results, told = rows_of(session)
        assert {run.id for run in runs.values() if not run.is_canary} == set(self.runs)
        live = [one for one in attempts if one.state in ("leased", "running")]
        for whose in ("run_id", "device_id"):
            assert max(Counter(getattr(one, whose) for one in live).values(), default=0) <= 1
        recorded = Counter(one.run_id for one in results if one.state == "recorded")
        for run_id, kind in self.runs.items():
            run = runs[run_id]
            check_history(states.RUN, told[run_id], run.state)
            assert recorded[run_id] <= 1
            assert run.state != "succeeded" or (kind, recorded[run_id]) == ("normal", 1)
        for one in results:
            if one.report["outcome"]["state"] == "succeeded":
                self.check_losses(one.report["losses"])

    def check_losses(self, losses: list[float]) -> None:
        assert len(losses) == STEPS
        assert all(abs(found - wanted) < 1e-9 for found, wanted in zip(losses, LOSSES, strict=True)), losses

    def teardown(self) -> None:
        """All is well again: every run ends, and no agent keeps a result that the farm has not had."""
        if not hasattr(self, "runs"):
            return
        for turn in range(ALL_WELL_TURNS):
            if not [one for one in self.farm.runs() if one["id"] in self.runs and one["state"] in OPEN]:
                break
            board = self.boards[turn % len(self.boards)]
            self.release(turn)
            board.turn()
            self.let_time_pass(90.0 if turn < ALL_WELL_TURNS / 2 else 4000.0)
            self.sweep()
        self.nothing_is_doubled_or_untold()
        for run in self.farm.runs():
            assert run["id"] not in self.runs or run["state"] not in OPEN, run
            self.seen[f"{self.runs.get(run['id'], 'canary')} {run['state']}"] += 1
        for board in self.boards:
            board.turn()
            assert board.spool.pending() == [], "every result has come"
