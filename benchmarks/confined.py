"""Does confinement slow a step? The same binary with the least and with all of it takes turns, in one run.

    python -m benchmarks.confined [BUNDLE] --pairs 80 --steps 20

Each pair is one fresh process of either side, started as the agent starts it, the first alternating. Told are the
median of the pairs' ratios of median step times (whole over least) with a 95% bootstrap interval over the pairs, and
the time from the start of the launcher to the binary's. Once with one thread, held on a processor that reads nothing,
where little else can differ; and once with a thread on each processor, whose waiting for each other goes through the
list of system calls.

Ends with 1 if confinement is shown to cost more than 1% of a step: the lower end of a ratio's interval is above 1.01.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from device_agents.job.bundle import UnpackedBundle, make_executable, unpack
from device_agents.job.cgroup import JobCgroup
from device_agents.job.sandbox import Sandbox, job_rlimits, probe
from device_agents.job.step import Process, check, run_process
from device_agents.job.step_events import StepDone, StepEvent
from device_agents.job.users import DEFAULT

SKIPPED = 5
"""First steps of a process, which warm it up."""
MEMORY_BYTES = 8 << 30
LIMITS = job_rlimits(memory_bytes=MEMORY_BYTES, disk_bytes=1 << 30, cpu_s=3600, sparse=False)
RESAMPLES = 4000
MOST_RATIO = 1.01
"""Whole over least, of which the lower end of the interval must not be above."""
Times = tuple[float, float]


@dataclass(frozen=True)
class Bench:
    """What is measured, and how long."""

    bundle: UnpackedBundle
    folder: Path
    steps: int
    threads: int


def measured(bench: Bench, sandbox: Sandbox) -> Times:
    """Median microseconds of a step, and milliseconds from our start of the launcher to the binary's."""
    times, launch_ms = timed(bench, sandbox)
    return statistics.median(times[SKIPPED:]), launch_ms


def timed(bench: Bench, sandbox: Sandbox) -> tuple[list[float], float]:
    """Microseconds of each step of a fresh process, the first `SKIPPED` too, and milliseconds to the binary's start."""
    times: list[float] = []

    def take(event: StepEvent) -> None:
        if isinstance(event, StepDone):
            times.append(event.us)

    words = ["./bundle/bin/step", "profile", "--weights", "bundle/weights.safetensors"]
    words += ["--steps", str(bench.steps + SKIPPED), "--threads", str(bench.threads)]
    with sandbox.of_one_job() as own, grouped(own) as group:
        if own.uid is not None:
            os.chown(bench.folder / "out", own.uid, own.uid)
        process = Process(words, bench.folder, own, LIMITS, time.monotonic() + 600, group=group)
        begin_s = time.monotonic()
        with kept_apart(bench.threads) as let_go:
            ending = run_process(
                process, on_event=take, on_stderr=lambda _: None, should_stop=lambda: None, on_pid=lambda _: let_go()
            )
    check(ending, process)
    return times, 1e3 * ((ending.launched_s or begin_s) - begin_s)


@contextmanager
def grouped(sandbox: Sandbox) -> Iterator[JobCgroup | None]:
    """The job's cgroup, where the sandbox has one."""
    parent = sandbox.cgroup_parent
    group = parent.make(f"bench-{os.getpid()}", MEMORY_BYTES) if parent else None
    try:
        yield group
    finally:
        if group:
            group.remove()


@contextmanager
def kept_apart(threads: int) -> Iterator[Callable[[], None]]:
    """A process of one thread is started on the last processor; we read its words on the others, once let go."""
    everywhere = os.sched_getaffinity(0)
    if threads > 1 or len(everywhere) < 2:
        yield lambda: None
        return
    last = max(everywhere)
    os.sched_setaffinity(0, {last})
    try:
        yield lambda: os.sched_setaffinity(0, everywhere - {last})
    finally:
        os.sched_setaffinity(0, everywhere)


def in_turn(bench: Bench, least: Sandbox, whole: Sandbox, pairs: int) -> Iterator[tuple[Times, Times]]:
    """(least, whole) of processes that take turns."""
    for number in range(pairs):
        if number % 2:
            before, after = measured(bench, least), measured(bench, whole)
        else:
            after, before = measured(bench, whole), measured(bench, least)
        yield before, after


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95% percentile bootstrap of the median; seeded, so that it can be computed again."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]


def built(folder: Path) -> Path:
    """A step of some 10 ms, where no bundle is named."""
    from benchmarks.definitions import Workload
    from benchmarks.old_and_new import build
    from benchmarks.prepare import prepare

    prepared = prepare("confined_mobilenet_v2_b1", Workload("mobilenet_v2", 1))
    build(Path(), prepared, "sparse", 2, folder)
    return folder / "step.pfb"


def costs_too_much(ratios: Sequence[float]) -> bool:
    """Whether it is shown: noise alone widens the interval, and does not raise its lower end."""
    return interval(ratios)[0] > MOST_RATIO


def compare(bench: Bench, least: Sandbox, whole: Sandbox, pairs: int) -> bool:
    """Prints; False if the whole costs too much."""
    begin_s = time.monotonic()
    found = list(in_turn(bench, least, whole, pairs))
    ratios = [after[0] / before[0] for before, after in found]
    low, high = interval(ratios)
    print(f"{bench.threads} thread{'s' if bench.threads > 1 else ''}:")
    for title, sandbox, side in (("least", least, 0), ("whole", whole, 1)):
        step_us, start_ms = (statistics.median(pair[side][which] for pair in found) for which in (0, 1))
        print(f"  {title}, level {sandbox.level}: step {step_us:,.1f} us, launcher {start_ms:.1f} ms")
    told = f"95% interval {low:.4f} to {high:.4f}, {pairs} pairs of {bench.steps} steps"
    took_s = time.monotonic() - begin_s
    print(f"  step, whole / least: {statistics.median(ratios):.4f} ({told}, {took_s:.0f} s)", flush=True)
    if costs_too_much(ratios):
        print(f"  too slow: the interval is above {MOST_RATIO}; which part is new? (docs/isolation.md)")
        return False
    return True


def main() -> int:
    """Prints; 1 if confinement costs too much."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.confined", description=__doc__)
    parser.add_argument(
        "bundle", type=Path, nargs="?", help="for this machine; left away, a step of the bench is built"
    )
    parser.add_argument("--pairs", type=int, default=80)
    parser.add_argument("--steps", type=int, default=20, help="of each process")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        bundle = unpack(asked.bundle or built(folder / "built"), folder / "bundle")
        make_executable(bundle)
        (folder / "out").mkdir()
        least, whole = probe(most=1), probe(users=DEFAULT)
        print(f"load of the machine before: {os.getloadavg()[0]:.2f}", flush=True)
        counts = dict.fromkeys((1, min(bundle.threads or 1, os.cpu_count() or 1)))
        benches = [Bench(bundle, folder, asked.steps, threads) for threads in counts]
        are_good = [compare(bench, least, whole, asked.pairs) for bench in benches]
    return 0 if all(are_good) else 1


if __name__ == "__main__":
    sys.exit(main())
