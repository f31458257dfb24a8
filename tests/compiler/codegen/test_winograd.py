"""Winograd convolutions against NumPy float64: borders, tails, threads, blocks, epilogues, accuracy, choice."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from compiler.codegen.choice import DEFAULT, choose
from compiler.codegen.conv import plan as direct
from compiler.codegen.family import choices_of
from compiler.codegen.tile.precision import Precision
from compiler.codegen.winograd import plan as winograd
from compiler.codegen.winograd.points import SIZES
from compiler.codegen.winograd.points import winograd as matrices
from compiler.kernels.expressions import Binary, Ref
from compiler.kernels.spec import ConvSpec
from compiler.targets import CpuTarget, load_cpu
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
from tests.kernel_harness.launch import Kernel
from tests.kernel_harness.machine import native_target
from tests.sample import crossed, sample

KINDS: tuple[Kind, ...] = ("forward", "input_grad", "weight_grad")
TOLERANCE = {2: 6e-7, 4: 1.2e-6, 6: 6e-6}
"""By outputs of a tile; the error does not grow with the channels, which are summed in blocks."""


def layer(
    kind: Kind, n: int, h: int, w: int, c: int, k: int, pads: tuple[int, int, int, int] = (1, 1, 1, 1)
) -> ConvSpec:
    """A 3x3 convolution of stride 1."""
    return conv(kind, (n, h, w, c), k, (3, 3), (1, 1), pads)


@pytest.mark.parametrize("outputs", SIZES)
def test_matrices_are_exact(outputs: int) -> None:
    """For every pair of positions: y = A'[(G w) * (B d)] is the convolution, up to the rounding of G to double."""
    made = matrices(outputs)
    a, b, g = (np.array(rows) for rows in (made.a, made.b, made.g))
    for i in range(outputs):
        for tap in range(3):
            wanted = np.eye(outputs + 2)[i + tap]
            assert np.allclose((a[:, i] * g[:, tap]) @ b, wanted, atol=1e-12)
    assert all(Fraction(value).denominator <= 4096 for value in (*a.flat, *b.flat)), "not exact in float32"


@pytest.mark.parametrize(
    ("outputs", "kind"),
    sample(crossed(SIZES, KINDS), ["2-forward", "2-weight_grad", "4-input_grad", "6-forward", "6-weight_grad"]),
)
def test_kinds(kind: Kind, outputs: int) -> None:
    """Tiles that hang over every border, channels that leave a narrower last column tile."""
    check(layer(kind, 2, 15, 13, 48, 80), choice=choose(winograd=outputs), tolerance=TOLERANCE[outputs])


@pytest.mark.parametrize(
    ("pads", "kind"),
    sample(
        crossed([(0, 0, 0, 0), (2, 2, 2, 2), (0, 1, 2, 0)], KINDS),
        ["(0, 0, 0, 0)-input_grad", "(2, 2, 2, 2)-weight_grad", "(0, 1, 2, 0)-forward", "(0, 1, 2, 0)-input_grad"],
    ),
)
def test_pads(kind: Kind, pads: tuple[int, int, int, int]) -> None:
    check(layer(kind, 2, 9, 10, 32, 32, pads), choice=choose(winograd=4), tolerance=TOLERANCE[4])


@pytest.mark.parametrize(
    ("shape", "kind"),
    sample(
        crossed([(1, 1, 1), (3, 2, 7), (5, 3, 3)], KINDS),
        ["(1, 1, 1)-forward", "(3, 2, 7)-weight_grad", "(5, 3, 3)-input_grad"],
    ),
)
def test_images_smaller_than_a_tile(kind: Kind, shape: tuple[int, int, int]) -> None:
    check(layer(kind, *shape, 32, 48), choice=choose(winograd=4), tolerance=TOLERANCE[4])


@pytest.mark.parametrize(
    ("threads", "kind"), sample(crossed([1, 3], KINDS), ["1-weight_grad", "3-forward", "3-weight_grad"])
)
def test_threads(kind: Kind, threads: int) -> None:
    """One thread; threads with tiles of their own (many small tiles); the last has fewer."""
    spec = layer(kind, 5, 22, 22, 32, 64)
    if threads > 1:
        assert cut(spec, 2, threads).split == "tiles"
    check(spec, choice=choose(winograd=2), tolerance=TOLERANCE[2], threads=threads)


@pytest.mark.parametrize(
    ("channels", "kind"),
    sample(
        crossed([(64, 128), (256, 160)], KINDS),
        ["(64, 128)-input_grad", "(256, 160)-forward", "(64, 128)-weight_grad"],
    ),
)
def test_columns_are_shared_out(kind: Kind, channels: tuple[int, int]) -> None:
    """Few tiles, many channels: one panel of weights or several, added up."""
    spec = layer(kind, 2, 7, 7, *channels)
    assert cut(spec, 4, 2).split == "columns"
    check(spec, choice=choose(winograd=4), tolerance=TOLERANCE[4])


def small_cache() -> CpuTarget:
    """This machine with caches so small that a few tiles fill them."""
    return dataclasses.replace(load_cpu(native_target()), l2_bytes=1 << 17, l3_bytes=1 << 19)


