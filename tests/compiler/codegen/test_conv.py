"""Dense convolutions against NumPy float64 and PyTorch: strides, pads, dilations, tails, epilogues, accuracy."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch

from compiler.codegen.choice import choose
from compiler.codegen.conv.phases import alike_phases, axis_phases
from compiler.codegen.conv.plan import plan
from compiler.kernels.expressions import Binary, Ref
from compiler.kernels.spec import ConvSpec
from compiler.targets import load_cpu
from tests.compiler.codegen.contractions import (
    RELU6,
    Kind,
    check,
    check_sums,
    conv,
    distance,
    expected,
    random_inputs,
    run_native,
)
from tests.compiler.codegen.reference import identity, picked
from tests.kernel_harness.machine import native_target
from tests.sample import thinned

DIRECT = choose(winograd=0)
"""Winograd has its own tests."""
checked = partial(check, choice=DIRECT)
KINDS: tuple[Kind, ...] = ("forward", "input_grad", "weight_grad")
CASES: dict[str, tuple[Any, ...]] = {
    "stem": ((2, 21, 19, 3), 32, (3, 3), (2, 2), (1, 1, 1, 1)),
    "one pixel": ((1, 1, 1, 5), 4, (3, 3), (1, 1), (1, 1, 1, 1)),
    "same": ((2, 14, 15, 24), 40, (3, 3), (1, 1), (1, 1, 1, 1)),
    "no pads": ((2, 10, 10, 20), 24, (3, 3), (1, 1), (0, 0, 0, 0)),
    "strided, one-sided pads": ((2, 12, 12, 35), 70, (3, 3), (2, 2), (0, 0, 1, 1)),
    "7x7 strided": ((2, 14, 15, 3), 33, (7, 7), (2, 2), (3, 3, 3, 3)),
    "5x5": ((1, 9, 10, 17), 10, (5, 5), (1, 1), (2, 2, 2, 2)),
    "1x1 strided": ((2, 9, 9, 64), 96, (1, 1), (2, 2), (0, 0, 0, 0)),
    "dilated": ((1, 12, 13, 8), 20, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2)),
    "dilated and strided": ((2, 17, 16, 12), 24, (3, 2), (1, 3), (4, 4, 1, 0), (2, 3)),
    "stride above kernel": ((1, 8, 9, 3), 7, (2, 3), (3, 2), (1, 0, 0, 2)),
    "wide": ((3, 31, 29, 24), 40, (3, 3), (1, 1), (1, 1, 1, 1)),
    "kernel above image": ((3, 5, 5, 40), 48, (7, 7), (1, 1), (3, 3, 3, 3)),
}


@pytest.mark.parametrize("case", thinned(CASES, 4))
@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: Kind, case: str) -> None:
    checked(conv(kind, *CASES[case]))


LONG_STRIDES: dict[str, tuple[Any, ...]] = {
    "a bank of filters": ((2, 1, 200, 1), 6, (1, 24), (1, 12), (0, 0, 0, 0)),
    "both axes": ((1, 21, 19, 3), 5, (9, 10), (8, 9), (2, 1, 3, 4)),
    "taps that do not fit": ((2, 1, 61, 2), 9, (1, 21), (1, 10), (0, 3, 0, 5)),
    "dilated": ((1, 1, 90, 2), 4, (1, 7), (1, 9), (0, 4, 0, 4), (1, 4)),
    "stride above kernel": ((1, 1, 64, 2), 4, (1, 5), (1, 16), (0, 0, 0, 0)),
}


@pytest.mark.parametrize("case", LONG_STRIDES)
def test_phases_that_are_alike_share_their_code(case: str) -> None:
    checked(conv("input_grad", *LONG_STRIDES[case]), threads=2)


def test_code_does_not_grow_with_the_stride() -> None:
    spec = conv("input_grad", (2, 1, 4000, 1), 36, (1, 256), (1, 128), (0, 0, 0, 0))
    columns = axis_phases(spec, 1)
    assert len(columns) == 128
    assert [run.turns for run in alike_phases(columns)] == [32, 96]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
def test_threads(kind: Kind, threads: int) -> None:
    checked(conv(kind, (4, 14, 14, 40), 72, (3, 3), (1, 1), (1, 1, 1, 1)), threads=threads)


@pytest.mark.parametrize("kind", KINDS)
def test_avx2(kind: Kind) -> None:
    checked(conv(kind, *CASES["strided, one-sided pads"]), target="x86-64-v3")


@pytest.mark.parametrize("kind", KINDS)
def test_bands_of_rows_and_groups_of_images(kind: Kind) -> None:
    """A cache so small that an image is cut, and so large that images are grouped."""
    spec = conv(kind, (4, 30, 30, 32), 64, (3, 3), (1, 1), (1, 1, 1, 1))
    target = load_cpu(native_target())
    bands = [plan(spec, dataclasses.replace(target, l2_bytes=size), 2).band for size in (1 << 16, 1 << 23)]
    assert bands[0].images == 1
    assert bands[0].out_rows < 30
    assert kind == "weight_grad" or bands[1].images == 2
    checked(spec)


@pytest.mark.parametrize("identity_epilogue", [True, False])
def test_large_weights_are_shared_out_by_row(identity_epilogue: bool) -> None:
    spec = conv("weight_grad", (2, 6, 6, 130), 140, (3, 3), (1, 1), (1, 1, 1, 1))
    if not identity_epilogue:
        access = identity(3, 3, 130, 140)
        spec = dataclasses.replace(spec, epilogue=Binary("sub", Ref(1), Ref(0)), epilogue_inputs=(access,))
    assert plan(spec, load_cpu(native_target()), 2).split == "weights"
    checked(spec)


@pytest.mark.parametrize("case", ["stem", "same", "dilated", "wide"])
@pytest.mark.parametrize("threads", [1, 3])
def test_bias_gradient(case: str, threads: int) -> None:
    """Summed beside the weight gradient, by threads that share out images."""
    spec = conv("weight_grad", *CASES[case])
    assert plan(spec, load_cpu(native_target()), threads).split == "units"
    check_sums(spec, load_cpu(native_target()), choice=DIRECT, threads=threads)


@pytest.mark.parametrize("threads", [2, 3])
def test_bias_gradient_by_channels(threads: int) -> None:
    """Threads that share out weights."""
    spec = conv("weight_grad", (2, 6, 6, 130), 140, (3, 3), (1, 1), (1, 1, 1, 1))
    assert plan(spec, load_cpu(native_target()), threads).split == "weights"
    check_sums(spec, load_cpu(native_target()), choice=DIRECT, threads=threads)


@pytest.mark.parametrize("kind", KINDS)
def test_epilogues(kind: Kind) -> None:
    spec = conv(kind, (2, 13, 12, 20), 44, (3, 3), (2, 2), (1, 1, 1, 1))
    shape = {
        "forward": (spec.n, spec.oh, spec.ow, spec.k),
        "input_grad": (spec.n, spec.h, spec.w, spec.c),
        "weight_grad": (3, 3, spec.c, spec.k),
    }[kind]
    inputs = (identity(*shape), picked((shape[3],), 3), picked((1,), None), picked((shape[1], shape[2]), 1, 2))
    expr = Binary("add", Binary("mul", Binary("add", RELU6, Ref(1)), Ref(3)), Binary("mul", Ref(2), Ref(4)))
    checked(dataclasses.replace(spec, epilogue=expr, epilogue_inputs=inputs))


def in_pytorch(spec: ConvSpec, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The same in PyTorch (symmetric pads), NHWC in and out."""
    if spec.kind == "weight_grad":
        weight = torch.zeros(*spec.kernel, spec.c, spec.k, requires_grad=True)
        _forward(spec, first, weight).backward(second)
        assert weight.grad is not None
        return weight.grad
    return _forward(spec, first, second)


def _forward(spec: ConvSpec, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    w = weight.permute(3, 2, 0, 1)
    y = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), w, stride=spec.strides, padding=spec.pads[:2])
    return y.permute(0, 2, 3, 1)


@pytest.mark.parametrize(
    "spec",
    [
        conv("forward", (2, 10, 10, 256), 64, (3, 3), (1, 1), (1, 1, 1, 1)),
        conv("weight_grad", (4, 56, 56, 16), 24, (3, 3), (1, 1), (1, 1, 1, 1)),
        conv("weight_grad", (8, 112, 112, 3), 32, (3, 3), (2, 2), (1, 1, 1, 1)),
    ],
)
def test_as_accurate_as_pytorch(spec: ConvSpec) -> None:
    inputs = random_inputs(spec)
    want = expected(spec, inputs)
    theirs = distance(in_pytorch(spec, *map(torch.from_numpy, inputs)).numpy(), want)
    ours = distance(run_native(spec, inputs, 2, choice=DIRECT), want)
    assert ours <= 3 * theirs, f"{ours:.2e} against {theirs:.2e}"
