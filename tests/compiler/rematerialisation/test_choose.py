"""What is repeated: never more kept than before, less memory with every level, a binary that trains as before."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from compiler.api import BuildSettings, compile_training
from compiler.errors import DoesNotFit
from compiler.program.cost import Machine
from compiler.program.memory import plan_memory
from compiler.rematerialisation.choose import lowering_peak, rank_repeats
from compiler.rematerialisation.rewrite import repeat_calls
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from examples.models import MODELS
from tests.compiler.agreement.step_binary import StepBinary
from tests.compiler.rematerialisation.small_steps import BATCH, CASES, SmallStep, small_step
from tests.kernel_harness.machine import native_target
from tests.sample import thinned

FULL = SparsePlan.of_preset("full")
COSTS = load("x86-64-v4").costs


def _arena_bytes(step: SmallStep, positions: list[int]) -> int:
    _, memory = plan_memory((repeat_calls(step.train, positions),), step.state, lambda call: 0)
    return memory.arena_bytes


def _kept_bytes(step: SmallStep, positions: list[int]) -> int:
    """Bytes made in the forward pass that later calls read: counted in the program itself."""
    program = repeat_calls(step.train, positions)
    made = {name for call in program.calls if call.phase == "forward" for name in call.outputs}
    late = {program.root(name) for call in program.calls if call.phase != "forward" for name in call.inputs}
    return sum(program.types[name].size_bytes for name in made & late)


@pytest.mark.parametrize("case", thinned(sorted(CASES), 2))
def test_each_repeat_saves_what_it_says(case: str) -> None:
    step = small_step(case)
    repeats = rank_repeats(step.train, Machine(1 << 10, COSTS))
    assert repeats
    positions: list[int] = []
    for repeat in repeats:
        before = _kept_bytes(step, positions)
        positions.append(repeat.position)
        assert before - _kept_bytes(step, positions) == repeat.saved_bytes


@pytest.mark.parametrize("case", thinned(sorted(CASES.keys() - {"mcunet-bias"}), 2))  # of bits, little is kept
def test_repeats_lower_the_peak(case: str) -> None:
    """Repeating all that saves kept bytes would make the whole forward pass again at once; what is taken does not."""
    step = small_step(case)
    repeats = rank_repeats(step.train, Machine(1 << 10, COSTS))
    taken = [repeat.position for repeat in lowering_peak(step.train, repeats)]
    assert _arena_bytes(step, taken) < 0.9 * _arena_bytes(step, [])
    assert _arena_bytes(step, taken) < 1.01 * _arena_bytes(step, [repeat.position for repeat in repeats])


def test_long_reductions_gain_nothing_and_values_in_the_cache_neither() -> None:
    encoder, mcunet = small_step("encoder").train, small_step("mcunet").train
    assert not any(repeat.gains for repeat in rank_repeats(mcunet, Machine(1 << 30, COSTS)))
    gaining = [repeat.position for repeat in rank_repeats(encoder, Machine(1 << 10, COSTS)) if repeat.gains]
    assert not any(encoder.calls[position].layer.endswith("attention") for position in gaining)


def _train(limit_bytes: int | None, folder: Path, cache: Path) -> tuple[dict[str, np.ndarray], int, int]:
    """Parameters after four steps, planned bytes, and how many calls are repeated."""
    limited = {"batch": BATCH, "optimizer": {"kind": "sgd", "momentum": 0.9}, "threads": 2}
    spec = TrainingSpec.parse(limited | ({"memory_limit_bytes": limit_bytes} if limit_bytes else {}))
    model = MODELS["small_cnn"]()
    bundle = compile_training(model, BuildSettings(plan=FULL, spec=spec, target=load(native_target()), cache_dir=cache))
    binary = StepBinary.unpack(bundle, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2 * BATCH, *manifest["inputs"][0]["shape"][1:])).astype(np.float32)
    data = binary.write_data({manifest["inputs"][0]["name"]: x}, rng.integers(0, 10, 2 * BATCH))
    state = {k: v for k, v in load_file(binary.weights).items() if not k.startswith("constant.")}
    _, after = binary.train(state, 4, data)
    repeated = sum(kernel["again"] for kernel in manifest["kernels"])
    notes = json.loads((folder / "report.json").read_text())["notes"]
    assert any("run again in the backward pass" in note for note in notes) == bool(repeated)
    return after, manifest["memory"]["peak_bytes"], repeated


def test_a_limit_is_kept_by_repeating_what_costs_time(tmp_path: Path, kernel_cache: Path) -> None:
    free, needed_bytes, before = _train(None, tmp_path / "free", kernel_cache)
    spec = TrainingSpec.parse(
        {"batch": BATCH, "optimizer": {"kind": "sgd", "momentum": 0.9}, "threads": 2, "memory_limit_bytes": 1000}
    )
    with pytest.raises(DoesNotFit, match=r"\b3 forward kernels repeated") as refused:
        compile_training(MODELS["small_cnn"](), BuildSettings(plan=FULL, spec=spec, target=load(native_target())))
    assert refused.value.needed_bytes < needed_bytes
    tight, least_bytes, after = _train(refused.value.needed_bytes, tmp_path / "tight", kernel_cache)
    assert least_bytes == refused.value.needed_bytes
    assert after > before
    for key, want in free.items():
        np.testing.assert_allclose(tight[key], want, rtol=1e-4, atol=1e-6, err_msg=key)
