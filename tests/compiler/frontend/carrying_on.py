"""Whatever model comes in: a typed error that its user can act on, or a training step that is right.

`python -m tests.compiler.frontend.carrying_on --minutes 10` is a campaign (`make fuzz`): it goes on from seed to seed
and keeps each model that fails in `build/fuzz`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from compiler.errors import CompileError, InternalError
from compiler.graph import Array, Graph
from compiler.pipeline import walk
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.step.autodiff import differentiate
from compiler.step.batch_statistics import use_batch_statistics
from compiler.step.loss import attach_loss
from compiler.step.plan import UpdatePlan, resolve_plan
from compiler.step.training import TrainingGraph
from compiler.targets import load
from compiler.values import Value
from tests.compiler.frontend.cases import CASES
from tests.compiler.frontend.mutations import SEEDS, SMALL, disturb, exported
from tests.compiler.graph_interpreter import evaluate_graph
from tests.onnx_standard.cases import standard_cases

BATCH = 2
_LOSSES = [(loss, optimizer) for loss in ("cross_entropy", "mse") for optimizer in ("sgd", "adamw")]
_SETTINGS: tuple[dict[str, object], ...] = (
    *(dict[str, object]({"loss": {"kind": loss}, "optimizer": {"kind": optimizer}}) for loss, optimizer in _LOSSES),
    {"loss": {"kind": "mse"}, "batch_norm": "train", "dropout": "train"},
)
SPECS = tuple(TrainingSpec.parse({"batch": BATCH, **settings}) for settings in _SETTINGS)
PLANS = (
    SparsePlan.of_preset("full"),
    SparsePlan.of_preset("bias-only"),
    SparsePlan.parse("{update: [{parameters: ['*'], ratio: 0.4}]}"),
)
STEP = 1e-5
FOLDER = Path("build") / "fuzz"
TRAINS, FAILED = "trains", "FAILED"


def carry_on(model: bytes, plan: SparsePlan, spec: TrainingSpec) -> str:
    """Compile up to the kernels, every pass verified; what became of it: an error's code, or that it trains.

    Raises: anything but an error that a user can act on; AssertionError if the gradients are wrong.
    """
    made: dict[str, object] = {}
    settings = BuildSettings(plan, spec, load("raspberry-pi-4"), limits=SMALL)
    try:
        for stage in walk(model, settings):
            made[stage.name] = stage.product
            if stage.name == "memory":
                break
    except InternalError:
        raise
    except CompileError as refusal:
        return refusal.code
    imported, forward = made["import"], made["forward"]
    assert isinstance(imported, Graph)
    assert isinstance(forward, Graph)
    check_gradients(imported, forward, resolve_plan(forward, plan), spec)
    return TRAINS


def check_gradients(graph: Graph, forward: Graph, plan: UpdatePlan, spec: TrainingSpec) -> None:
    """The loss means the same before and after the passes, and a gradient is its slope along a random direction.

    Where the loss is not smooth (its slope differs on both sides) there is nothing to compare.
    """
    # Without dropout: which elements are dropped depends on how a tensor lies, and the passes turn it.
    step = differentiate(use_batch_statistics(attach_loss(forward, spec.loss)), plan)
    plain = use_batch_statistics(attach_loss(graph, spec.loss))
    feeds, plain_feeds = draw_feeds(step), draw_feeds(plain)
    with np.errstate(all="ignore"):
        values = evaluate_graph(step.graph, feeds)
        loss = values[step.loss]
        if not np.isfinite(loss).all() or abs(float(loss)) > 1e6:
            return
        np.testing.assert_allclose(loss, evaluate_graph(plain.graph, plain_feeds)[plain.loss], rtol=1e-6, atol=1e-9)
        for name in list(plan)[:2]:
            # What no gradient reaches does not change the loss.
            gradient = values[step.gradients[name]] if name in step.gradients else np.zeros(())
            _check_gradient(step, plan, name, feeds, float(loss), gradient)


def draw_feeds(step: TrainingGraph) -> dict[Value, Array]:
    """Random data and labels, and parameters moved off the round numbers at which models start."""
    rng = np.random.default_rng(3)
    feeds: dict[Value, Array] = {}
    for name in (*step.data_inputs, step.labels):
        tensor = step.graph.types[name]
        feeds[name] = rng.normal(size=tensor.shape) if tensor.dtype == "f32" else rng.integers(0, 2, tensor.shape)
    feeds |= {name: np.asarray(1) for name in step.hyper}
    for name in step.graph.parameters:
        array = step.graph.arrays[name].astype(np.float64)
        feeds[name] = array + 0.01 * rng.normal(size=array.shape)
    return feeds


def _check_gradient(
    step: TrainingGraph, plan: UpdatePlan, name: Value, feeds: dict[Value, Array], loss: float, gradient: Array
) -> None:
    direction = np.zeros(step.graph.types[name].shape)
    part = plan[name]
    inside = [slice(None)] * direction.ndim
    if not part.is_whole:
        inside[part.axis] = slice(part.start, part.start + part.size)
    direction[tuple(inside)] = np.random.default_rng(4).normal(size=direction[tuple(inside)].shape)

    def moved(amount: float) -> float:
        return float(evaluate_graph(step.graph, {**feeds, name: feeds[name] + amount * direction})[step.loss])

    before, after = (loss - moved(-STEP)) / STEP, (moved(STEP) - loss) / STEP
    size = max(1.0, abs(before), abs(after))
    if not np.isfinite((before, after)).all() or abs(before - after) > 1e-3 * size:
        return
    slope = float((gradient * direction[tuple(inside)]).sum())
    assert abs(slope - (before + after) / 2) < 2e-3 * size, f"{name}: gradient {slope}, slope {before} and {after}"


def models(seed: int) -> Iterator[tuple[str, bytes]]:
    """Nearly right models without end, each with the name of what it was."""
    rng = random.Random(seed)
    seeds = {**SEEDS, "dynamo": exported("dynamo"), "torchscript": exported("torchscript")}
    cases = {case.name: case.model() for case in CASES}
    standard = (case for case in standard_cases() if not case.group and case.op_type != "light")
    cases |= {case.name: case.model for case in standard if len(case.model) < 20_000}
    seeds |= {name: model for name, model in cases.items() if onnx.load_from_string(model).graph.node[0].input}
    names = sorted(seeds)
    while True:
        # Most of the whole models: single operators have little to differentiate.
        name = rng.choice(names) if rng.random() < 0.4 else rng.choice([*SEEDS, "dynamo"])
        proto = onnx.load_from_string(seeds[name])
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            if any(node.input for node in proto.graph.node):
                disturb(proto, rng)
        yield name, proto.SerializeToString()


def choices(seed: int) -> Iterator[tuple[SparsePlan, TrainingSpec]]:
    """A plan and a spec for each model."""
    rng = random.Random(seed)
    while True:
        yield rng.choice(PLANS), rng.choice(SPECS)


def campaign(seed: int, seconds: float, most: int = 1 << 40, folder: Path = FOLDER) -> Counter[str]:
    """Carry on models until the time is over, or so many; failures are told, and kept in a folder."""
    outcomes: Counter[str] = Counter()
    ends_at = time.monotonic() + seconds
    drawn = zip(models(seed), choices(seed), strict=False)
    for number, ((name, model), (plan, spec)) in enumerate(itertools.islice(drawn, most)):
        try:
            outcomes[carry_on(model, plan, spec)] += 1
        except Exception as problem:
            outcomes[FAILED] += 1
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{seed}-{number}-{name.replace('/', '_')}.onnx"
            path.write_bytes(model)
            words = traceback.format_exc(limit=-3)
            print(f"{path}: {type(problem).__name__}, with {plan} and {spec}\n{words}", flush=True)
        if time.monotonic() > ends_at:
            break
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--models", type=int, default=0, help="so many, however long they take")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    given = parser.parse_args()
    print(f"seed {given.seed}")
    seconds, most = (math.inf, given.models) if given.models else (given.minutes * 60, 1 << 40)
    outcomes = campaign(given.seed, seconds, most)
    print(f"{outcomes.total():7d}  models")
    for code, count in outcomes.most_common():
        print(f"{count:7d}  {code}")
    return 1 if outcomes[FAILED] else 0


if __name__ == "__main__":
    sys.exit(main())
