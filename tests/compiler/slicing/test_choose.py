"""The choice of groups, and a binary whose calls are cut: it trains as the whole one does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from compiler.api import BuildSettings, compile_training
from compiler.call_passes import call_passes
from compiler.errors import DoesNotFit
from compiler.frontend.importer import import_model
from compiler.kernels.spec import DepthwiseSpec
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.pipeline import derive_training_step, make_programs
from compiler.program.cost import Cache, Machine, Operand
from compiler.program.program import Program
from compiler.slicing.choose import choose_groups
from compiler.slicing.flow import parts_of
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.step.plan import resolve_plan
from compiler.targets import load_cpu
from compiler.values import Value
from examples.models import MODELS
from tests.compiler.agreement.step_binary import StepBinary
from tests.kernel_harness.machine import native_target

PASSES = call_passes(load_cpu("x86-64-v4"))
BATCH = 4
SPEC = TrainingSpec.parse({"batch": BATCH, "optimizer": {"kind": "sgd", "momentum": 0.9}, "threads": 2})
FULL = SparsePlan.of_preset("full")
NATIVE = load_cpu(native_target())
COSTS = load_cpu("x86-64-v4").costs


def _train_program(resolution: int) -> Program:
    model = MODELS["mcunet"](resolution=resolution)
    graph = import_model(model, input_shapes={}, batch=BATCH, batch_norm="fold")
    forward = run_passes(graph, FORWARD_PASSES)
    return make_programs(forward, derive_training_step(forward, resolve_plan(forward, FULL), SPEC), PASSES)[0][0]


def test_high_resolution_is_cut_and_late_layers_stay_whole() -> None:
    program = _train_program(192)
    cut = parts_of(program, choose_groups(program, BATCH, Machine(1 << 20, COSTS)))
    sizes = {
        found: [
            call.spec.h
            for position, call in enumerate(program.calls)
            if isinstance(call.spec, DepthwiseSpec) and (position in cut) == found
        ]
        for found in (True, False)
    }
    assert sizes[True]
    assert sizes[False]
    assert np.mean(sizes[True]) > 2 * np.mean(sizes[False])


def test_nothing_is_cut_that_fits_the_cache_or_has_one_sample() -> None:
    program = _train_program(64)
    assert choose_groups(program, BATCH, Machine(1 << 30, COSTS)) == ()
    assert choose_groups(program, 1, Machine(1 << 10, COSTS)) == ()


def test_a_sliced_binary_trains_as_the_whole_one(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = MODELS["small_cnn"]()
    cache = tmp_path_factory.mktemp("kernels")
    checkpoints = {}
    for name, capacity_bytes in {"whole": 1 << 30, "sliced": 1 << 10}.items():
        costs = replace(COSTS, launch_us=0.0, cache_share=capacity_bytes / NATIVE.l3_bytes)
        target = replace(NATIVE, costs=costs)
        bundle = compile_training(model, BuildSettings(FULL, SPEC, target, cache_dir=cache))
        binary = StepBinary.unpack(bundle, tmp_path / name)
        groups = json.loads((tmp_path / name / "report.json").read_text())["groups"]
        assert bool(groups) == (name == "sliced")
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        shape = manifest["inputs"][0]["shape"]
        rng = np.random.default_rng(3)
        x = rng.normal(size=(2 * BATCH, *shape[1:])).astype(np.float32)
        data = binary.write_data({manifest["inputs"][0]["name"]: x}, rng.integers(0, 10, 2 * BATCH))
        state = {k: v for k, v in load_file(binary.weights).items() if not k.startswith("constant.")}
        _, checkpoints[name] = binary.train(state, 4, data)
    for key, want in checkpoints["whole"].items():
        np.testing.assert_allclose(checkpoints["sliced"][key], want, rtol=1e-4, atol=1e-6, err_msg=key)


def test_a_budget_too_small_for_any_slicing_is_refused_with_the_least_need() -> None:
    limited = {"batch": BATCH, "optimizer": {"kind": "sgd"}, "memory_limit_bytes": 1000, "threads": 2}
    spec = TrainingSpec.parse(limited)
    with pytest.raises(DoesNotFit) as refused:
        compile_training(MODELS["small_cnn"](), BuildSettings(plan=FULL, spec=spec, target=load_cpu(native_target())))
    assert refused.value.needed_bytes > 1000


def test_a_cache_holds_of_a_value_what_was_read_last() -> None:
    """A value that was read whole and then in part took the bytes of the whole for ever, so that others left for it."""
    cache = Cache(100)
    first, second = (Operand(Value(number), 80) for number in (1, 2))
    assert cache.read(first, 80) == 80
    assert cache.read(first, 20) == 0
    assert (cache.used_bytes, cache.changed_bytes) == (20, 0)
    assert cache.write(second, 80) == 0, "both fit"
    assert cache.read(first, 20) == 0, "it is still there"
    assert (cache.used_bytes, cache.changed_bytes) == (100, 80)
    assert cache.read(Operand(Value(3), 50), 50) == 50 + 50, "what is changed is written when it leaves"
    assert (cache.used_bytes, cache.changed_bytes) == (100, 30)
    cache.drop(second.root)
    assert (cache.used_bytes, cache.changed_bytes) == (70, 0)
