"""A step whose activations are bfloat16 or float16 is as close to float64 as PyTorch's own autocast is (of float16,
with gradients scaled as its `GradScaler` has them), on the author's module."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compiler.api import BuildSettings
from compiler.spec.precision import Compute
from compiler.targets import load, load_cpu
from tests.compiler.agreement.cases import CASES
from tests.compiler.agreement.course import course
from tests.compiler.agreement.harness import (
    Batch,
    Built,
    Optimizer,
    State,
    build,
    from_checkpoint,
    gradients_of,
    to_checkpoint,
)
from tests.compiler.agreement.played_gpu import runner_of
from tests.compiler.agreement.step_binary import native_target
from tests.compiler.codegen.tile_emulation import EMULATED, emulated_builds
from tests.kernel_harness.machine import runs
from tests.sample import sample
from tests.skips import needs_instructions

MODELS = (
    "mlp-full",
    "digits-cnn-full",
    "encoder-full-adamw",
    "encoder-sparse",
    "exported-encoder-full",
    "mobilenet-ratio",
    "resnet18-full",
    "authored-fresh-encoder",
)
FACTOR = 2.5
"""How many times autocast's distance from float64 a gradient of ours may have: rounding falls where it falls."""
FLOOR = {"bf16": 4e-3, "f16": 5e-4}
"""One rounding, which autocast's gradient of a bias may be spared."""
BATCHES = 9
"""Medians of so many are compared: where a small net has ReLU, a unit that rounding turns on or off moves all gradients
below it by a hundred times what float16 rounds, of ours in one batch and of autocast's in another. With bfloat16 that
is usual, in every batch."""
LOSS = {"bf16": 1e-2, "f16": 2e-3}
SCALE = 2.0**16
"""PyTorch's own first one."""
PAIRS = "x86-64-v4-bf16"
TARGETS = (native_target(), PAIRS)
"""Products in f32, and of pairs of bfloat16 by instructions of this processor."""


BOARD = "raspberry-pi-5"
"""Products of float16, emulated."""
TILES = EMULATED.name
"""Products of bfloat16 in tile registers, which are emulated too where this machine has none."""
OPENCL, CUDA = "x86-64-v3/opencl", "x86-64-v3/cuda"
"""Products in f32; and on tensor cores of a GPU that is played (played_gpu.py)."""
COMPUTES: tuple[Compute, ...] = ("bf16", "f16")
WAYS: tuple[tuple[str, str, Compute], ...] = (
    *((name, target, "bf16") for name in MODELS for target in TARGETS),
    *((name, native_target(), "f16") for name in MODELS),
    ("encoder-full-adamw", BOARD, "f16"),
    ("encoder-full-adamw", TILES, "bf16"),
    *((name, engine, compute) for name in MODELS for engine in (OPENCL, CUDA) for compute in COMPUTES),
)


KEPT = {
    f"encoder-sparse-{native_target()}-bf16",
    f"mlp-full-{native_target()}-f16",
}
"""What `make test` runs: both kinds of numbers, on this machine."""


def as_parameter(way: tuple[str, str, Compute]) -> Any:
    marks = (needs_instructions(PAIRS),) if way[1] == PAIRS else ()
    return pytest.param(way, id="-".join(way), marks=marks)


@pytest.fixture(scope="module", params=sample(map(as_parameter, WAYS), KEPT))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> Built:
    name, target, compute = request.param
    runner: tuple[str, ...] = ("qemu-aarch64-static", "-cpu", "cortex-a76") if target == BOARD else ()
    case = replace(CASES[name](), compute=compute)
    if target == TILES and not runs(load_cpu(TILES)):
        with emulated_builds() as board:
            return build(case, board, tmp_path_factory.mktemp("step"), tmp_path_factory.mktemp("cache"))
    if target == CUDA:
        settings = BuildSettings(case.plan, case.spec, load(CUDA), cache_dir=kernel_cache)
        runner = runner_of(case.model, settings, tmp_path_factory.mktemp("gpu"))
    return build(case, target, tmp_path_factory.mktemp("step"), kernel_cache, runner)


def autocast(built: Built, weights: State, batch: Batch) -> State:
    """PyTorch's own gradients in half precision, by the kernels that round alike on every CPU."""
    dtype, scale = (torch.float16, SCALE) if built.case.compute == "f16" else (torch.bfloat16, 1.0)
    with warnings.catch_warnings(), torch.autocast("cpu", dtype=dtype):
        warnings.simplefilter("ignore", UserWarning)  # of GPUs, which the next line also asks about
        with torch.backends.mkldnn.flags(enabled=False):
            return built.reference.loss_and_gradients(weights, *batch, torch.float32, scale=scale)[1]


def distances(built: Built, gradients: State, exact: State) -> dict[str, float]:
    """Of each learning parameter's gradient from float64, by its length; vanishing ones by a share of the longest."""
    norms = {name: float(np.linalg.norm(exact[name])) for name in built.plan}
    least = 1e-3 * max(norms.values())
    return {name: float(np.linalg.norm(gradients[name] - exact[name])) / max(norms[name], least) for name in built.plan}


def learning(built: Built, gradients: Mapping[str, np.ndarray]) -> State:
    return {name: gradients[name][window] for name, window in built.plan.items()}


def test_a_step_is_as_close_to_float64_as_autocast(built: Built) -> None:
    at, compute = next(iter(course(built, 1))), built.case.compute
    start = to_checkpoint(built, at.weights, at.state)
    weights, _ = from_checkpoint(built, start)
    limits, founds = [], []
    for batch in (at.batch, *(built.case.draw(seed) for seed in range(1, BATCHES))):
        exact_loss, exact = built.reference.loss_and_gradients(weights, *batch, torch.float64)
        theirs = autocast(built, weights, batch)
        losses, after = built.binary.train(start, 1, built.binary.write_data(*batch), start=at.t - 1)
        assert losses[0] == pytest.approx(exact_loss, rel=LOSS[compute])
        assert losses[0] != pytest.approx(exact_loss, rel=1e-7), "nothing was rounded"
        limits.append(distances(built, learning(built, theirs), learning(built, exact)))
        founds.append(distances(built, gradients_of(built, Optimizer(built), start, after), learning(built, exact)))
    limit, found = medians(limits), medians(founds)
    usual = float(np.median(list(limit.values())))  # a gradient of autocast's may be right by luck
    floor = FLOOR[compute]
    far = {name: far for name, far in found.items() if far > FACTOR * max(limit[name], usual) + floor}
    assert not far
    assert np.median(list(found.values())) < 1.5 * usual + floor


def medians(batches: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.median([one[name] for one in batches])) for name in batches[0]}
