"""A compiled training step does what PyTorch's autograd does in float64, for every model family and plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.compiler.agreement.cases import CASES
from tests.compiler.agreement.course import Point, course, run_step_at
from tests.compiler.agreement.harness import (
    STEPS,
    Built,
    Case,
    Optimizer,
    State,
    StepResult,
    build,
    free_run,
    problems,
    to_checkpoint,
)
from tests.compiler.agreement.onnx_checks import onnx_problems
from tests.compiler.agreement.onnx_step import OnnxStep
from tests.compiler.agreement.step_binary import native_target
from tests.sample import sample, some

EMULATED = (
    ("digits-cnn-full", "raspberry-pi-4"),
    ("mlp-full", "jetson-orin-nano"),
    ("digits-cnn-full", "snapdragon-8-gen-2"),
    ("digits-cnn-full", "raspberry-pi-3"),
    ("mlp-full", "aarch64"),
)
"""AArch64 binaries under qemu: function only, so small models only."""
KEPT = (
    "mobilenet-ratio",  # depth-wise layers, parts of every kind of weight
    "resnet18-sparse",
    "mlp-sparse",
    "encoder-full-adamw",
    "authored-standardised-input",
    "authored-rezero",
    "digits-cnn-full-on-raspberry-pi-3",
    "mlp-full-on-jetson-orin-nano",
)
"""What `make test` runs: eight models with plans of every kind, an optimizer with more state, two boards."""
OLDEST = ("-cpu", "cortex-a53")
PLAYED_BY = {"raspberry-pi-3": OLDEST, "aarch64": OLDEST}
"""What qemu plays in place of every feature it knows: an instruction that came later ends the binary."""


def _parameters() -> Iterator[object]:
    """Every case natively, small ones for boards; the tests of one case stay on one worker and share its step."""
    for name in sorted(CASES):
        yield pytest.param((name, native_target(), ()), id=name, marks=pytest.mark.xdist_group(name))
    for name, board in EMULATED:
        group = f"{name}-on-{board}"
        yield pytest.param(
            (name, board, ("qemu-aarch64-static", *PLAYED_BY.get(board, ()))),
            id=group,
            marks=pytest.mark.xdist_group(group),
        )


pytestmark = pytest.mark.parametrize("built", sample(_parameters(), KEPT), indirect=True, scope="module")


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> Built:
    """A compiled case."""
    name, target, runner = request.param
    case: Case = CASES[name]()
    return build(case, target, tmp_path_factory.mktemp("step"), kernel_cache, runner)


@pytest.fixture(scope="module")
def points(built: Built) -> list[Point]:
    """Twenty steps of the reference."""
    return list(course(built, STEPS))


@pytest.fixture(scope="module")
def steps(built: Built, points: list[Point]) -> list[StepResult]:
    """The binary's, each from the reference's own weights and optimizer state."""
    return [run_step_at(built, at) for at in points]


def test_the_arena_is_hardly_larger_than_what_lives_in_it(built: Built) -> None:
    """No packing is smaller than the most bytes alive at one call: 2% above that where the arena has a megabyte."""
    arena_bytes, bound_bytes = built.memory["arena_bytes"], built.memory["bound_bytes"]
    assert 0 < bound_bytes <= arena_bytes
    assert arena_bytes <= bound_bytes * (1.02 if arena_bytes >= 1_000_000 else 1.05)


def test_every_step_agrees_with_float64(built: Built, steps: list[StepResult]) -> None:
    wrong = {t: found for t, result in enumerate(steps, 1) if (found := problems(built, result))}
    assert not wrong


def test_a_left_out_update_is_noticed(built: Built, steps: list[StepResult]) -> None:
    """The comparison above says of each parameter by itself that it was not updated: any one would fail it."""
    result = steps[-1]
    stale = {key: result.before[key] for key in result.after if key in built.plan or key.startswith("optimizer.")}
    found = problems(built, replace(result, after={**result.after, **stale}))
    for name in some(built.plan.keys() - result.yardstick.zero):
        assert any(line.startswith(f"update of {name}: ") for line in found), f"nobody noticed {name}"


@pytest.fixture(scope="module")
def curves(built: Built, points: list[Point]) -> dict[torch.dtype, np.ndarray]:
    """Losses of twenty steps without correction, by PyTorch in both precisions."""
    single = free_run(built, [at.batch for at in points], torch.float32)
    return {torch.float64: np.array([at.loss for at in points]), torch.float32: np.array(single)}


def test_free_run_stays_as_close_as_pytorch(
    built: Built, steps: list[StepResult], curves: dict[torch.dtype, np.ndarray]
) -> None:
    """Twenty steps without correction deviate from float64 at most three times as far as PyTorch float32 does."""
    batches = [result.batch for result in steps]
    feeds = {name: np.concatenate([batch[0][name] for batch in batches]) for name in batches[0][0]}
    labels = np.concatenate([batch[1] for batch in batches])
    losses, _ = built.binary.train(_start(built), STEPS, built.binary.write_data(feeds, labels))
    _is_as_close(losses, curves)


def test_onnx_runtime_takes_ten_of_the_steps(
    built: Built, steps: list[StepResult], curves: dict[torch.dtype, np.ndarray]
) -> None:
    """The bundle's training graph: each step from the reference's state, and ten fed back into one another."""
    optimizer = Optimizer(built)
    wrong = {
        t: found for t, result in enumerate(steps[:10], 1) if (found := onnx_problems(built, optimizer, result, t))
    }
    assert not wrong
    own = OnnxStep.of(built.binary.folder)
    losses, _ = own.train(_start(built), [result.batch for result in steps[:10]])
    _is_as_close(losses, curves)


def _start(built: Built) -> State:
    weights = built.reference.initial()
    return to_checkpoint(built, weights, Optimizer(built).fresh(weights))


def _is_as_close(losses: list[float], curves: dict[torch.dtype, np.ndarray]) -> None:
    exact, single = (curves[real][: len(losses)] for real in (torch.float64, torch.float32))
    own, mine = (np.abs(np.array(found) - exact) / np.abs(exact) for found in (single, losses))
    assert mine.max() <= 3 * own.max() + 1e-5
