"""Does a step become slower? Another checkout's builds and this one's take turns on the same data, in one run.

    python -m benchmarks.old_and_new ../base --pairs 12 --steps 10 [--cases resnet50:4:full ...] [--threads 1]

Each pair is one process of either side, the first alternating; the median of the pairs' ratios (new over old) is told
with their quartiles. Both sides build the same model file with the same plan and spec, by their own `pockfarm build`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.definitions import Workload
from benchmarks.prepare import BENCH, Prepared, plan_of, prepare
from benchmarks.sides import data_arguments, native_target

CASES = ("mobilenet_v2:8:full", "mobilenet_v2:8:sparse", "bert:2:full", "bert:2:sparse")
"""Model, batch, plan."""
SPEC = {"optimizer": {"kind": "sgd", "learning_rate": 1e-3, "momentum": 0.9}}


def build(checkout: Path, prepared: Prepared, plan: str, threads: int, folder: Path) -> list[str]:
    """Build a step by a checkout's own compiler; the start of its command line."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = {
        "plan.json": plan_of(prepared.workload.model, plan).canonical_json(),
        "spec.json": json.dumps({**SPEC, "threads": threads, "batch": prepared.workload.batch}),
    }
    for name, text in recipe.items():
        (folder / name).write_text(text)
    bundle = folder.absolute() / "step.pfb"
    options = {"--plan": folder.absolute() / "plan.json", "--spec": folder.absolute() / "spec.json", "--out": bundle}
    words = [str(word) for option in options.items() for word in option]
    command = [sys.executable, "-m", "pockfarm.cli", "build", str(prepared.onnx_path.absolute()), *words, "--no-tuning"]
    subprocess.run(
        [*command, "--target", native_target()],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout.absolute())},
        check=True,
        capture_output=True,
    )
    with tarfile.open(bundle) as archive:
        archive.extractall(folder, filter="data")
    return [str(folder / "bin/step"), "train", "--weights", str(folder / "weights.safetensors")]


def step_us(command: Sequence[str], steps: int) -> float:
    """Median time of a step in a process of its own, the first two left out."""
    done = subprocess.run([*command, "--steps", str(steps + 2)], capture_output=True, text=True, check=True)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return statistics.median([event["us"] for event in events if event["event"] == "step"][2:])


def pairs(old: Sequence[str], new: Sequence[str], count: int, steps: int) -> Iterator[tuple[float, float]]:
    """(old, new) medians of processes that take turns."""
    for number in range(count):
        if number % 2:
            after, before = step_us(new, steps), step_us(old, steps)
        else:
            before, after = step_us(old, steps), step_us(new, steps)
        yield before, after


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.old_and_new", description=__doc__)
    parser.add_argument("before", type=Path, help="another checkout")
    parser.add_argument("--after", type=Path, default=Path(), help="in place of this checkout")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10, help="of each process")
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="MODEL:BATCH:PLAN")
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    print(f"{'step':26} {'old, ms':>9} {'new, ms':>9}   new / old (quartiles of {asked.pairs} pairs)")
    for model, batch, plan in (case.split(":") for case in asked.cases):
        prepared = prepare(f"old_and_new_{model}_b{batch}", Workload(model, int(batch)))
        folder = BENCH / "old_and_new" / f"{model}-{batch}-{plan}"
        sides = [
            [*build(checkout, prepared, plan, asked.threads, folder / name), *data_arguments(prepared)]
            for name, checkout in (("old", asked.before), ("new", asked.after))
        ]
        found = list(pairs(sides[0], sides[1], asked.pairs, asked.steps))
        low, middle, high = statistics.quantiles([after / before for before, after in found], n=4)
        old, new = (statistics.median(one) / 1e3 for one in zip(*found, strict=True))
        print(
            f"{f'{model} b{batch} {plan}':26} {old:9.2f} {new:9.2f}   {middle:.4f} ({low:.4f} to {high:.4f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
