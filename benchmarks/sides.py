"""The two sides of a comparison: a compiled bundle, and PyTorch eager on the same ONNX weights and data."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from compiler.api import compile_training
from compiler.spec import SparsePlan, TrainingSpec
from examples.models import MODELS

WARMUP_STEPS = 3
CLASSES = 1000
LEARNING_RATE, MOMENTUM = 0.001, 0.9
PLANS_FOLDER = Path(__file__).parent.parent / "examples" / "plans"
KEEP_FREED_MEMORY = {
    name: str(1 << 34) for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_")
}
"""glibc settings that spare PyTorch a page fault per reused byte; the fair setting for it."""


@dataclass(frozen=True)
class Measurement:
    """One process: time of each timed step, loss of the last, peak resident bytes."""

    step_ms: list[float]
    loss: float
    peak_rss_bytes: int

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Side:
    """Something that trains: `run(steps)` measures that many steps in a fresh process."""

    name: str
    run: Callable[[int], Measurement]


def plan_of(name: str) -> SparsePlan:
    """The example plan of that name for MobileNetV2."""
    return SparsePlan.parse((PLANS_FOLDER / f"mobilenet_v2-{name}.yaml").read_text())


def workload(batch: int, resolution: int) -> tuple[bytes, Path]:
    """The model's bytes and a folder with one batch of seeded data."""
    folder = Path(tempfile.mkdtemp(prefix="pockfarm-bench-"))
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", rng.normal(size=(batch, 3, resolution, resolution)).astype(np.float32))
    np.save(folder / "y.npy", rng.integers(0, CLASSES, batch))
    return MODELS["mobilenet_v2"](resolution=resolution, classes=CLASSES), folder


def native_target() -> str:
    """The widest x86-64 target that this machine runs."""
    return "x86-64-v4" if "avx512vl" in Path("/proc/cpuinfo").read_text() else "x86-64-v3"


def ours(plan: str, batch: int, resolution: int) -> Side:
    """Compile the step and measure its binary."""
    model, folder = workload(batch, resolution)
    threads = os.cpu_count() or 1
    optimizer = {"kind": "sgd", "learning_rate": LEARNING_RATE, "momentum": MOMENTUM}
    spec = TrainingSpec.parse({"batch": batch, "threads": threads, "optimizer": optimizer})
    cache = Path(".cache/kernels")
    cache.mkdir(parents=True, exist_ok=True)
    bundle = compile_training(model, plan=plan_of(plan), spec=spec, target=native_target(), cache_dir=cache)
    with tarfile.open(fileobj=io.BytesIO(bundle.data)) as archive:
        archive.extractall(folder, filter="data")
    command = [
        str(folder / "bin/step"),
        "train",
        "--weights",
        str(folder / "weights.safetensors"),
        "--order",
        "sequential",
    ]
    command += ["--input", f"input={folder / 'x.npy'}", "--labels", str(folder / "y.npy")]

    def run(steps: int) -> Measurement:
        done = subprocess.run(
            [*command, "--steps", str(steps + WARMUP_STEPS)], capture_output=True, text=True, check=True
        )
        events = [json.loads(line) for line in done.stdout.splitlines()]
        timed = [event for event in events if event["event"] == "step"][WARMUP_STEPS:]
        peak = next(event["peak_rss_bytes"] for event in events if event["event"] == "done")
        return Measurement([event["us"] / 1e3 for event in timed], timed[-1]["loss"], peak)

    return Side(f"PockFarm {plan}", run)


def pytorch(plan: str, batch: int, resolution: int, *, tuned: bool) -> Side:
    """PyTorch eager, channels-last, fused SGD; `tuned` tells glibc to keep freed memory."""
    model, folder = workload(batch, resolution)
    (folder / "model.onnx").write_bytes(model)
    environment = {**os.environ, **(KEEP_FREED_MEMORY if tuned else {})}

    def run(steps: int) -> Measurement:
        command = [sys.executable, "-m", "benchmarks.torch_side", str(folder), plan, str(steps), str(WARMUP_STEPS)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return Measurement(**json.loads(done.stdout.splitlines()[-1]))

    return Side(f"PyTorch eager channels-last{', tuned malloc' if tuned else ''}", run)
