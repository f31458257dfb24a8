"""Grouped convolutions against NumPy float64: every kind, groups narrower and wider than a vector, threads, sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compiler.kernels.canonical import canonical
from compiler.kernels.expressions import Binary, Ref
from compiler.kernels.spec import ConvSpec
from compiler.kernels.text import read, show
from compiler.targets import load
from tests.compiler.codegen.contractions import RELU6, Kind, check, check_sums, conv
from tests.compiler.codegen.reference import identity, picked
from tests.kernel_harness.machine import native_target
from tests.sample import thinned

KINDS: tuple[Kind, ...] = ("forward", "input_grad", "weight_grad")
CASES: dict[str, tuple[Any, ...]] = {
    "eight to eight": ((2, 9, 10, 32), 32, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 4),
    "narrow, uneven": ((2, 7, 8, 15), 21, (3, 2), (2, 1), (1, 0, 1, 1), (1, 1), 3),
    "wide": ((1, 6, 7, 96), 160, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    "1x1": ((2, 5, 6, 24), 48, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 3),
    "1x1 strided": ((2, 9, 9, 24), 48, (1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 3),
    "no pads": ((2, 10, 10, 20), 24, (3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 2),
    "dilated and strided": ((2, 17, 16, 12), 24, (3, 2), (1, 3), (4, 4, 1, 0), (2, 3), 2),
    "one row": ((3, 1, 40, 32), 64, (1, 5), (1, 2), (0, 2, 0, 2), (1, 1), 4),
    "strided": ((2, 15, 15, 64), 64, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 8),
}


@pytest.mark.parametrize("case", thinned(CASES, 3))
@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: Kind, case: str) -> None:
    check(conv(kind, *CASES[case]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
def test_threads(kind: Kind, threads: int) -> None:
    check(conv(kind, (4, 14, 14, 64), 64, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 8), threads=threads)


@pytest.mark.parametrize("kind", KINDS)
def test_avx2(kind: Kind) -> None:
    check(conv(kind, *CASES["strided"]), target="x86-64-v3")


@pytest.mark.parametrize("case", ["narrow, uneven", "strided"])
@pytest.mark.parametrize("threads", [1, 3])
def test_bias_gradient(case: str, threads: int) -> None:
    check_sums(conv("weight_grad", *CASES[case]), load(native_target()), threads=threads)


@pytest.mark.parametrize("kind", KINDS)
def test_epilogues(kind: Kind) -> None:
    spec = conv(kind, *CASES["narrow, uneven"])
    shape = {
        "forward": (spec.n, spec.oh, spec.ow, spec.k),
        "input_grad": (spec.n, spec.h, spec.w, spec.c),
        "weight_grad": spec.weight,
    }[kind]
    inputs = (identity(*shape), picked((shape[3],), 3))
    expr = Binary("mul", Binary("add", RELU6, Ref(1)), Ref(2))
    check(replace(spec, epilogue=expr, epilogue_inputs=inputs))


def test_one_group_keeps_the_text_of_old() -> None:
    """Kernels that were compiled or measured before there were groups keep their names."""
    spec = conv("forward", *CASES["no pads"])
    dense = replace(spec, groups=1)
    assert "groups" not in canonical(dense)
    assert read(canonical(dense)) == dense
    assert isinstance(read(show(spec)), ConvSpec)
    assert read(show(spec)) == read(canonical(spec)) == spec
