"""The same rates with real processes on this machine, started and confined as an agent starts them.

Builds of one step of some milliseconds, which repeat the work of one kernel more or less often. A comparison takes
twenty seconds at most. Each trial is written down, so that a campaign that was ended goes on.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.confined import Bench, timed
from device_agents.figures.one_run import LEAST_BLOCKS
from device_agents.figures.separate_runs import Run, ratio_interval, variation_of
from device_agents.figures.warm_up import settled_from
from device_agents.job.bundle import make_executable, unpack
from device_agents.job.sandbox import Sandbox, probe
from device_agents.job.users import DEFAULT
from device_agents.measure.turns import Wanted, take_turns
from tests.agents.real_step import real_bundle
from tests.thorough.calibration.rates import BUDGET_S, CANARIES, EFFECT, PROMISES, Rate

TURNS = 10_000_000
STEPS, MOST_WARM_UP = 24, 8
FACTORS = sorted({promise.factor for promise in PROMISES})
CANARY = "canary"


@dataclass(frozen=True)
class Trial:
    """One line of the log."""

    kind: str
    factor: float
    number: int
    differs: bool
    ratio: float
    low: float | None
    high: float | None
    rounds: int
    took_s: float


@dataclass(frozen=True)
class Bundles:
    """The builds, by how many times as much one of their kernels does, and what confines them."""

    benches: dict[float, Bench]
    sandbox: Sandbox

    def process(self, factor: float) -> float:
        """One fresh process: the median of its settled steps, in microseconds."""
        times, _ = timed(self.benches[factor], self.sandbox)
        done = settled_from(times, most=MOST_WARM_UP)
        return statistics.median(times[done : done + STEPS])

    def run(self, factor: float) -> list[float]:
        """The block medians of one run."""
        return [self.process(factor) for _ in range(LEAST_BLOCKS)]


@contextmanager
def built() -> Iterator[Bundles]:
    with tempfile.TemporaryDirectory() as name:
        benches = {}
        for factor in FACTORS:
            folder = Path(name) / f"{factor}"
            folder.mkdir()
            bundle = unpack(real_bundle(folder, turns=round(TURNS * factor)), folder / "bundle")
            make_executable(bundle)
            (folder / "out").mkdir()
            benches[factor] = Bench(bundle, folder, STEPS + MOST_WARM_UP, 1)
        Path(name).chmod(0o755)
        yield Bundles(benches, probe(users=DEFAULT))


def compared(bundles: Bundles, factor: float, number: int, seed: int) -> Trial:
    began_s = time.monotonic()
    wanted = Wanted(2, EFFECT, BUDGET_S, seed=seed + number)
    found = take_turns(wanted, lambda which: bundles.process(factor if which else 1.0))
    (ratio,) = found.ratios
    low, high = ratio.interval or (None, None)
    took_s = time.monotonic() - began_s
    return Trial("compare", factor, number, ratio.differs, ratio.ratio, low, high, len(found.rounds), took_s)


def separate(bundles: Bundles, factor: float, number: int, canaries: list[float]) -> Trial:
    began_s = time.monotonic()
    known = variation_of([canaries])
    base, other = Run(bundles.run(1.0), known), Run(bundles.run(factor), known)
    interval = ratio_interval(base, other)
    assert interval is not None
    ratio = statistics.median(other.block_us) / statistics.median(base.block_us)
    took_s = time.monotonic() - began_s
    return Trial("separate", factor, number, not interval.has(1.0), ratio, *interval, LEAST_BLOCKS, took_s)


def rates(trials: int, *, seed: int, log: Path) -> Iterator[Rate]:
    """Trials of all kinds in turns, so that each sees the machine at every hour; then what they came to."""
    log.parent.mkdir(parents=True, exist_ok=True)
    done = {(one["kind"], one["factor"], one["number"]) for one in earlier(log)}
    with built() as bundles, log.open("a") as file:
        for turn in range(trials + CANARIES):
            for kind, factor, number in random.Random(f"{seed}/{turn}").sample(acts := due(turn, trials), len(acts)):
                if (kind, factor, number) not in done:
                    write(file, made(bundles, kind, factor, number, seed, log))
    yield from counted(earlier(log))


def due(turn: int, trials: int) -> list[tuple[str, float, int]]:
    """What is done in one turn: a canary in each of the first, comparisons, and two runs apart once the canaries are
    there, which so are of other times than the runs that they are to judge."""
    canaries = [(CANARY, 1.0, turn)] if turn < CANARIES else []
    places = {"compare": turn, "separate": turn - CANARIES}
    return canaries + [(one.kind, one.factor, places[one.kind]) for one in PROMISES if 0 <= places[one.kind] < trials]


def made(bundles: Bundles, kind: str, factor: float, number: int, seed: int, log: Path) -> dict[str, Any]:
    """A line of the log."""
    if kind == CANARY:
        return {"kind": kind, "factor": factor, "number": number, "median_us": statistics.median(bundles.run(factor))}
    if kind == "compare":
        return asdict(compared(bundles, factor, number, seed))
    canaries = [one["median_us"] for one in earlier(log) if one["kind"] == CANARY]
    return asdict(separate(bundles, factor, number, canaries))


def earlier(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def write(file: Any, line: dict[str, Any]) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()


def counted(lines: list[dict[str, Any]]) -> Iterator[Rate]:
    for promise in PROMISES:
        mine = [one for one in lines if (one["kind"], one["factor"]) == (promise.kind, promise.factor)]
        if not mine:
            continue
        middle = statistics.median(one["ratio"] for one in mine)
        took_s = statistics.median(one["took_s"] for one in mine)
        where = f"here: x{middle:.4f}, {took_s:.0f} s"
        yield Rate(promise, where, sum(one["differs"] for one in mine), len(mine))
