"""What asks for products on tensor cores: the spec's fields, the pass, and what is said where there are none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from compiler.kernels.spec import ConvSpec, MatmulSpec
from compiler.pipeline import compile_step, walk
from compiler.program.multiply_on_tensor_cores import tf32_warnings
from compiler.program.program import Program
from compiler.rewriting.passes import Trace
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from examples.models import MODELS
from tests.sample import sample

IN_TF32 = {"batch": 16, "precision": {"products": "tf32"}}
CUDA = "jetson-orin-nano/cuda"


def scheduled(target: str, spec: Mapping[str, object] = IN_TF32) -> tuple[Program, Trace]:
    """The training step's calls in their order."""
    trace = Trace()
    settings = BuildSettings(SparsePlan.parse("full"), TrainingSpec.parse(spec), load(target))
    stages = walk(MODELS["resnet18"](), settings, trace)
    programs = next(stage.product for stage in stages if stage.name == "schedule")
    assert isinstance(programs, tuple)
    return next(program for program in programs if program.name == "train"), trace


def products_of(program: Program) -> Counter[tuple[str, str]]:
    specs = [call.spec for call in program.calls if isinstance(call.spec, MatmulSpec | ConvSpec)]
    return Counter((spec.kind if isinstance(spec, ConvSpec) else "matmul", spec.products) for spec in specs)


def test_products_of_both_directions_are_made_so() -> None:
    program, trace = scheduled(CUDA)
    found = products_of(program)
    made = {kind for kind, products in found if products == "tf32"}
    assert made == {"forward", "weight_grad", "input_grad", "matmul"}
    assert {declined.code for name, declined in trace.declined() if name == "multiply_on_tensor_cores"} <= {
        "tensor_cores.narrow",
        "tensor_cores.short",
    }


@pytest.mark.parametrize("target", sample(["x86-64-v3", "x86-64-v4-bf16", "x86-64-v3/opencl", CUDA], [CUDA]))
def test_nothing_is_rounded_elsewhere_or_unasked(target: str) -> None:
    spec = {"batch": 16} if target == CUDA else IN_TF32
    program, trace = scheduled(target, spec)
    assert {products for _, products in products_of(program)} == {""}
    assert "multiply_on_tensor_cores" not in {step.name for step in trace.steps}


@pytest.mark.parametrize("target", ["x86-64-v3", "raspberry-pi-5", "x86-64-v3/opencl"])
def test_a_target_without_tensor_cores_says_so(target: str) -> None:
    (warning,) = tf32_warnings(load(target))
    assert (warning.code, warning.where) == ("precision.widened", "spec.precision.products")
    assert f"{target} has no tensor cores for TF32" in warning.message
    assert ("x86-64-v3/cuda" if "x86" in target else CUDA) in warning.hint


def test_a_target_with_tensor_cores_says_nothing() -> None:
    assert tf32_warnings(load(CUDA)) == ()


@pytest.mark.parametrize(("target", "says_so"), [("x86-64-v3", True), (CUDA, False)])
def test_a_build_says_it(target: str, says_so: bool, kernel_cache: Path) -> None:
    spec = TrainingSpec.parse(IN_TF32)
    settings = BuildSettings(SparsePlan.parse("full"), spec, load(target), cache_dir=kernel_cache)
    step = compile_step(MODELS["small_cnn"](), settings)
    assert ("precision.widened" in {warning.code for warning in step.warnings}) == says_so


@pytest.mark.parametrize("compute", ["bf16", "f16"])
@pytest.mark.parametrize("others", sample(["f32", "tf32"], ["tf32"]))
def test_factors_of_sixteen_bits_are_multiplied_so(compute: str, others: str) -> None:
    program, _ = scheduled(CUDA, {"batch": 16, "precision": {"compute": compute, "products": others}})
    calls = [call for call in program.calls if isinstance(call.spec, MatmulSpec | ConvSpec)]
    made: dict[str, list[set[str]]] = {}
    for call in calls:
        assert isinstance(call.spec, MatmulSpec | ConvSpec)
        made.setdefault(call.spec.products, []).append({program.types[value].dtype for value in call.inputs[:2]})
    assert len(made[compute]) > 30
    assert all(compute in held for held in made[compute])
    assert all(held == {"f32"} for products, group in made.items() if products != compute for held in group)
    assert ("tf32" in made) == (others == "tf32"), "the image's convolution reads f32"


@pytest.mark.parametrize(("target", "says_so"), [("x86-64-v3/opencl", True), (CUDA, False)])
def test_engines_hold_sixteen_bits(target: str, says_so: bool, kernel_cache: Path) -> None:
    spec = TrainingSpec.parse({"batch": 16, "precision": {"compute": "bf16"}})
    settings = BuildSettings(SparsePlan.parse("full"), spec, load(target), cache_dir=kernel_cache)
    step = compile_step(MODELS["small_cnn"](), settings)
    assert ("precision.widened" in {warning.code for warning in step.warnings}) == says_so
    held = [tensor.dtype for program in step.programs.values() for tensor in program.types.values()]
    assert "bf16" in held


def test_a_spec_that_does_not_say_it_stays_as_it_was() -> None:
    plain, told = TrainingSpec.parse({}), TrainingSpec.parse({"precision": {"products": "f32"}})
    assert plain.digest == told.digest != TrainingSpec.parse(IN_TF32).digest
    assert "products" not in plain.canonical_json()
