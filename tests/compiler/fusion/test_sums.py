"""Bias gradients merged into weight gradients: what merges, and that nothing else does."""

from __future__ import annotations

from dataclasses import replace

from compiler.fusion.sums import merge_sums
from compiler.graph import TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.expressions import Const, Ref
from compiler.kernels.spec import KernelSpec, MatmulSpec, ReduceSpec
from compiler.program.aliases import Alias, Aliases
from compiler.program.program import KernelCall, Program
from tests.compiler.named import all_named, named

POSITIONS, CHANNELS = 24, 8
WEIGHT = MatmulSpec(1, 5, CHANNELS, POSITIONS, a_transposed=True, dtype="f32")
WHOLE = Access(TensorType("f32", (POSITIONS, CHANNELS)), (Affine(((0, 1),)), Affine(((1, 1),))))
BIAS = ReduceSpec(
    (POSITIONS, CHANNELS), (0,), "sum", (WHOLE,), Ref(0), Access(TensorType("f32", (CHANNELS,)), (Affine(((1, 1),)),))
)


def call(spec: KernelSpec, inputs: tuple[str, ...], output: str) -> KernelCall:
    return KernelCall(spec, all_named(*inputs), all_named(output), "layer", "backward", 1, 1, 1)


def merged(bias: KernelSpec, weight: KernelSpec = WEIGHT, gradient: str = "d_y") -> tuple[KernelCall, ...]:
    calls = (call(bias, (gradient,), "d_b"), call(weight, ("x", "d_y"), "d_w"))
    return program_of(calls, {named("view"): Alias(named("d_y"))})


def program_of(calls: tuple[KernelCall, ...], aliases: Aliases) -> tuple[KernelCall, ...]:
    result = merge_sums(Program("train", calls, {}, (), (), aliases))
    assert result.modified == (len(result.subject.calls) < len(calls)) != result.subject.ordered
    return result.subject.calls


def test_one_call_makes_both() -> None:
    (both,) = merged(BIAS)
    assert both.spec == replace(WEIGHT, sums=True)
    assert both.outputs == all_named("d_w", "d_b")


def test_a_view_of_the_same_gradient_counts() -> None:
    assert len(merged(BIAS, gradient="view")) == 1


def test_other_sums_stay() -> None:
    scaled = replace(BIAS, epilogue=Const(2.0))
    transposed = replace(BIAS, inputs=(replace(WHOLE, index=WHOLE.index[::-1]),))
    for other in (scaled, transposed, replace(BIAS, combine="max")):
        assert len(merged(other)) == 2
    assert len(merged(BIAS, gradient="d_z")) == 2
    assert len(merged(BIAS, weight=replace(WEIGHT, a_transposed=False))) == 2


def test_a_second_sum_of_the_same_gradient_stays() -> None:
    calls = (call(BIAS, ("d_y",), "d_b"), call(BIAS, ("d_y",), "d_c"), call(WEIGHT, ("x", "d_y"), "d_w"))
    assert [made.outputs for made in program_of(calls, {})] == [all_named("d_c"), all_named("d_w", "d_b")]
