"""A step with frozen weights in whole numbers is that of the author's model with those weights rounded by NumPy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from compiler.api import BuildSettings, compile_training
from compiler.frontend.importer import import_model
from compiler.spec.precision import Frozen
from compiler.targets import load
from tests.compiler.agreement.cases import CASES
from tests.compiler.agreement.course import course
from tests.compiler.agreement.harness import Built, Optimizer, gradients_of, to_checkpoint
from tests.compiler.agreement.played_gpu import runner_of
from tests.compiler.agreement.reference import what_learns
from tests.compiler.agreement.step_binary import StepBinary, native_target
from tests.sample import crossed, sample

MODELS = ("encoder-sparse", "mobilenet-bias-only")
"""Look-ups and products of every layout; convolutions, some depth-wise."""
BESIDE = 1.2
"""Memory for weights, scales and gaps of alignment among it, by the bytes of each number: four in f32."""
GROUP = 64
"""Inputs of a channel that have one scale, where weights have four bits."""


def rounded(model: bytes, name: str, array: np.ndarray, *, in_groups: bool) -> np.ndarray:
    """The weight as whole numbers of a 127th of each output channel's largest, or a 7th of each group's, times that."""
    graph = onnx.ModelProto.FromString(model).graph
    node = next(node for node in graph.node if name in node.input)
    axis = array.ndim - 1 if node.op_type == "MatMul" else 0
    channels_first = np.moveaxis(array, axis, 0)
    rows = channels_first.reshape(-1, GROUP) if in_groups else channels_first.reshape(len(channels_first), -1)
    step = (np.abs(rows).max(axis=1, keepdims=True) / np.float32(7 if in_groups else 127)).astype(np.float32)
    held = (np.rint(rows / step) * step).astype(np.float32)
    assert (np.abs(held - rows) <= step * 0.5001).all()
    near = np.moveaxis(held.reshape(channels_first.shape), 0, axis)
    assert not np.array_equal(near, array)
    return near


def relative_errors(array: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Along the first axis."""
    rows = (side.astype(np.float64).reshape(len(side), -1) for side in (array, near))
    own, other = rows
    return np.asarray(np.linalg.norm(own - other, axis=1) / np.linalg.norm(own, axis=1))


ENGINES = ("x86-64-v3/opencl", "x86-64-v3/cuda")
WAYS = (*crossed(MODELS, ("int8", "int4"), (native_target(),)), *crossed(MODELS, ("int8", "int4"), ENGINES))


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    sample(
        WAYS,
        {f"encoder-sparse-{kind}-{native_target()}" for kind in ("int8", "int4")},
        "-".join,
    ),
)
def test_a_step_is_that_of_the_rounded_model(
    name: str, kind: Frozen, target: str, tmp_path: Path, kernel_cache: Path
) -> None:
    case = replace(CASES[name](), frozen=kind)
    settings = BuildSettings(case.plan, case.spec, load(target), cache_dir=kernel_cache, jobs=1)
    bundle = compile_training(case.model, settings)
    layouts = import_model(case.model, input_shapes={}, batch=case.batch, batch_norm="fold").named_parameters()
    binary, memory = (
        StepBinary.unpack(bundle, tmp_path, runner_of(case.model, settings, tmp_path)),
        bundle.manifest["memory"],
    )
    built = Built(case, what_learns(case.plan, case.reference), layouts, binary, memory)
    told = bundle.manifest["frozen"]
    whole = {own: array for own, array in case.reference.initial().items() if array.ndim > 1}
    learn = {own for own, window in built.plan.items() if own in whole and whole[own][window].size == whole[own].size}
    assert {*told["errors"], *told["kept"]} == whole.keys() - learn
    assert built.plan.keys().isdisjoint(told["errors"])
    four = told["errors"].keys() - told["in_eight_bits"].keys() if kind == "int4" else set()
    assert bool(four) == (kind == "int4")
    counted = dict.fromkeys(told["errors"], 1.0) | dict.fromkeys(four, 0.5 + 4 / GROUP)
    sizes = {own: array.size * counted.get(own, 4.0) for own, array in case.reference.initial().items()}
    assert memory["weights_bytes"] < BESIDE * sum(sizes.values())

    at = next(iter(course(built, 1)))
    near = {
        own: rounded(case.model, own, whole[own].astype(np.float32), in_groups=own in four) for own in told["errors"]
    }
    convolved = [own for own in near if near[own].ndim == 4]  # channels first in every file
    assert all(
        relative_errors(whole[parameter], near[parameter]).max() == pytest.approx(told["errors"][parameter], rel=0.02)
        for parameter in convolved
    )
    weights = {**at.weights, **near}
    _, theirs = built.reference.loss_and_gradients(weights, *at.batch, torch.float32)
    exact_loss, exact = built.reference.loss_and_gradients(weights, *at.batch, torch.float64)
    start = to_checkpoint(built, weights, at.state)
    given = {own: array for own, array in start.items() if own not in near}
    losses, after = binary.train(given, 1, binary.write_data(*at.batch), start=at.t - 1)
    assert after.keys().isdisjoint(near), "no checkpoint has them"
    assert losses[0] == pytest.approx(exact_loss, rel=1e-5)
    ours = gradients_of(built, Optimizer(built), start, {**start, **after})
    longest = max(float(np.linalg.norm(exact[own][window])) for own, window in built.plan.items())
    for own, window in built.plan.items():
        wanted = exact[own][window]
        length = max(float(np.linalg.norm(wanted)), 1e-3 * longest)
        mine, torch_own = (float(np.linalg.norm(side - wanted)) / length for side in (ours[own], theirs[own][window]))
        assert mine < 3 * torch_own + 1e-5, own
