"""A real server on a real database, an honest board, and boards that are broken or lie, all over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from sqlalchemy import select

from device_agents import wire as p
from device_agents.measure.measurement import measure
from service.boards.canary import sending
from service.boards.canary.building import HEALTH
from service.devices import canary_reference as reference
from service.devices.canary_verdict import SAMPLES
from service.store.database.models import Job
from tests.agents.live_farm import live_farm
from tests.service.board import Board
from tests.service.client import Client
from tests.service.farms import RecordingQueue, TestFarm
from tests.waiting import until

STEPS = 20
PAUSE_S = 0.1
"""Before a canary, and between two looks for its bundle."""
SAMPLES_US = (1000.0, 1010.0, 990.0, 1005.0)


@dataclass
class Scene:
    """One farm; each behaviour brings its own boards."""

    farm: TestFarm
    count: int = 0

    def boards(self, name: str) -> tuple[Board, Board]:
        """A bad one and an honest one that nobody has heard of."""
        self.count += 1
        bad, good = (self.farm.board(name=f"{who} {self.count} {name}") for who in ("bad", "good"))
        for board in (bad, good):
            board.clock_off_s = 0.0
        return bad, good

    def token(self) -> str:
        """Good for one more board."""
        return str(self.farm.http.post("/devices/enrolment-tokens", json={}).json()["token"])

    def device(self, board: Board) -> dict[str, Any]:
        return dict(self.farm.http.get(f"/devices/{board.device_id}").json())

    def marks(self, board: Board) -> dict[str, str]:
        return {mark["code"]: mark["message"] for mark in self.device(board)["marks"]}

    def tries(self, board: Board, runs: list[str]) -> list[dict[str, Any]]:
        """All attempts of the runs on the board."""
        return [one for run in runs for one in self.farm.show(run)["tries"] if one["device_id"] == board.device_id]

    def build_canary(self) -> None:
        """A worker's part: nothing but the canary's bundle is ever asked for here."""
        with self.farm.farm.database.read() as session:
            waiting = session.scalar(select(Job.id).where(Job.model_name == HEALTH.name, Job.state == "queued"))
        if waiting is not None:
            self.farm.work_off(waiting, fields={"batch": SAMPLES})

    def canary(self, board: Board) -> p.Assignment:
        """The board asks and asks, and gets its canary run."""
        found: list[p.Assignment] = []

        def is_given() -> bool:
            self.build_canary()
            work = board.lease()
            found.extend([work] if work is not None else [])
            return bool(found)

        until(is_given)
        return found[0]


@contextmanager
def scene(folder: Path, database_url: str) -> Iterator[Scene]:
    """Served over a socket, swept by itself, with canaries that come soon."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as opened:
        patch.setattr(sending, "COMPILE_PAUSE_S", PAUSE_S)
        live = opened.enter_context(
            live_farm(folder, database_url=database_url, canary_s=PAUSE_S, compiler_version="test")
        )
        anonymous = opened.enter_context(httpx.Client(base_url=live.url, trust_env=False, timeout=30))
        yield Scene(TestFarm(live.farm, cast(Client, live.http), RecordingQueue(), cast(Client, anonymous)))


def measurement(*samples_us: float, batch: int = 8, **lies: Any) -> p.Measurement:
    """Of one block; true to its samples, but for `lies`."""
    made = measure([p.Block(samples_us or SAMPLES_US)], batch=batch, warmup_steps=3, threads=2)
    return p.Measurement(**{**{name: getattr(made, name) for name in made.__dataclass_fields__}, **lies})


def right(work: p.Assignment) -> tuple[float, ...]:
    """What an honest board finds in a canary run."""
    return tuple(reference.losses(work.settings.seed))