@pytest.mark.parametrize(
    ("with_epilogue", "threads", "kind"),
    sample(
        crossed([False, True], [1, 2], KINDS),
        ["False-2-weight_grad", "True-1-forward", "True-2-input_grad", "True-2-weight_grad"],
    ),
)
def test_blocks(kind: Kind, threads: int, with_epilogue: bool) -> None:
    """Several blocks of tiles, of which the last is not full; a weight gradient adds them up."""
    spec = layer(kind, 3, 17, 18, 48, 64)
    if with_epilogue:
        spec = dataclasses.replace(
            spec, epilogue=Binary("sub", Ref(1), Ref(0)), epilogue_inputs=(identity(*output(spec)),)
        )
    assert winograd.plan(spec, small_cache(), threads, 4).blocks > threads
    inputs = random_inputs(spec)
    (got,) = Kernel(spec, small_cache(), threads, choose(winograd=4)).run(*inputs)
    assert distance(got, expected(spec, inputs)) <= TOLERANCE[4]


@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("threads", sample([1, 3], ["3"]))
@pytest.mark.parametrize(
    "target", [load_cpu(native_target()), load_cpu("x86-64-v3"), small_cache()], ids=["", "avx2", "small"]
)
def test_bias_gradient(outputs: int, threads: int, target: CpuTarget) -> None:
    """Summed beside the weight gradient, over tiles at the border, threads and blocks."""
    spec = layer("weight_grad", 3, 17, 18, 48, 64)
    check_sums(spec, target, tolerance=TOLERANCE[outputs], choice=choose(winograd=outputs), threads=threads)


def output(spec: ConvSpec) -> tuple[int, int, int, int]:
    """The output's shape."""
    return {
        "forward": (spec.n, spec.oh, spec.ow, spec.k),
        "input_grad": (spec.n, spec.h, spec.w, spec.c),
        "weight_grad": (3, 3, spec.c, spec.k),
    }[spec.kind]


def cut(spec: ConvSpec, outputs: int, threads: int) -> winograd.WinogradPlan:
    """How a kernel is cut on this machine."""
    return winograd.plan(spec, load_cpu(native_target()), threads, outputs)


@pytest.mark.parametrize("kind", KINDS)
def test_epilogues(kind: Kind) -> None:
    spec = layer(kind, 2, 13, 12, 32, 48)
    shape = output(spec)
    inputs = (identity(*shape), picked((shape[3],), 3), picked((1,), None), picked((shape[1], shape[2]), 1, 2))
    expr = Binary("add", Binary("mul", Binary("add", RELU6, Ref(1)), Ref(3)), Binary("mul", Ref(2), Ref(4)))
    spec = dataclasses.replace(spec, epilogue=expr, epilogue_inputs=inputs)
    check(spec, choice=choose(winograd=4), tolerance=TOLERANCE[4])


@pytest.mark.parametrize("kind", KINDS)
def test_avx2(kind: Kind) -> None:
    check(layer(kind, 2, 9, 9, 32, 48), target="x86-64-v3", choice=choose(winograd=4), tolerance=TOLERANCE[4])


@pytest.mark.parametrize("kind", KINDS)
def test_default_is_nearly_as_accurate_as_direct(kind: Kind) -> None:
    """The error stated in the decisions: three times that of direct convolution, less with many channels."""
    spec = layer(kind, 2, 28, 28, 64, 64)
    assert direct.method_of(spec, load_cpu(native_target()), None) == 4
    inputs = random_inputs(spec)
    want = expected(spec, inputs)
    errors = [distance(run_native(spec, inputs, 2, choice=choice), want) for choice in (DEFAULT, choose(winograd=0))]
    assert errors[0] <= 4 * errors[1]


def test_choices() -> None:
    target = load_cpu(native_target())
    assert choices_of(layer("forward", 1, 8, 8, 32, 32), target, 2) == (
        DEFAULT,
        *(choose(winograd=size) for size in (0, 2, 4, 6)),
    )
    strided = conv("forward", (1, 8, 8, 32), 32, (3, 3), (2, 2), (1, 1, 1, 1))
    assert choices_of(strided, target, 2) == (DEFAULT,)


def test_direct_specs_have_one_schedule() -> None:
    target = load_cpu(native_target())
    spec = layer("forward", 2, 28, 28, 64, 64)
    assert direct.method_of(spec, target, None) == 4
    forbidden = dataclasses.replace(spec, direct=True)
    assert choices_of(forbidden, target, 2) == (DEFAULT,)
    assert direct.method_of(forbidden, target, None) == 0


def test_default_is_direct_where_winograd_does_not_pay() -> None:
    precision = Precision.of("f32", load_cpu(native_target()))
    assert winograd.default_outputs(layer("forward", 4, 14, 14, 256, 256), precision) == 4
    assert winograd.default_outputs(layer("forward", 1, 3, 3, 512, 512), precision) == 0
    assert winograd.default_outputs(layer("forward", 8, 56, 56, 16, 16), precision) == 0
    assert winograd.default_outputs(layer("forward", 1, 56, 56, 40, 64), precision) == 0
