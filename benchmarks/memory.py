"""`make memory`: what steps need in memory, planned and measured, and what less of it costs in arithmetic.

    python -m benchmarks.memory                 the table, the curves, and MCUNet three ways; builds each step
    python -m benchmarks.memory --planned       nothing is built or run

Planned: the manifest's `peak_bytes` (arena, weights, optimizer state). Bound: the same with the most bytes of the arena
that are alive at one call in place of the arena. Measured: `peak_rss_bytes` of the `done` event of `step profile`, less
what a binary takes that does nothing: the same event of a step of a few kilobytes, less what that one has planned.
FLOPs: of the training program, by those of the same model and plan without a limit on memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from benchmarks.mcunet_5fps import GOALS, PUBLISHED_KB, three_ways
from compiler.api import BuildSettings, compile_training
from compiler.bundle.content import chunks_of
from compiler.cache_folder import cache_folder
from compiler.errors import DoesNotFit
from compiler.pipeline import walk
from compiler.placement.place import Way
from compiler.program.program import MemoryPlan, Program
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from examples.models import MODELS
from tests.kernel_harness.machine import native_target

HALF = 0.5
BUDGETS = (None, 0.75, HALF)
"""Parts of what the step needs without a limit."""
MOST_MORE_FLOPS = 1.25
ENCODER = {"tokens": 1000, "positions": 128, "width": 256, "heads": 8, "layers": 6}
BOTTLENECKS = """
name: sparse
update:
  - parameters: ["blocks.1[0-6].expand.weight", "blocks.1[0-6].*.bias", "classifier.*"]
