"""`make bench`: our training step beside every framework, same weights, data, plan and cores, interleaved in one run.

    python -m benchmarks                                          everything (an hour or two; resumes where it ended)
    python -m benchmarks --models mobilenet_v2_b8 --plans full sparse --rounds 3
    python -m benchmarks --only roofline --plans full

These machines drift: quote ratios of one run, never times of two. Results: `build/bench/`, and `docs/benchmarks.md`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from types import FrameType

from benchmarks import machine, page, roofline, scaling
from benchmarks.compare import compare, path_of, save, table
from benchmarks.models import WORKLOADS
from benchmarks.prepare import PLANS, prepare
from benchmarks.sides import NAMES

PROFILED_STEPS = 12
PARTS = ("compare", "roofline", "scaling")


def main() -> int:
    """Measure what is asked for; 1 if some side did other work than ours."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="nothing: only renew the page")
    parser.add_argument("--models", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="WORKLOAD")
    parser.add_argument("--plans", nargs="+", choices=PLANS, default=list(PLANS))
    parser.add_argument("--sides", nargs="+", choices=NAMES, default=list(NAMES), metavar="SIDE")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--steps", type=int, default=5, help="timed steps in a turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quick", action="store_true", help="2 rounds of 3 steps")
    parser.add_argument("--again", action="store_true", help="measure also what an earlier run already did")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.steps = 2, 3
    signal.signal(signal.SIGTERM, _stop)
    good = compare_all(arguments) if "compare" in arguments.only else True
    if "roofline" in arguments.only:
        prepared = [prepare(name, WORKLOADS[name]) for name in arguments.models]
        roofline.measure_all(prepared, arguments.plans[:1], arguments.threads, PROFILED_STEPS)
    if "scaling" in arguments.only:
        scaling.save(scaling.measure(threads=arguments.threads, rounds=arguments.rounds, steps=arguments.steps))
    page.write()
    return 0 if good else 1


def compare_all(arguments: argparse.Namespace) -> bool:
    """Every workload and plan that is not there yet. False if losses differ."""
    good = True
    for name in arguments.models:
        for plan in arguments.plans:
            if path_of(name, plan).exists() and not arguments.again:
                print(f"{name} {plan}: {path_of(name, plan)} is there (--again measures anew)", flush=True)
                continue
            print(f"{name} {plan}", flush=True)
            prepared = prepare(name, WORKLOADS[name])
            if not prepared.learned_path(plan).exists():
                print("  nothing would learn", flush=True)
                continue
            found = compare(
                prepared,
                plan,
                arguments.sides,
                rounds=arguments.rounds,
                steps=arguments.steps,
                threads=arguments.threads,
                machine=machine.describe(),
            )
            save(found)
            page.write()
            print(f"\n{table(found)}\n", flush=True)
            good = good and not found.differing()
    return good


def _stop(number: int, frame: FrameType | None) -> None:
    """Unwind, so that every process we stopped is ended."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
