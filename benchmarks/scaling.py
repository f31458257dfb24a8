"""How our step scales: with threads, with the batch, and with the depth of what is trained."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.models import WORKLOADS
from benchmarks.plot import Line, line_chart
from benchmarks.prepare import Prepared, plan_of, prepare
from benchmarks.processes import started, take_turns
from benchmarks.results import keep
from benchmarks.sides import Side, ours
from compiler.spec.documents import SparsePlan

THREADED = ("mobilenet_v2_b8", "resnet50_b4", "distilbert_b4")
IMAGE_NET = "mobilenet_v2_b8"
BATCHES = (1, 2, 4, 8, 16, 32)
BLOCKS = 17
DEPTHS = (0, 1, 3, 5, 7, 10, 13, 17)
"""Numbers of blocks of MobileNetV2 that train, from the end; the head and the classifier always do."""


@dataclass(frozen=True)
class Scaling:
    """Median milliseconds of a step. `threads`: workload -> threads -> ms; `batch`: plan -> batch -> ms; `depth`."""

    threads: Mapping[str, Mapping[int, float]]
    batch: Mapping[str, Mapping[int, float]]
    depth: Mapping[int, float]


def measure(*, threads: int, rounds: int, steps: int) -> Scaling:
    """Build every point, measure the points of a curve in turns."""
    by_threads = {}
    for name in THREADED:
        prepared = prepare(name, WORKLOADS[name])
        batch = prepared.workload.batch
        plan = plan_of(prepared.workload.model, "full")
        sides = {count: ours(prepared, plan, count, batch) for count in range(1, threads + 1)}
        by_threads[name] = _medians(f"{name} threads", prepared, sides, rounds, steps)
    prepared = prepare(IMAGE_NET, WORKLOADS[IMAGE_NET])
    by_batch = {}
    for plan_name in ("full", "sparse"):
        plan = plan_of(prepared.workload.model, plan_name)
        sides = {batch: ours(prepared, plan, threads, batch) for batch in BATCHES}
        by_batch[plan_name] = _medians(f"{plan_name} batch", prepared, sides, rounds, steps)
    sides = {depth: ours(prepared, last_blocks(depth), threads, prepared.workload.batch) for depth in DEPTHS}
    by_depth = _medians("depth", prepared, sides, rounds, steps)
    return Scaling(by_threads, by_batch, by_depth)


def last_blocks(count: int) -> SparsePlan:
    """Train all of the last `count` blocks of MobileNetV2, the head and the classifier; the stem too if all do."""
    patterns = [f"blocks.{BLOCKS - 1 - i}.*" for i in range(count)] + ["head.*", "classifier.*"]
    if count == BLOCKS:
        patterns.append("stem.*")
    return SparsePlan.parse({"name": f"last-{count}", "update": [{"parameters": patterns}]})


def _medians(what: str, prepared: Prepared, sides: Mapping[int, Side], rounds: int, steps: int) -> dict[int, float]:
    found: dict[int, list[float]] = {key: [] for key in sides}
    with ExitStack() as stack:
        logs = prepared.folder / "logs"
        running = {key: stack.enter_context(started(side, logs / f"{what}-{key}.log")) for key, side in sides.items()}
        keys = {id(process): key for key, process in running.items()}
        for _, process, step_ms in take_turns(list(running.values()), rounds, steps):
            found[keys[id(process)]].append(statistics.median(step_ms))
    medians = {key: statistics.median(values) for key, values in found.items()}
    print(f"  {what}: " + ", ".join(f"{key}: {ms:.1f} ms" for key, ms in medians.items()), flush=True)
    return medians


def save(found: Scaling, path: Path) -> None:
    """Write the figures as JSON."""
    keep({**asdict(found), "machine": describe()}, path)


def load(path: Path) -> Scaling:
    """Read what `save` wrote."""
    body: dict[str, Any] = json.loads(path.read_text())
    return Scaling(
        {name: _keyed(values) for name, values in body["threads"].items()},
        {name: _keyed(values) for name, values in body["batch"].items()},
        _keyed(body["depth"]),
    )


def _keyed(values: Mapping[str, float]) -> dict[int, float]:
    return {int(key): ms for key, ms in values.items()}


def batch_plot(found: Scaling) -> str:
    """Milliseconds per sample against the batch."""
    lines = [
        Line(plan, [(float(batch), ms / batch) for batch, ms in values.items()]) for plan, values in found.batch.items()
    ]
    return line_chart(lines, title="MobileNetV2, 224 px: cost per sample", x="batch", y="ms per sample", log2_x=True)


def depth_plot(found: Scaling) -> str:
    """Milliseconds per step against the number of trained blocks."""
    points: Sequence[tuple[float, float]] = [(float(depth), ms) for depth, ms in found.depth.items()]
    title = "MobileNetV2 b8, 224 px: cost against depth"
    return line_chart([Line("ours", points)], title=title, x="last blocks trained (of 17)", y="ms per step")
