"""One campaign from the first process to the verdict."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.chaos.campaign import Campaign, Record
from tests.chaos.field import ROOT, Field, running_field
from tests.chaos.links import until
from tests.chaos.topology import Kind, Topology
from tests.chaos.verdict import Findings, judge
from tests.chaos.workload import Workload

REST_WITHIN_S = 120.0
"""Nothing may be stuck for longer once the last fault is over."""


def play(
    kind: Kind, *, faults: int, seconds: float, rng: random.Random, say: Callable[[str], None], log: Path | None = None,
    only: str = "", is_long: bool = True, keep: Path | None = None,
) -> tuple[Sequence[Record], Findings]:  # fmt: skip
    """Start a farm, disturb it, let it come to rest, and judge."""
    with tempfile.TemporaryDirectory(prefix="pf-chaos-log-") as scratch, running_field(kind) as field:
        try:
            say("the farm is up")
            workload = Workload(field, make_key(field.topology), random.Random(rng.random()))
            undisturbed(field, workload)
            say("the undisturbed runs are done")
            workload.start()
            ends_at = time.monotonic() + seconds
            campaign = Campaign(field, faults, ends_at, rng, log or Path(scratch) / "log", is_long, only, say=say)
            campaign.run()
            workload.finish()
            say("the last fault is over; waiting for the farm to come to rest")
            until(lambda: not workload.open(), REST_WITHIN_S, pause_s=1.0)
            records = [*campaign.before, *campaign.records]
            return records, judge(field, workload, records)
        finally:
            field.stopping.set()
            if keep is not None:
                _keep_logs(field, keep)


def undisturbed(field: Field, workload: Workload) -> None:
    """Runs whose weights later ones start from; they also show that the farm works."""
    for label in (0, 3):
        request = workload.train(label, 30)
        assert request is not None
        workload.requests.append(request)
    if not until(lambda: not workload.open(), 120):
        raise RuntimeError("the farm does not do its work undisturbed")
    from tests.chaos import answers

    workload.trained += [answers.learned(one.label, one.steps).weight for one in workload.requests]


def make_key(topology: Topology) -> str:
    """An operator's key, made beside the farm."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "POCKFARM_STATE": str(topology.state),
                   "POCKFARM_DATABASE_URL": topology.database_url()}  # fmt: skip
    words = [sys.executable, "-m", "service.admin", "create-key"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.splitlines()[-1]


def _keep_logs(field: Field, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    for log in (field.topology.path / "supervisor.log", *(field.topology.state / "logs").glob("*.log*")):
        shutil.copy(log, to)
