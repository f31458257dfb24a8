"""`python -m tests.onnx_standard.binaries`: a sample of the standard's cases as real binaries."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from compiler.api import compile_training
from compiler.errors import CompileError
from compiler.graph import Array
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from tests.compiler.agreement.step_binary import StepBinary, native_target
from tests.onnx_standard.cases import Standard, standard_cases
from tests.onnx_standard.merge import OWN, Merged, can_merge, merged
from tests.onnx_standard.run import close, run

SEED = 10
MOST_AT_ONCE = 40
PLAN = SparsePlan.parse({"update": [{"parameters": [OWN]}]})
SPEC = TrainingSpec.parse(
    {"batch": 1, "loss": {"kind": "mse"}, "optimizer": {"kind": "sgd"}, "threads": 2, "batch_norm": "frozen"}
)


def sample(count: int, seed: int = SEED) -> list[Standard]:
    """That many cases that pass, spread over the operators: a round takes one of each that has any left."""
    rng = random.Random(seed)
    by_operator: dict[str, list[Standard]] = defaultdict(list)
    for case in standard_cases():
        if case.op_type != "light" and not case.group and can_merge(case):
            by_operator[case.op_type].append(case)
    for cases in by_operator.values():
        rng.shuffle(cases)
    names = sorted(by_operator)
    rng.shuffle(names)
    chosen: list[Standard] = []
    while len(chosen) < count and any(by_operator.values()):
        for name in names:
            while by_operator[name]:
                case = by_operator[name].pop()
                if run(case).kind == "pass":
                    chosen.append(case)
                    break
    return chosen[:count]


def groups(cases: Sequence[Standard]) -> Iterator[list[Standard]]:
    """Cases of one opset, as many as go into one binary."""
    by_opset: dict[int, list[Standard]] = defaultdict(list)
    for case in cases:
        by_opset[case.opset].append(case)
    for _, alike in sorted(by_opset.items()):
        for start in range(0, len(alike), MOST_AT_ONCE):
            yield alike[start : start + MOST_AT_ONCE]


def problems(cases: Sequence[Standard], folder: Path, *, jobs: int = 2) -> dict[str, str]:
    """What a binary of these cases computes other than the standard says, by case."""
    whole = merged(cases)
    settings = BuildSettings(PLAN, SPEC, load(native_target()), jobs=jobs)
    step = StepBinary.unpack(compile_training(whole.model, settings), folder)
    np.save(folder / "x.npy", whole.data)
    step.run("infer", "--weights", step.weights, "--input", f"x={folder / 'x.npy'}", "--out", folder / "y.npy")
    return _compared(cases, whole, np.load(folder / "y.npy"))


def _compared(cases: Sequence[Standard], whole: Merged, found: Array) -> dict[str, str]:
    wrong = {}
    for case in cases:
        for name, place in whole.places[case.name]:
            wanted = np.asarray(case.wanted[name])
            got = found[0, place].reshape(wanted.shape)
            if wanted.dtype.kind in "biu":
                got = got.astype(wanted.dtype)
            if not close(got, wanted, case):
                wrong[case.name] = f"{name}: {got.reshape(-1)[:6]} wanted {wanted.reshape(-1)[:6]}"
    return wrong


def singly(cases: Sequence[Standard], folder: Path) -> Mapping[str, str]:
    """As `problems`, each case in a binary of its own: which one it is that does not compile."""
    found: dict[str, str] = {}
    for number, case in enumerate(cases):
        try:
            found.update(problems([case], folder / str(number)))
        except (CompileError, AssertionError) as problem:
            found[case.name] = str(problem)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    started = time.monotonic()
    bad: dict[str, str] = {}
    chosen = sample(options.count, options.seed)
    with tempfile.TemporaryDirectory() as name:
        for number, group in enumerate(groups(chosen)):
            folder = Path(name) / str(number)
            try:
                bad.update(problems(group, folder))
            except (CompileError, AssertionError) as problem:
                print(f"opset {group[0].opset}: {str(problem)[:300]}", flush=True)
                bad.update(singly(group, folder / "singly"))
    for case, difference in bad.items():
        print(f"wrong  {case}: {difference[:300]}")
    operators = len({case.op_type for case in chosen})
    print(
        f"{len(chosen) - len(bad)} of {len(chosen)} cases of {operators} operators are right in binaries, "
        f"{time.monotonic() - started:.0f} s"
    )
    return int(bool(bad))


if __name__ == "__main__":
    raise SystemExit(main())
