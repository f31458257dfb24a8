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
from benchmarks.results import keep
from benchmarks.sides import native_target, spec_of
from compiler.cache_folder import LINKER, RUNTIMES, cache_folder
from compiler.codegen.linking.toolchain import ensure_library, runtime_objects
from compiler.spec.precision import Compute
from compiler.targets import CpuTarget, load_cpu

CASES: tuple[tuple[str, str, str, Compute, float | None], ...] = (
    ("mobilenet_v2_b8", "full", "cold", "f32", 30.0),
    ("mobilenet_v2_b8", "sparse", "another plan", "f32", 5.0),
    ("mobilenet_v2_b8", "full", "again", "f32", None),
    ("mobilenet_v2_b8", "full", "cold, bf16", "bf16", 30.0),
    ("mobilenet_v2_b8", "sparse", "another plan, bf16", "bf16", 5.0),
    ("bert_b2", "full", "cold", "f32", 90.0),
    ("bert_b2", "sparse", "another plan", "f32", 5.0),
)
"""(workload, plan, what is compiled, precision, the longest it should take in s). *cold* starts with no kernel."""


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
    processor_s: float = 0.0
    """Of the build and the processes it starts; 0: not measured."""


def measure(threads: int) -> list[Compilation]:
    """Build every case in order. Raises: BuildFailed."""
    found = []
    target = _board(native_target())
    ensure_library(target.zig_triple)
    runtime_objects(target.zig_triple, target.kind)
    with tempfile.TemporaryDirectory(prefix="pockfarm-bench-compiling-") as name:
        for workload, plan, what, compute, goal_s in CASES:
            cache = _cache(Path(name), f"{workload}-{compute}")
            seconds, processor_s = _build(workload, plan, compute, threads, Path(name), cache=cache)
            found.append(Compilation(workload, plan, what, seconds, goal_s, processor_s))
            print(f"  {workload} {plan}, {what}: {seconds:.1f} s, of the processor {processor_s:.1f} s", flush=True)
    return found


def _board(name: str) -> CpuTarget:
    return load_cpu(name)


def _cache(folder: Path, name: str) -> Path:
    """A cache without kernels, whose linker and runtime are this machine's."""
    cache = folder / name
    cache.mkdir(exist_ok=True)
    for room in (RUNTIMES, LINKER):
        if not (cache / room).exists():
            (cache / room).symlink_to((cache_folder() / room).resolve(), target_is_directory=True)
    return cache


def _build(
    workload: str, plan: str, compute: Compute, threads: int, folder: Path, *, cache: Path
) -> tuple[float, float]:
    """Seconds of one build: of the clock, and of processors. Raises: BuildFailed."""
    prepared = prepare(workload, WORKLOADS[workload])
    plan_file, spec_file = folder / "plan.json", folder / "spec.json"
    plan_file.write_text(plan_of(prepared.workload.model, plan).canonical_json())
    spec_file.write_text(spec_of(prepared, threads, prepared.workload.batch, compute).canonical_json())
    command = [sys.executable, "-m", "pockfarm.cli", "build", str(prepared.onnx_path), "--no-tuning"]
    command += ["--plan", str(plan_file), "--spec", str(spec_file), "--target", native_target(compute)]
    started, before = time.perf_counter(), _processor_s()
    environment = {**os.environ, "POCKFARM_CACHE_DIR": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as on most machines: modules are translated by the first start
    command += ["--out", str(folder / "step.pfb")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise BuildFailed((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return seconds, _processor_s() - before


def _processor_s() -> float:
    """Of the processes that this one started and that have ended, and of theirs."""
    used = os.times()
    return used.children_user + used.children_system


def save(found: Sequence[Compilation], path: Path) -> None:
    """Write as JSON."""
    keep({"builds": [asdict(one) for one in found], "machine": describe()}, path)


def load(path: Path) -> list[Compilation]:
    """Read what `save` wrote."""
    return [Compilation(**one) for one in json.loads(path.read_text())["builds"]]
