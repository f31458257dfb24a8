"""How long compiling takes as a user sees it: `pockfarm build` in a process of its own, its start included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.models import WORKLOADS
from benchmarks.prepare import plan_of, prepare
from benchmarks.sides import native_target, spec_of

CASES = (
    ("mobilenet_v2_b8", "full", "cold", 45.0),
    ("mobilenet_v2_b8", "sparse", "another plan", 5.0),
    ("mobilenet_v2_b8", "full", "again", None),
    ("bert_b2", "full", "cold", 90.0),
)
"""(workload, plan, what is compiled, the longest it should take in s). *cold* starts with an empty kernel cache."""


class BuildFailed(Exception):
    """A build ended without a bundle; the message is its last line."""


@dataclass(frozen=True)
class Compilation:
    """One build. `goal_s`: the longest it should take; None where there is no goal."""

    workload: str
    plan: str
    what: str
    seconds: float
    goal_s: float | None


def measure(threads: int) -> list[Compilation]:
    """Build every case in order. Raises: BuildFailed."""
    found = []
    with tempfile.TemporaryDirectory(prefix="pockfarm-bench-compiling-") as name:
        for workload, plan, what, goal_s in CASES:
            seconds = _build(workload, plan, threads, Path(name), cache=Path(name) / workload)
            found.append(Compilation(workload, plan, what, seconds, goal_s))
            print(f"  {workload} {plan}, {what}: {seconds:.1f} s", flush=True)
    return found


def _build(workload: str, plan: str, threads: int, folder: Path, *, cache: Path) -> float:
    """Seconds of one build. Raises: BuildFailed."""
    prepared = prepare(workload, WORKLOADS[workload])
    plan_file, spec_file = folder / "plan.json", folder / "spec.json"
    plan_file.write_text(plan_of(prepared.workload.model, plan).canonical_json())
    spec_file.write_text(spec_of(prepared, threads, prepared.workload.batch).canonical_json())
    command = [sys.executable, "-m", "pockfarm.cli", "build", str(prepared.onnx_path), "--no-tuning"]
    command += ["--plan", str(plan_file), "--spec", str(spec_file), "--target", native_target()]
    started = time.perf_counter()
    environment = {**os.environ, "POCKFARM_CACHE_DIR": str(cache)}
    command += ["--out", str(folder / "step.pfb")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise BuildFailed((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return seconds


def save(found: Sequence[Compilation], path: Path) -> None:
    """Write as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"builds": [asdict(one) for one in found], "machine": describe()}, indent=1))


def load(path: Path) -> list[Compilation]:
    """Read what `save` wrote."""
    return [Compilation(**one) for one in json.loads(path.read_text())["builds"]]
