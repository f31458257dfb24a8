"""One campaign from the first process to the verdict."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.thorough.chaos import answers
from tests.thorough.chaos.campaign import Campaign, Log, Record
from tests.thorough.chaos.field import ROOT, Field, running_field
from tests.thorough.chaos.links import until
from tests.thorough.chaos.progress import watching
from tests.thorough.chaos.topology import Kind, Topology
from tests.thorough.chaos.verdict import Findings, judge, learned_of, quarantines
from tests.thorough.chaos.workload import Request, Workload

REST_WITHIN_S = 120.0
"""Nothing may be stuck for longer once the last fault is over."""


def play(
    kind: Kind,
    *,
    faults: int,
    seconds: float,
    rng: random.Random,
    say: Callable[[str], None],
    log: Path | None = None,
    only: str = "",
    is_long: bool = True,
    keep: Path | None = None,
    boards: int = 6,
    stopping: threading.Event | None = None,
    fewest: int = 0,
) -> tuple[Sequence[Record], Findings]:
    """Start a farm, disturb it until there are enough faults or `stopping` is set, let it come to rest, and judge.

    It goes on for up to as long again where there are not `fewest` faults in time.
    """
    stopping = stopping or threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="pf-chaos-log-") as scratch,
        running_field(kind, boards=boards, stopping=stopping) as field,
    ):
        try:
            disks = ", ".join(field.small_disks)
            say(f"the farm is up; disks that can be filled: {disks or 'none, for none may be mounted here'}")
            workload = Workload(field, make_key(field.topology), random.Random(rng.random()))
            undisturbed(field, workload)
            say("the undisturbed runs are done")
            workload.start()
            ends_at = time.monotonic() + seconds
            kept = Log(log or Path(scratch) / "log")
            campaign = Campaign(
                field, faults, ends_at, rng, kept, is_long, only, fewest=fewest, patience_s=seconds, say=say
            )
            with watching(field) as stillness:
                campaign.run()
                workload.finish()
                say("the last fault is over; waiting for the farm to come to rest")
                until(lambda: not workload.open(), REST_WITHIN_S, pause_s=1.0)
            findings = judge(field, workload, campaign.records, list(stillness.found.values()))
            for line in quarantines(field):
                say(line)
            earlier = kept.offenders()
            kept.judge(campaign.session, asdict(findings))
            return [*campaign.before, *campaign.records], findings.beside(earlier)
        finally:
            field.stopping.set()
            if keep is not None:
                _keep_logs(field, keep)


def undisturbed(field: Field, workload: Workload) -> None:
    """Runs whose weights later ones start from; they also show that the farm works."""
    _ends(workload, workload.compile_real(0), *(workload.train(label, 30) for label in (0, 3)))
    compiled, *trained = workload.requests
    workload.trained += [answers.learned(one.label, one.steps).weight for one in trained]
    job = field.job(compiled.id)
    if job is None or job.bundle_digest is None:
        raise RuntimeError("the real compile has failed")
    workload.real = job.bundle_digest
    _ends(workload, workload.train_real())
    workload.real_learned = learned_of(field, workload.requests[-1].id)


def _ends(workload: Workload, *requests: Request | None) -> None:
    """Raises: RuntimeError."""
    workload.requests += [one for one in requests if one is not None]
    if not until(lambda: not workload.open(), 120):
        raise RuntimeError("the farm does not do its work undisturbed")


def make_key(topology: Topology) -> str:
    """An operator's key, made beside the farm."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "POCKFARM_STATE": str(topology.state),
        "POCKFARM_DATABASE_URL": topology.database_url(),
    }
    words = [sys.executable, "-m", "service.admin", "create-key"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.splitlines()[-1]


def _keep_logs(field: Field, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    for log in (field.topology.path / "supervisor.log", *(field.topology.state / "logs").glob("*.log*")):
        shutil.copy(log, to)
