"""Does confinement slow a step? The same binary with the least and with all of it takes turns, in one run.

    python -m benchmarks.confined [BUNDLE] --pairs 20 --steps 30

Each pair is one process of either side, started as the agent starts it; told are the median of the pairs' ratios of
median step times (whole over least) with their quartiles, and the time from the start of the launcher to the binary's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from device_agents.job.bundle import UnpackedBundle, make_executable, unpack
from device_agents.job.sandbox import Sandbox, job_rlimits, probe
from device_agents.job.step import Process, check, run_process
from device_agents.job.step_events import StepDone, StepEvent
from device_agents.job.users import DEFAULT

SKIPPED = 2
"""First steps of a process, which warm it up."""
LIMITS = job_rlimits(memory_bytes=8 << 30, disk_bytes=1 << 30, cpu_s=3600, emulated=False)


def measured(bundle: UnpackedBundle, folder: Path, sandbox: Sandbox, steps: int) -> tuple[float, float]:
    """Median microseconds of a step, and milliseconds from our start of the launcher to the binary's first word."""
    times: list[float] = []

    def take(event: StepEvent) -> None:
        if isinstance(event, StepDone):
            times.append(event.us)

    words = ["./bundle/bin/step", "profile", "--weights", "bundle/weights.safetensors", "--steps", str(steps + SKIPPED)]
    with sandbox.of_one_job() as own:
        if own.uid is not None:
            os.chown(folder / "out", own.uid, own.uid)
        process = Process(words, folder, own, LIMITS, time.monotonic() + 600)
        begin_s = time.monotonic()
        ending = run_process(process, on_event=take, on_stderr=lambda _: None, should_stop=lambda: None)
    check(ending, process)
    return statistics.median(times[SKIPPED:]), 1e3 * ((ending.launched_s or begin_s) - begin_s)


def built(folder: Path) -> Path:
    """A step of the bench, where no bundle is named."""
    from benchmarks.models import Workload
    from benchmarks.old_and_new import build
    from benchmarks.prepare import prepare

    prepared = prepare("confined_mobilenet_v2_b8", Workload("mobilenet_v2", 8, in_table=False))
    build(Path(), prepared, "sparse", folder)
    return folder / "step.pfb"


def main() -> None:
    """Prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.confined", description=__doc__)
    parser.add_argument(
        "bundle", type=Path, nargs="?", help="for this machine; left away, a step of the bench is built"
    )
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=30, help="of each process")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        bundle = unpack(asked.bundle or built(folder / "built"), folder / "bundle")
        make_executable(bundle)
        (folder / "out").mkdir()
        least, whole = probe(most=1), probe(users=DEFAULT, with_cgroup=False)
        found = []
        for number in range(asked.pairs):
            order = (least, whole) if number % 2 else (whole, least)
            pair = {sandbox.level: measured(bundle, folder, sandbox, asked.steps) for sandbox in order}
            found.append((pair[least.level], pair[whole.level]))
    low, middle, high = statistics.quantiles([new[0] / old[0] for old, new in found], n=4)
    for title, sandbox, side in (("least", least, 0), ("whole", whole, 1)):
        step_us, start_ms = (statistics.median(pair[side][which] for pair in found) for which in (0, 1))
        print(f"{title}, level {sandbox.level}: step {step_us:,.1f} us, launcher {start_ms:.1f} ms")
    print(f"step, whole / least: {middle:.4f} ({low:.4f} to {high:.4f}, quartiles of {asked.pairs} pairs)")


if __name__ == "__main__":
    main()
