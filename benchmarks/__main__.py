"""`make bench`: our training step beside every framework, same weights, data, plan and cores, interleaved in one run.

    python -m benchmarks                                          everything (many hours; resumes where it ended)
    python -m benchmarks --models mobilenet_v2_b8 --plans full sparse --rounds 3
    python -m benchmarks --only compare roofline --models mobilenet_v2_b8 --plans full       held against its roofline
    python -m benchmarks --only compare --models held-out --plans full
    python -m benchmarks --left                                   what is not measured yet, and measures nothing

These machines drift: quote ratios of one run, never times of two. Results: `docs/benchmarks`, a page for each kind of
machine, and `docs/benchmarks/README.md`, an index of them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from benchmarks import compiling, machine, page, roofline, scaling
from benchmarks.compare import compare, save, table
from benchmarks.held_out import WORKLOADS as HELD_OUT
from benchmarks.models import WORKLOADS
from benchmarks.prepare import PLANS, prepare
from benchmarks.results import Results, machines
from benchmarks.sides import NAMES, tune_step

PROFILED_STEPS = 12
GROUPS = {
    "all": tuple(WORKLOADS),
    "table": tuple(name for name, one in WORKLOADS.items() if not one.held_out),
    "held-out": tuple(HELD_OUT),
}
"""Names for several workloads: those with goals of their own, and those that nothing was tuned on."""
PARTS = ("compare", "roofline", "scaling", "compiling")


def main() -> int:
    """Measure what is asked for; 1 if some side did other work than ours."""
    arguments = _parser().parse_args()
    if arguments.quick:
        arguments.rounds, arguments.steps = 2, 3
    results = Results.apart(arguments.results) if arguments.results else Results.published(machine.kind())
    arguments.models = [name for chosen in arguments.models for name in GROUPS.get(chosen, (chosen,))]
    if arguments.left:
        return print_left(arguments, results)
    signal.signal(signal.SIGTERM, _stop)
    if arguments.tune:
        tune_all(arguments)
    good = compare_all(arguments, results) if "compare" in arguments.only else True
    if "roofline" in arguments.only:
        roofline_all(arguments, results)
    if "scaling" in arguments.only:
        found = scaling.measure(threads=arguments.threads, rounds=arguments.rounds, steps=arguments.steps)
        scaling.save(found, results.scaling)
    if "compiling" in arguments.only:
        compiling.save(compiling.measure(arguments.threads), results.compiling)
    renew(results)
    return 0 if good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="nothing: only renew the page")
    parser.add_argument("--models", nargs="+", choices=(*GROUPS, *WORKLOADS), default=["all"], metavar="WORKLOAD")
    parser.add_argument("--plans", nargs="+", choices=PLANS, default=list(PLANS))
    parser.add_argument("--sides", nargs="+", choices=NAMES, default=list(NAMES), metavar="SIDE")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--steps", type=int, default=5, help="timed steps in a turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quick", action="store_true", help="2 rounds of 3 steps")
    parser.add_argument("--again", action="store_true", help="measure also what an earlier run already did")
    parser.add_argument("--left", action="store_true", help="only say what is not measured yet")
    parser.add_argument("--tune", type=float, metavar="SECONDS", help="first measure schedules, so long a workload")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="figures and page go here, not to docs/")
    return parser


def renew(results: Results) -> None:
    """The page of these figures; where they are published, the index of pages too."""
    if results.is_published:
        page.write_all(machines())
    else:
        page.write(results)


def print_left(arguments: argparse.Namespace, results: Results) -> int:
    """A command for each workload and plan that was asked for and is not there."""
    for name in arguments.models:
        for plan in arguments.plans:
            if not results.comparison(name, plan).exists():
                print(f"python -m benchmarks --only compare --models {name} --plans {plan}")
    return 0


def compare_all(arguments: argparse.Namespace, results: Results) -> bool:
    """Every workload and plan that is not there yet. False if losses differ."""
    good = True
    for name in arguments.models:
        for plan in arguments.plans:
            path = results.comparison(name, plan)
            if path.exists() and not arguments.again:
                print(f"{name} {plan}: {path} is there (--again measures anew)", flush=True)
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
            save(found, path)
            renew(results)
            print(f"\n{table(found)}\n", flush=True)
            good = good and not found.differing()
    return good


def tune_all(arguments: argparse.Namespace) -> None:
    """Decide schedules for each workload under the first plan that is asked for; the side *tuned* uses them."""
    plan = arguments.plans[0]
    for name in arguments.models:
        print(f"{name} {plan}: {tune_step(prepare(name, WORKLOADS[name]), plan, arguments.threads, arguments.tune)}")


def roofline_all(arguments: argparse.Namespace, results: Results) -> None:
    """Our kernels of each workload under the first plan that is asked for."""
    plan = arguments.plans[0]
    for name in arguments.models:
        found = roofline.measure(prepare(name, WORKLOADS[name]), plan, arguments.threads, PROFILED_STEPS)
        roofline.save(found, results.roofline(name, plan))
        print(f"\n{roofline.table(found)}\n", flush=True)


def _stop(number: int, frame: FrameType | None) -> None:
    """Unwind, so that every process we stopped is ended."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
