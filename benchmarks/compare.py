"""Compares all sides on one workload and plan, and writes what was found as JSON."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environments import EnvironmentFailed
from benchmarks.prepare import Prepared
from benchmarks.processes import RunningSide, SideFailed, started, take_turns
from benchmarks.ratios import ratio_of_rounds
from benchmarks.results import keep
from benchmarks.sides import COMPARED_LOSSES, OURS, OURS_BF16, VARIANTS, has_side, side_of
from compiler.errors import CompileError

LOSS_TOLERANCE = 1e-4
"""Relative; float32 in another order of summation differs by 1e-6 here, another update rule by 1e-3."""
HALF_LOSS_TOLERANCE = 0.05
"""Of sides in half precision, whose numbers have 8 bits: it shows a wrong loss or a step that diverges, no more."""
SLOW = 3.0
"""A side that takes so many times as long as the fastest gets one turn: more would tell nothing new."""


@dataclass
class SideResult:
    """What one side did. `rounds_ms[r]`: milliseconds of each timed step of round r. `error`: why it did not run."""

    name: str
    rounds_ms: list[list[float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    loss_difference: float | None = None
    """Largest relative difference from our losses; None if there is nothing to compare."""
    peak_rss_bytes: int = 0
    start_ms: float = 0.0
    build_s: float = 0.0
    flops: int = 0
    """Floating-point operations of a step of ours; 0 for the others, who are shown to do the same by their losses."""
    state_bytes: int = 0
    """Weights and optimizer state of ours, which every side must hold; 0 for the others."""
    error: str = ""

    @property
    def median_ms(self) -> float:
        """Median of every timed step."""
        return statistics.median([ms for one in self.rounds_ms for ms in one])

    def quartiles_ms(self) -> tuple[float, float]:
        """First and third quartile of every timed step."""
        low, high = np.percentile([ms for one in self.rounds_ms for ms in one], (25, 75))
        return float(low), float(high)


@dataclass
class Comparison:
    """All sides of one workload and plan."""

    workload: str
    plan: str
    batch: int
    threads: int
    sides: list[SideResult]
    machine: Mapping[str, object]
    finished_at: str = ""

    def side(self, name: str) -> SideResult | None:
        """The side of that name, if it ran."""
        return next((side for side in self.sides if side.name == name and side.rounds_ms), None)

    def others(self) -> list[SideResult]:
        """The framework variants that ran, in f32."""
        return [side for side in self.sides if _compute(side.name) == "f32" and side.rounds_ms]

    def halves(self) -> list[SideResult]:
        """The framework variants that ran in half precision."""
        return [side for side in self.sides if _compute(side.name) == "bf16" and side.rounds_ms]

    def fastest_other(self) -> SideResult | None:
        """The framework variant with the smallest median."""
        return min(self.others(), key=lambda side: side.median_ms, default=None)

    def differing(self) -> list[SideResult]:
        """Sides whose losses show that they did other work than we did."""
        return [side for side in self.sides if (side.loss_difference or 0.0) > _tolerance(side.name)]


def _compute(name: str) -> str:
    """What a framework's variant computes in; nothing for a side of ours."""
    return VARIANTS[name].compute if name in VARIANTS else ""


def _tolerance(name: str) -> float:
    return HALF_LOSS_TOLERANCE if name == OURS_BF16 or _compute(name) == "bf16" else LOSS_TOLERANCE


def ratio_of(slow: SideResult, fast: SideResult) -> tuple[float, float, float]:
    """(median, low, high) of slow / fast over the rounds that both took part in, each round a pair of medians.

    The interval is a 95% bootstrap over the rounds.
    """
    return ratio_of_rounds(slow.rounds_ms, fast.rounds_ms)


def compare(
    prepared: Prepared,
    plan: str,
    names: Sequence[str],
    *,
    rounds: int,
    steps: int,
    threads: int,
    machine: Mapping[str, object],
) -> Comparison:
    """Start every side, let them take turns, compare their losses."""
    found = Comparison(prepared.name, plan, prepared.workload.batch, threads, [], machine)
    with ExitStack() as stack:
        running = []
        for name in (name for name in names if has_side(prepared, plan, name)):
            result = SideResult(name)
            found.sides.append(result)
            process = _start(stack, prepared, plan, result, threads)
            if process is not None:
                running.append((process, result))
        measure(running, rounds, steps)
    _compare_losses(found)
    found.finished_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return found


