"""Every behaviour at a real server: what the farm concludes, who suffers, and the way back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sample import sample
from tests.service.board import Board
from tests.service.postgres import running_postgres
from tests.thorough.hostile_devices.behaviours import ANSWERS, BEHAVIOURS, Behaviour
from tests.thorough.hostile_devices.scene import STEPS, Scene, measurement, right, scene

pytestmark = pytest.mark.xdist_group("hostile-devices")


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest, loopback: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder: Path = tmp_path_factory.mktemp(f"hostile-{request.param}")
    if request.param == "sqlite":
        with scene(folder, "") as opened:
            yield opened
        return
    with running_postgres() as server, scene(folder, server.make_database()) as opened:
        yield opened


KEPT = {
    "sqlite": (
        "clock-ahead",
        "disk-full",
        "goes-silent",
        "always-noisy",
        "energy-beyond-the-rails",
        "contradicts-its-own-isolation",
        "median-not-of-its-samples",
        "replays-its-last-report",
        "speaks-nonsense",
        "takes-anothers-work",
        "enrols-with-anothers-key",
    ),
    "postgresql": ("restarts-in-the-middle", "negative-time", "doubles-every-message", "names-weights-it-never-sent"),
}
"""One of each kind, on the one database or the other."""
CASES = sample(
    (pytest.param(kind, behaviour, id=f"{kind}-{behaviour.name}") for kind in KEPT for behaviour in BEHAVIOURS),
    {f"{kind}-{name}" for kind, names in KEPT.items() for name in names},
)


@pytest.mark.parametrize(("stage", "behaviour"), CASES, indirect=["stage"])
def test_what_the_farm_concludes(stage: Scene, behaviour: Behaviour) -> None:
    digest = stage.farm.bundle(os.urandom(8))
    bad, good = stage.boards(behaviour.name)
    runs = [str(stage.farm.run(bundle=digest, steps=STEPS)["id"]) for _ in range(behaviour.runs)]
    play(stage, behaviour, bad, good)
    check_honest(stage, runs, good)
    check_bad(stage, behaviour, runs, bad)
    if behaviour.comes_back == "clock":
        bad.clock_off_s = 0.0
    if behaviour.comes_back:
        mended(stage, behaviour, digest, bad)


def play(stage: Scene, behaviour: Behaviour, bad: Board, good: Board) -> None:
    """Both ask in turns until neither gets any."""
    for _ in range(60):
        had = behaviour.turn(stage, bad, good)
        work = good.lease()
        if work is not None:
            good.heartbeat(work)
            assert good.report(work, measurement=measurement()).status_code == 200
        if not had and work is None:
            return
    raise AssertionError("the boards never ran out of work")


def check_honest(stage: Scene, runs: list[str], good: Board) -> None:
    """Every run came to its end, and nothing is said of the honest board."""
    shown = [stage.farm.show(run) for run in runs]
    assert [one["state"] for one in shown] == ["succeeded"] * len(runs)
    device = stage.device(good)
    assert (device["state"], device["strikes"], device["marks"]) == ("active", 0, [])


def check_bad(stage: Scene, behaviour: Behaviour, runs: list[str], bad: Board) -> None:
    device, tries = stage.device(bad), stage.tries(bad, runs)
    assert device["state"] == behaviour.state, device["history"]
    assert len(tries) <= behaviour.most_tries
    codes = {one["code"] for one in tries if one["code"]}
    assert codes == ({behaviour.code} if behaviour.code else set())
    assert stage.marks(bad).keys() == behaviour.marks
    said = f"{device['state_reason']} {stage.marks(bad)}"
    assert behaviour.message in said, said
    assert (behaviour.answer in ANSWERS.get(bad.device_id, [])) == bool(behaviour.answer), ANSWERS.get(bad.device_id)
    won = [run for run in map(stage.farm.show, runs) if run["device_id"] == bad.device_id]
    if "energy" in behaviour.name:
        assert {run["summary"]["energy_per_step_mj"] for run in won} <= {None}, "what cannot be counts for nothing"


def mended(stage: Scene, behaviour: Behaviour, digest: str, bad: Board) -> None:
    """It comes back by what shows that it works, and not by asking; then it works like any other."""
    if behaviour.lies_again:
        lie = stage.canary(bad)
        other = tuple(2 * loss for loss in right(lie))
        assert bad.report(lie, losses=other).status_code == 200
        assert stage.device(bad)["state"] == "quarantined", "a canary that is wrong brings nobody back"
    if behaviour.comes_back == "canary":
        work = stage.canary(bad)
        assert bad.report(work, losses=right(work)).status_code == 200
    run = str(stage.farm.run(bundle=digest, device=bad.device_id, steps=STEPS)["id"])
    while (work_again := bad.lease()) is not None:
        assert bad.report(work_again, measurement=measurement()).status_code == 200
    device = stage.device(bad)
    assert (device["state"], device["strikes"]) == ("active", 0)
    assert stage.farm.show(run)["state"] == "succeeded"
