"""Which values of a program are held in sixteen bits, and which products are made of them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from compiler.kernels.spec import MatmulSpec
from compiler.pipeline import walk
from compiler.program.program import Program
from compiler.rewriting.passes import Trace
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.spec.precision import Compute
from compiler.targets import load
from examples.models import MODELS
from tests.sample import some

NOTHING: Mapping[str, object] = {}
ENCODER = {"tokens": 100, "positions": 16, "width": 32}


def programs(
    compute: Compute, target: str = "x86-64-v4", batch: int = 4, more: Mapping[str, object] = NOTHING
) -> tuple[Program, ...]:
    spec = {"batch": batch, "precision": {"compute": compute}, "optimizer": {"kind": "adamw"}, **more}
    settings = BuildSettings(SparsePlan.parse("full"), TrainingSpec.parse(spec), load(target))
    for stage in walk(MODELS["transformer_encoder"](**ENCODER), settings, Trace()):
        if stage.name == "schedule":
            assert isinstance(stage.product, tuple)
            return stage.product
    raise AssertionError("no programs")


@pytest.fixture(scope="module")
def held() -> tuple[Program, ...]:
    return programs("bf16")


def test_nothing_changes_without_being_asked() -> None:
    for program in some(programs("f32")):
        assert all(tensor.dtype not in ("bf16", "f16") for tensor in program.types.values())


def test_what_outlives_a_call_chain_stays_whole(held: tuple[Program, ...]) -> None:
    for program in held:
        for value in (*program.inputs, *program.outputs, *program.updates, *program.state):
            assert not program.types[value].element.is_half, program.name_of(value)
        for call in program.calls:
            if call.phase == "update":
                assert not any(program.types[value].element.is_half for value in (*call.inputs, *call.outputs))


@pytest.mark.parametrize("more", [{"accumulate": 3}, {"optimizer": {"kind": "adamw", "clip_norm": 1.0}}])
def test_gradients_of_parameters_stay_whole_also_where_no_product_updates(more: dict[str, object]) -> None:
    for program in programs("bf16", more=more):
        gradients = [call for call in program.calls if isinstance(call.spec, MatmulSpec) and call.spec.a_transposed]
        assert gradients or program.name == "forward"
        assert not any(program.types[call.outputs[0]].element.is_half for call in gradients)


def test_a_scaled_loss_costs_no_call() -> None:
    """Gradients are divided by the scale where they are made, or where they are used."""
    for scaled, plain in zip(programs("f16"), programs("bf16"), strict=True):
        assert [call.layer + call.phase for call in scaled.calls] == [call.layer + call.phase for call in plain.calls]


def test_most_of_what_lies_between_calls_is_held_in_half(held: tuple[Program, ...]) -> None:
    plain = programs("f32")
    for program, before in zip(held, plain, strict=True):
        kept = {*program.inputs, *program.outputs, *program.updates, *program.state}
        between = [value for value in program.types if program.root(value) not in kept and value not in kept]
        real = [value for value in between if program.types[value].element.is_real]
        ours = sum(program.types[value].size_bytes for value in real)
        theirs = sum(before.types[value].size_bytes for value in real)
        assert ours < 0.65 * theirs


def test_values_that_share_storage_are_held_alike(held: tuple[Program, ...]) -> None:
    for program in held:
        for value in program.types:
            assert program.types[value].element.is_half == program.types[program.root(value)].element.is_half


def test_a_call_says_what_it_moves(held: tuple[Program, ...]) -> None:
    plain = {call.layer + call.phase: call for call in programs("f32")[0].calls}
    halved = [call for call in held[0].calls if isinstance(call.spec, MatmulSpec) and call.spec.stored]
    assert halved
    for call in halved:
        before = plain[call.layer + call.phase]
        assert call.bytes_read + call.bytes_written < before.bytes_read + before.bytes_written


@pytest.mark.parametrize(
    ("compute", "target", "products"),
    [
        ("bf16", "x86-64-v4", set()),
        ("bf16", "x86-64-v4-bf16", {"bf16"}),
        ("f16", "x86-64-v4-bf16", set()),
        ("f16", "raspberry-pi-4", set()),
        ("f16", "raspberry-pi-5", {"f16"}),
    ],
)
def test_halves_are_multiplied_where_a_machine_can(compute: Compute, target: str, products: set[str]) -> None:
    specs = [call.spec for program in programs(compute, target) for call in program.calls]
    assert {spec.products for spec in specs if isinstance(spec, MatmulSpec)} - {""} == products


def test_an_odd_number_of_steps_is_multiplied_in_f32() -> None:
    """Of a weight gradient over 3 x 16 tokens; and over 3 samples, of the classifier's."""
    specs = [call.spec for program in programs("bf16", "x86-64-v4-bf16", batch=3) for call in program.calls]
    odd = [spec for spec in specs if isinstance(spec, MatmulSpec) and spec.k % 2]
    assert odd
    assert not any(spec.products for spec in odd)
