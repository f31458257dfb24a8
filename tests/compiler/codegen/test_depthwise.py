"""Depth-wise convolutions against NumPy float64: strides, pads, dilations, channel tails, epilogues."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from compiler.codegen.choice import choose
from compiler.codegen.depthwise.plan import default_plan
from compiler.codegen.family import choices_of
from compiler.kernels.expressions import Binary, Ref
from compiler.targets import load_cpu
from tests.compiler.codegen.contractions import (
    RELU6,
    Kind,
    check,
    depthwise,
    distance,
    expected,
    random_inputs,
    run_native,
)
from tests.compiler.codegen.reference import identity, picked
from tests.kernel_harness.launch import Kernel
from tests.kernel_harness.machine import native_target
from tests.sample import crossed, sample, thinned

KINDS: tuple[Kind, ...] = ("forward", "input_grad", "weight_grad")
CASES: dict[str, tuple[Any, ...]] = {
    "same": ((2, 14, 13, 32), (3, 3), (1, 1), (1, 1, 1, 1)),
    "strided": ((2, 13, 11, 24), (3, 3), (2, 2), (1, 1, 1, 1)),
    "strided, one-sided pads": ((2, 12, 12, 35), (3, 3), (2, 2), (0, 0, 1, 1)),
    "5x5": ((1, 9, 10, 17), (5, 5), (1, 1), (2, 2, 2, 2)),
    "7x7 strided": ((2, 14, 15, 40), (7, 7), (2, 2), (3, 3, 3, 3)),
    "dilated": ((1, 12, 13, 8), (3, 3), (1, 1), (2, 2, 2, 2), (2, 2)),
    "kernel above image": ((1, 3, 3, 16), (7, 7), (1, 1), (3, 3, 3, 3)),
    "few channels": ((1, 8, 9, 3), (2, 3), (3, 2), (1, 0, 0, 2)),
    "one pixel": ((3, 1, 1, 20), (3, 3), (1, 1), (1, 1, 1, 1)),
    "long rows": ((1, 6, 70, 16), (3, 3), (1, 1), (1, 1, 1, 1)),
}


@pytest.mark.parametrize("case", thinned(CASES, 3))
@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: Kind, case: str) -> None:
    check(depthwise(kind, *CASES[case]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
def test_threads(kind: Kind, threads: int) -> None:
    check(depthwise(kind, (3, 28, 28, 48), (3, 3), (2, 2), (1, 1, 1, 1)), threads=threads)


@pytest.mark.parametrize("kind", KINDS)
def test_avx2(kind: Kind) -> None:
    """Five by five taps do not fit AVX2's registers: one kernel row at a time."""
    check(depthwise(kind, (2, 12, 13, 20), (5, 5), (1, 1), (2, 2, 2, 2)), target="x86-64-v3")


@pytest.mark.parametrize(
    ("kind", "threads"), sample(crossed(["forward", "input_grad"], [1, 3]), ["forward-3", "input_grad-1"])
)
def test_rows_from_memory(kind: Kind, threads: int) -> None:
    """Several rows at a time, fetched ahead, give what one at a time does, whether or not they divide the image."""
    spec = depthwise(kind, (2, 45, 60, 72), (3, 3), (1, 1), (1, 1, 1, 1))
    target = load_cpu(native_target())
    plan = default_plan(spec, target, threads)
    assert plan.ahead
    inputs = random_inputs(spec)
    (one,) = Kernel(spec, target, threads, choose(rows=1)).run(*inputs)
    for rows in (2, 3):
        (several,) = Kernel(spec, target, threads, choose(rows=rows)).run(*inputs)
        assert several.tobytes() == one.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_epilogues(kind: Kind) -> None:
    spec = depthwise(kind, (2, 13, 12, 20), (3, 3), (2, 2), (1, 1, 1, 1))
    shape = {
        "forward": (spec.n, spec.oh, spec.ow, spec.c),
        "input_grad": (spec.n, spec.h, spec.w, spec.c),
        "weight_grad": (3, 3, spec.c),
    }[kind]
    last = len(shape) - 1
    inputs = (identity(*shape), picked((spec.c,), last), picked((shape[1],), 1))
    expr = Binary("add", Binary("mul", RELU6, Ref(1)), Binary("mul", Ref(2), Ref(3)))
    check(dataclasses.replace(spec, epilogue=expr, epilogue_inputs=inputs))


@pytest.mark.parametrize("case", thinned(CASES, 4))
@pytest.mark.parametrize("target", ["x86-64-v3", native_target()])
def test_bias_gradient(case: str, target: str) -> None:
    """The sums of d_y beside the weight gradient, with and without registers for all taps."""
    spec = dataclasses.replace(depthwise("weight_grad", *CASES[case]), sums=True)
    inputs = random_inputs(spec)
    d_w, d_bias = Kernel(spec, load_cpu(target), 2).run(*inputs)
    assert distance(d_w, expected(spec, inputs)) <= 6e-7
    assert distance(d_bias, inputs[1].astype("float64").sum((0, 1, 2))) <= 6e-7


@pytest.mark.parametrize(
    ("kind", "stride"), sample(crossed(KINDS, [1, 2]), ["forward-1", "input_grad-2", "weight_grad-1"])
)
def test_every_choice(kind: Kind, stride: int) -> None:
    spec = depthwise(kind, (2, 13, 15, 20), (3, 3), (stride, stride), (1, 1, 1, 1))
    target = load_cpu(native_target())
    inputs = random_inputs(spec)
    offered = choices_of(spec, target, 2)
    assert len(offered) > 2
    for choice in offered:
        (got,) = Kernel(spec, target, 2, choice).run(*inputs)
        assert distance(got, expected(spec, inputs)) <= 6e-7, choice.text


def test_long_sums_are_as_accurate_as_pytorch() -> None:
    spec = depthwise("weight_grad", (8, 112, 112, 16), (3, 3), (1, 1), (1, 1, 1, 1))
    inputs = random_inputs(spec)
    weight = torch.zeros(16, 1, 3, 3, requires_grad=True)
    x, d_y = (torch.from_numpy(array).permute(0, 3, 1, 2) for array in inputs)
    torch.nn.functional.conv2d(x, weight, padding=1, groups=16).backward(d_y)
    assert weight.grad is not None
    want = expected(spec, inputs)
    theirs = distance(weight.grad[:, 0].permute(1, 2, 0).numpy(), want)
    assert distance(run_native(spec, inputs, 2), want) <= 3 * theirs
