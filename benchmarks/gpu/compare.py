"""One comparison on a GPU: the sides start at once, then take turns; only one of them runs at a time.

Our time of a step is from the start of its graph to its loss on the host, each step by itself. PyTorch's is the mean of
a window of steps that waits for the device once, on a batch that lies on the device: the best that it can do.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from benchmarks.gpu.sides import OURS, SPARSE, GpuSide, Group
from benchmarks.processes import UNTIMED_AFTER_STOP, RunningSide, SideFailed, started
from benchmarks.ratios import ratio_of_rounds

SETTLE_S = 0.2
"""After a side is stopped: what it had queued on the device ends before another begins."""
WARMING = 5
"""One of so many parts of a turn is not counted: clocks rise."""
FEWEST, MOST = 3, 5000
"""Lines of a turn."""
Ratio = tuple[float, float, float]


@dataclass
class SideFound:
    """What one side did. `error`: why it did not run, or does not count."""

    name: str
    plan: str
    is_ours: bool
    rounds_ms: list[list[float]] = field(default_factory=list)
    wall_ms: list[float] = field(default_factory=list)
    """Of each turn, for a line: what a step takes with all that is around it, of ours its batch's copy too."""
    loss_error: float | None = None
    device_bytes: int = 0
    told: Mapping[str, object] = field(default_factory=dict)
    error: str = ""

    @property
    def median_ms(self) -> float:
        """Of every counted line."""
        return statistics.median([ms for one in self.rounds_ms for ms in one])

    @property
    def counts(self) -> bool:
        """Whether it ran, and did the same steps."""
        return bool(self.rounds_ms) and not self.error


@dataclass
class Comparison:
    """All sides of one group."""

    model: str
    batch: int
    precision: str
    gpu: Mapping[str, str]
    commit: str
    sides: list[SideFound] = field(default_factory=list)
    finished_at: str = ""

    def side(self, name: str) -> SideFound | None:
        """The side of that name, if it counts."""
        return next((one for one in self.sides if one.name == name and one.counts), None)

    def fastest_other(self, plan: str) -> SideFound | None:
        """The fastest of PyTorch's sides."""
        return min(self._others(plan), key=lambda one: one.median_ms, default=None)

    def least_bytes_of_others(self, plan: str) -> int | None:
        """The least memory that any of PyTorch's sides needs."""
        return min((one.device_bytes for one in self._others(plan) if one.device_bytes), default=None)

    def ratio(self, slow: SideFound | None, fast: SideFound | None) -> Ratio | None:
        """Times of one over another's, with its interval; nothing if one of them does not count."""
        return ratio_of_rounds(slow.rounds_ms, fast.rounds_ms) if slow and fast else None

    def ours_failed(self) -> list[SideFound]:
        """Sides of ours that do not count."""
        return [one for one in self.sides if one.name in (OURS, SPARSE) and not one.counts]

    def _others(self, plan: str) -> list[SideFound]:
        return [one for one in self.sides if not one.is_ours and one.plan == plan and one.counts]

    def save(self, path: Path) -> None:
        """As JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Comparison:
        """The inverse."""
        body: dict[str, Any] = json.loads(path.read_text())
        return cls(sides=[SideFound(**one) for one in body.pop("sides")], **body)


def compare(
    group: Group,
    sides: Sequence[GpuSide],
    *,
    turns: int,
    seconds: float,
    logs: Path,
    gpu: Mapping[str, str],
    commit: str,
) -> Comparison:
    """Start every side, hold its losses against the course's, and let those that agree take turns."""
    found = Comparison(group.model, group.batch, group.precision, gpu, commit)
    with ExitStack() as stack:
        running = []
        for side, process in zip(sides, _started(stack, sides, logs), strict=True):
            result = SideFound(side.name, side.plan, side.is_ours, device_bytes=side.device_bytes)
            found.sides.append(result)
            if isinstance(process, str):
                result.error = process
            else:
                judge(side, process, result)
            print(f"  {side.name:44} {_told(result)}", flush=True)
            if not result.error and isinstance(process, RunningSide):
                running.append((process, result))
        _take_turns(running, turns, seconds)
    found.finished_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return found


def _told(result: SideFound) -> str:
    return f"left out: {result.error}" if result.error else f"does our steps: losses {result.loss_error:.1e} off"


def _started(stack: ExitStack, sides: Sequence[GpuSide], logs: Path) -> list[RunningSide | str]:
    """The started sides, or why one does not run. They compile side by side: none of that is measured.

    A process ends with the thread that started it, so that the threads are kept until all is over.
    """
    pool = stack.enter_context(ThreadPoolExecutor(max(1, len(sides))))
    begun = [started(side, logs / f"{side.name.replace(' ', '-')}.log") for side in sides]
    return [_entered(stack, one, future) for one, future in [(one, pool.submit(one.__enter__)) for one in begun]]


def _entered(
    stack: ExitStack, side: AbstractContextManager[RunningSide], future: Future[RunningSide]
) -> RunningSide | str:
    try:
        process = future.result()
    except (SideFailed, OSError) as problem:
        return str(problem)
    stack.push(side)
    return process


def judge(side: GpuSide, process: RunningSide, result: SideFound) -> None:
    """Whether its first losses are the course's, and what it needs in memory."""
    exact = side.course.losses
    pairs = list(zip(process.losses, exact, strict=False))
    result.loss_error = max(abs(loss - one) / abs(one) for loss, one in pairs)
    if len(pairs) < len(exact) or not isfinite(result.loss_error) or result.loss_error > side.loss:
        result.error = (
            f"takes other steps than ours: losses {', '.join(f'{loss:.6g}' for loss, _ in pairs)} instead of "
            f"{', '.join(f'{one:.6g}' for one in exact)}"
        )
    if side.told is not None and side.told.exists():
        result.told = json.loads(side.told.read_text())
        result.device_bytes = int(str(result.told["peak_bytes"]))


def _take_turns(running: Sequence[tuple[RunningSide, SideFound]], turns: int, seconds: float) -> None:
    lines = {id(process): FEWEST for process, _ in running}
    for turn in range(turns + 1):  # the first tells how many lines a turn is to have, and no more
        for process, result in running:
            if result.error:
                continue
            time.sleep(SETTLE_S)
            try:
                ms, wall_ms = timed_turn(process, lines[id(process)])
            except SideFailed as problem:
                result.error = f"ends in turn {turn}: {problem}"
                continue
            if not turn:
                lines[id(process)] = min(MOST, max(FEWEST, round(seconds * 1e3 / max(wall_ms, 1e-3))))
                continue
            result.rounds_ms.append(ms)
            result.wall_ms.append(wall_ms)
            print(f"  turn {turn} {result.name:44} {statistics.median(ms):9.3f} ms", flush=True)


def timed_turn(process: RunningSide, lines: int) -> tuple[list[float], float]:
    """Milliseconds of a step by each counted line, and of the clock for a line."""
    started_s = time.monotonic()
    found = process.turn(lines)
    elapsed_ms = (time.monotonic() - started_s) * 1e3
    return found[len(found) // WARMING :], elapsed_ms / (len(found) + UNTIMED_AFTER_STOP)