def _start(stack: ExitStack, prepared: Prepared, plan: str, result: SideResult, threads: int) -> RunningSide | None:
    """The started side, or None with the reason in the result: a framework that fails is a finding."""
    try:
        side = side_of(prepared, plan, result.name, threads)
        log = prepared.folder / "logs" / f"{plan}-{result.name.replace(' ', '-')}.log"
        process = stack.enter_context(started(side, log))
    except (SideFailed, EnvironmentFailed, CompileError) as problem:
        result.error = str(problem)
        print(f"  {result.name:<24} does not run: {problem}", flush=True)
        return None
    result.start_ms, result.build_s = process.start_ms, side.build_s
    result.flops, result.state_bytes = side.flops, side.state_bytes
    print(f"  {result.name:<24} first step after {process.start_ms:9.0f} ms", flush=True)
    return process


def measure(running: Sequence[tuple[RunningSide, SideResult]], rounds: int, steps: int) -> None:
    """One round of all, then the others of those that are not slow."""
    _take_turns(running, 1, steps)
    slow_ms = SLOW * min((result.median_ms for _, result in running), default=0.0)
    _take_turns([one for one in running if one[1].median_ms <= slow_ms], rounds - 1, steps)
    for process, result in running:
        result.losses, result.peak_rss_bytes = process.losses[:10], process.peak_rss_bytes()


def _take_turns(running: Sequence[tuple[RunningSide, SideResult]], rounds: int, steps: int) -> None:
    results = {id(process): result for process, result in running}
    for _, process, step_ms in take_turns([process for process, _ in running], rounds, steps):
        result = results[id(process)]
        result.rounds_ms.append(step_ms)
        print(f"  turn {len(result.rounds_ms)} {result.name:<24} {statistics.median(step_ms):9.2f} ms", flush=True)


def _compare_losses(found: Comparison) -> None:
    mine = found.side(OURS)
    for side in found.sides:
        if mine is None or side.name not in (*VARIANTS, OURS_BF16) or not side.losses:
            continue
        count = VARIANTS[side.name].compared_losses if side.name in VARIANTS else COMPARED_LOSSES
        pairs = zip(side.losses[:count], mine.losses[:count], strict=False)
        side.loss_difference = max(abs(theirs - own) / max(abs(own), 1e-6) for theirs, own in pairs)


def save(found: Comparison, path: Path) -> None:
    """Write a comparison as JSON."""
    keep(asdict(found), path)


def load(path: Path) -> Comparison:
    """Read a comparison."""
    body: dict[str, Any] = json.loads(path.read_text())
    sides = [SideResult(**side) for side in body.pop("sides")]
    return Comparison(sides=sides, **body)


def table(found: Comparison) -> str:
    """A plain text table of one comparison."""
    mine = found.side(OURS)
    lines = [
        f"{found.workload} {found.plan}",
        f"{'side':<24}{'median ms':>10}{'quartiles':>18}{'samples/s':>11}{'peak MB':>9}{'start s':>9}{'/ ours':>26}",
    ]
    for side in found.sides:
        if not side.rounds_ms:
            lines.append(f"{side.name:<24}does not run: {side.error}")
            continue
        low, high = side.quartiles_ms()
        ratio = ""
        if mine is not None and side is not mine:
            middle, least, most = ratio_of(side, mine)
            ratio = f"{middle:.2f}x [{least:.2f}, {most:.2f}]"
        speed = found.batch / side.median_ms * 1e3
        times = f"{side.median_ms:>10.1f}{f'{low:.1f}-{high:.1f}':>18}{speed:>11.1f}"
        lines.append(f"{side.name:<24}{times}{side.peak_rss_bytes / 1e6:>9.0f}{side.start_ms / 1e3:>9.2f}{ratio:>26}")
    for side in found.differing():
        lines.append(f"DIFFERENT WORK: losses of {side.name} differ from ours by {side.loss_difference:.2g}")
    return "\n".join(lines)