"""
HEAD = ("model", "plan", "budget", "planned MB", "bound MB", "gap", "RSS MB", "FLOPs")


@dataclass(frozen=True)
class Workload:
    """A model at a batch size, with a plan; `budgets` are parts of what it needs without a limit."""

    name: str
    model: Callable[[], bytes]
    plan: str
    batch: int
    budgets: Sequence[float | None] = BUDGETS


WORKLOADS = (
    Workload("MobileNetV2, batch 8", MODELS["mobilenet_v2"], "full", 8),
    Workload("MobileNetV2, batch 8", MODELS["mobilenet_v2"], BOTTLENECKS, 8, (None,)),
    Workload("MobileNetV2, batch 8", MODELS["mobilenet_v2"], "bias-only", 8, (None,)),
    Workload("6-layer encoder, batch 8", partial(MODELS["transformer_encoder"], **ENCODER), "full", 8),
    Workload("6-layer encoder, batch 8", partial(MODELS["transformer_encoder"], **ENCODER), "bias-only", 8, (None,)),
    Workload("ResNet-50, batch 4", MODELS["resnet50"], "full", 4),
    Workload("ResNet-50, batch 4", MODELS["resnet50"], "bias-only", 4, (None,)),
)


@dataclass(frozen=True)
class Planned:
    """A step as it was planned."""

    memory: MemoryPlan
    flops: int
    ways: tuple[Way, ...] = ()

    @property
    def bound_bytes(self) -> int:
        """With an arena that has nothing but what is alive."""
        return self.memory.needed_bytes - self.memory.arena_bytes + self.memory.bound_bytes


def settings_of(workload: Workload, limit_bytes: int | None) -> BuildSettings:
    """On this machine, with SGD and momentum."""
    spec = {"batch": workload.batch, "threads": 2, "optimizer": {"kind": "sgd", "momentum": 0.9}}
    limit = {} if limit_bytes is None else {"memory_limit_bytes": limit_bytes}
    return BuildSettings(
        plan=SparsePlan.parse(workload.plan),
        spec=TrainingSpec.parse({**spec, **limit}),
        target=load(native_target()),
        cache_dir=cache_folder(),
    )


def planned(workload: Workload, limit_bytes: int | None) -> Planned:
    """The step up to its memory plan. Raises: DoesNotFit."""
    programs: tuple[Program, ...] = ()
    for stage in walk(workload.model(), settings_of(workload, limit_bytes)):
        if stage.name == "place" and isinstance(stage.product, tuple):
            programs = stage.product
        if stage.name == "memory" and isinstance(stage.product, MemoryPlan):
            flops = sum(call.flops for program in programs if program.name == "train" for call in program.calls)
            return Planned(stage.product, flops)
    raise AssertionError("a walk has a memory plan")


def peak_rss_bytes(workload: Workload, limit_bytes: int | None) -> int:
    """Of the built step's process, over three steps."""
    bundle = compile_training(workload.model(), settings_of(workload, limit_bytes))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "step.pfb").open("wb") as file:
            bundle.write_to(file)
        with tarfile.open(folder / "step.pfb") as archive:
            archive.extractall(folder, filter="data")
        command = [f"{folder}/bin/step", "profile", "--weights", f"{folder}/weights.safetensors", "--steps", "3"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return next(int(event["peak_rss_bytes"]) for event in events if event["event"] == "done")


def idle_bytes() -> int:
    """What a process takes that has next to nothing to do."""
    tiny = Workload("nothing", partial(MODELS["mlp"], features=8, hidden=8), "last-layer", 1)
    return peak_rss_bytes(tiny, None) - planned(tiny, None).memory.needed_bytes


def rows(workloads: Sequence[Workload], idle: int | None) -> Iterator[tuple[str, ...]]:
    """The table; nothing is measured without what an idle process takes."""
    for workload in workloads:
        whole = planned(workload, None)
        for budget in workload.budgets:
            limit_bytes = None if budget is None else int(budget * whole.memory.needed_bytes)
            plan = SparsePlan.parse(workload.plan).name
            named = (workload.name, plan, "none" if budget is None else f"{budget:.0%}")
            try:
                found = planned(workload, limit_bytes)
            except DoesNotFit as refusal:
                yield (*named, f"{refusal.needed_bytes / 1e6:.1f} at least", "", "", "", "")
                continue
            rss = "" if idle is None else f"{(peak_rss_bytes(workload, limit_bytes) - idle) / 1e6:.1f}"
            flops = f"x{found.flops / whole.flops:.3f}"
            sizes = (f"{size / 1e6:.1f}" for size in (found.memory.needed_bytes, found.bound_bytes))
            yield (*named, *sizes, f"{found.memory.gap:.2%}", rss, flops)


def mcunet_rows() -> Iterator[tuple[str, ...]]:
    """The ancestor's plan three ways, by bytes and beside what it measured."""
    ways = three_ways()
    whole = ways["full, updates last"].total_bytes
    published = {name: f"{size:,}" for name, size in PUBLISHED_KB.items()}
    for name, way in ways.items():
        goal = f"1/{GOALS[name]}" if name in GOALS else ""
        sizes = (way.forward_bytes, way.backward_bytes, way.arena_bytes, way.learning_bytes, way.total_bytes)
        backward = f"1/{ways['full, updates last'].backward_bytes / way.backward_bytes:.1f}"
        shares = (f"1/{whole / way.total_bytes:.1f}", goal, backward, published.get(name, ""))
        yield (name, *(f"{size / 1e3:,.0f}" for size in sizes), *shares)


MCUNET_HEAD: Sequence[str] = (
    "MCUNet-5fps, 128 px, batch 1",
    "alive forward KB",
    "alive backward KB",
    "arena KB",
    "learning KB",
    "in all KB",
    "by full, last",
    "goal",
    "backward alone",
    "published KB (int8)",
)


def curves(workloads: Sequence[Workload]) -> Iterator[tuple[str, ...]]:
    """Bytes against FLOPs of the workloads that have budgets, as their reports tell them."""
    for workload in workloads:
        if len(workload.budgets) > 1:
            report = _report(workload)
            for point in report["memory_curve"]:
                taken = "taken" if point["taken"] else ""
                needed = f"{int(point['needed_bytes']) / 1e6:.1f}"
                yield workload.name, needed, f"x{point['flops_ratio']:.3f}", taken, str(point["name"])


def _report(workload: Workload) -> Any:
    bundle = compile_training(workload.model(), settings_of(workload, None))
    return json.loads(b"".join(chunks_of(bundle.members["report.json"])))


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__.splitlines()[0])
    parser.add_argument("--planned", action="store_true", help="plan only: nothing is built or run")
    arguments = parser.parse_args()
    idle = None if arguments.planned else idle_bytes()
    print(table(HEAD, ()), flush=True)
    for row in rows(WORKLOADS, idle):  # each as it comes: a step takes minutes to build
        print("| " + " | ".join(row) + " |", flush=True)
    if idle is not None:
        print(f"\nA process that does nothing takes {idle / 1e6:.2f} MB, which the measured figures are less.\n")
        print(table(("model", "MB", "FLOPs", "", "way"), curves(WORKLOADS)))
    print()
    print(table(MCUNET_HEAD, mcunet_rows()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
