"""Real agents on boards that break and are mended: quarantined, and back by a canary that was really compiled."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from compiler.api import BuildSettings, compile_training
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from service.artefacts.bundles.archive import read_bundle
from service.artefacts.jobs import claims
from service.boards.canary import sending
from service.boards.canary.building import HEALTH
from service.store.database.models import Job
from tests.agents.conftest import ROOT
from tests.agents.live_farm import LiveFarm, live_farm
from tests.sample import sample
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.xdist_group("hostile-devices")
FLAG = "\nimport os, sys\nIS_BROKEN = lambda: os.path.exists(os.environ['BROKEN'])\n"
FAULTS = {
    "sandbox": (
        "launch.sandbox 3 times",
        """
import json, device_agents.agent
from device_agents.job.sandbox import Sandbox
real = Sandbox.command
def command(self, *arguments, **options):
    *words, plan = real(self, *arguments, **options)
    spoilt = {"cgroups": ["/nowhere/cgroup.procs"]} if IS_BROKEN() else {}
    return [*words, json.dumps({**json.loads(plan), **spoilt})]
Sandbox.command = command
""",
    ),
    "disk": (
        "device.disk 3 times",
        """
import collections, shutil
real = shutil.disk_usage
Usage = collections.namedtuple("Usage", "total used free")
shutil.disk_usage = lambda path: Usage(1 << 30, 1 << 30, 0) if IS_BROKEN() else real(path)
""",
    ),
    "clock": (
        "clock is 3,600 s ahead of the farm's",
        """
import time
real = time.time
time.time = lambda: real() + (3600.0 if IS_BROKEN() else 0.0)
""",
    ),
}
"""What the farm says of each, and lines that break a board while a file is there."""
MAIN = "\nfrom device_agents.agent import main; sys.exit(main())"
Start = Callable[[str, str], None]


@pytest.fixture
def farm(loopback: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveFarm]:
    monkeypatch.setattr(sending, "COMPILE_PAUSE_S", 0.5)
    with live_farm(tmp_path / "farm", canary_s=0.5) as running:
        yield running


@pytest.fixture
def start(farm: LiveFarm, tmp_path: Path) -> Iterator[Start]:
    agents: list[subprocess.Popen[bytes]] = []

    def act(name: str, fault: str) -> None:
        words = [sys.executable, "-c", FLAG + fault + MAIN, "--server", farm.url, "--state", str(tmp_path / name)]
        words += ["--name", name, "--run-as", str(os.geteuid()), "--isolation", "1", "--long-poll", "1"]
        words += ["--class", "x86-64"]
        variables = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "POCKFARM_ENROL_TOKEN": farm.token(),
            "BROKEN": str(tmp_path / "broken"),
        }
        with (tmp_path / f"{name}.log").open("ab") as log:
            agents.append(subprocess.Popen(words, cwd=ROOT, stderr=log, stdin=subprocess.DEVNULL, env=variables))

    yield act
    for agent in agents:
        agent.terminate()
        agent.wait(timeout=HANG_S)


def compile_canary(farm: LiveFarm) -> None:
    """A worker's part, by the real compiler."""
    with farm.farm.database.read() as session:
        waiting = session.scalar(select(Job.id).where(Job.model_name == HEALTH.name, Job.state == "queued"))
    if waiting is None:
        return
    with farm.farm.database.transaction() as session:
        claim = claims.claim(session, waiting, lease_s=300)
    assert claim is not None
    settings = BuildSettings(SparsePlan.parse("full"), TrainingSpec.parse(dict(HEALTH.spec)), load(claim.target))
    stream = io.BytesIO()
    compile_training(HEALTH.model, settings).write_to(stream)
    stored = farm.farm.storage.put(io.BytesIO(stream.getvalue()), limit_bytes=1 << 26)
    with farm.farm.storage.local(stored.digest) as path:
        content = read_bundle(path)
    with farm.farm.database.transaction() as session:
        claims.succeed(session, claim, stored, content)


@pytest.mark.parametrize("kind", sample(FAULTS, {"sandbox"}))
def test_a_board_breaks_is_quarantined_mended_and_comes_back(
    farm: LiveFarm, start: Start, tmp_path: Path, kind: str
) -> None:
    message, fault = FAULTS[kind]
    digest, broken = farm.keep_bundle(), tmp_path / "broken"
    start("bad", fault)
    first = farm.run(digest)
    until(lambda: farm.http.get(f"/runs/{first}").json()["state"] == "succeeded")
    broken.touch()
    runs = [farm.run(digest) for _ in range(5)]
    until(lambda: farm.device("bad")["state"] == "quarantined")
    assert message in farm.device("bad")["state_reason"]
    assert {farm.http.get(f"/runs/{run}").json()["state"] for run in runs} == {"queued"}, "no run ends of it"
    broken.unlink()

    def is_back() -> bool:
        compile_canary(farm)
        return bool(farm.device("bad")["state"] == "active")

    until(is_back)
    until(lambda: {farm.http.get(f"/runs/{run}").json()["state"] for run in runs} == {"succeeded"})
