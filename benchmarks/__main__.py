"""`make bench`: our training step beside PyTorch eager, same model, data, plan and cores, interleaved in one run.

Each side runs in its own process, A B A B ...; a table of medians and of the ratio pair by pair, and
`build/bench.json`, come out. These machines drift: quote ratios of one run, never times of two.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from pathlib import Path

from benchmarks.sides import Measurement, Side, ours, pytorch

PLANS = ("full", "sparse", "bias-only")


def main() -> None:
    """Build, interleave, print, store."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--resolution", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs")
    parser.add_argument("--steps", type=int, default=8, help="timed steps per run, after 3 warm-up steps")
    parser.add_argument("--plans", nargs="+", default=list(PLANS), choices=PLANS)
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"))
    arguments = parser.parse_args()
    results = {}
    for plan in arguments.plans:
        size = (arguments.batch, arguments.resolution)
        sides = [ours(plan, *size), pytorch(plan, *size, tuned=False), pytorch(plan, *size, tuned=True)]
        results[plan] = interleave(sides, arguments.rounds, arguments.steps)
        _print_plan(plan, results[plan])
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"cpu": _cpu(), "cores": os.cpu_count(), "python": platform.python_version()}
    arguments.out.write_text(
        json.dumps({"machine": machine, "arguments": _plain(arguments), "results": _rows(results)}, indent=1)
    )
    print(f"\nraw samples: {arguments.out}")


def interleave(sides: list[Side], rounds: int, steps: int) -> dict[str, list[Measurement]]:
    """Every side once per round, so that a slow minute hits all of them."""
    found: dict[str, list[Measurement]] = {side.name: [] for side in sides}
    for number in range(rounds):
        for side in sides:
            measurement = side.run(steps)
            found[side.name].append(measurement)
            median = statistics.median(measurement.step_ms)
            print(
                f"  round {number + 1}/{rounds}  {side.name:<40} {median:8.1f} ms  last loss {measurement.loss:.5f}",
                flush=True,
            )
    return found


def _print_plan(plan: str, found: dict[str, list[Measurement]]) -> None:
    names = list(found)
    mine = [statistics.median(one.step_ms) for one in found[names[0]]]
    print(f"\nplan {plan}\n{'side':<42}{'median ms':>10}{'min':>9}{'max':>9}{'peak MB':>9}{'ours is faster by':>19}")
    for name in names:
        medians = [statistics.median(one.step_ms) for one in found[name]]
        ratio = statistics.median(other / own for other, own in zip(medians, mine, strict=True))
        peak = max(one.peak_rss_bytes for one in found[name]) / 1e6
        print(
            f"{name:<42}{statistics.median(medians):>10.1f}{min(medians):>9.1f}{max(medians):>9.1f}{peak:>9.0f}{ratio:>18.2f}x"
        )
    print()


def _rows(results: dict[str, dict[str, list[Measurement]]]) -> dict[str, object]:
    return {
        plan: {name: [one.to_json() for one in runs] for name, runs in found.items()} for plan, found in results.items()
    }


def _plain(arguments: argparse.Namespace) -> dict[str, object]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()}


def _cpu() -> str:
    lines = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return lines[0].split(":", 1)[1].strip() if lines else platform.processor()


if __name__ == "__main__":
    main()
