"""Matrix products against NumPy float64 and PyTorch: layouts, tails, strategies, epilogues, accuracy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from compiler.codegen.choice import choose
from compiler.codegen.matmul.plan import MatmulPlan, choices, folded, plan
from compiler.graph import TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.expressions import Binary, Index, Ref, Unary
from compiler.kernels.spec import MatmulSpec
from compiler.targets import load_cpu
from tests.compiler.codegen.contractions import RELU6, check, distance, expected, random_inputs, run_native
from tests.compiler.codegen.reference import identity, picked
from tests.kernel_harness.launch import Kernel
from tests.kernel_harness.machine import native_target
from tests.sample import crossed, sample, thinned

SHAPES = [(1, 1, 1), (1, 17, 9), (3, 5, 40), (14, 32, 64), (15, 33, 65), (50, 10, 7), (29, 100, 31), (64, 144, 24)]


@pytest.mark.parametrize("shape", thinned(SHAPES, 4))
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False)])
def test_layouts_and_tails(shape: tuple[int, int, int], transposed: tuple[bool, bool]) -> None:
    check(MatmulSpec(1, *shape, *transposed, dtype="f32"))


def test_both_transposed() -> None:
    check(MatmulSpec(1, 37, 45, 67, True, True, dtype="f32"))


BIG = {
    "rows, shared panels": MatmulSpec(1, 200, 120, 90, dtype="f32"),
    "rows, transposed": MatmulSpec(1, 200, 120, 90, b_transposed=True, dtype="f32"),
    "columns": MatmulSpec(1, 8, 520, 300, b_transposed=True, dtype="f32"),
    "small m, large b": MatmulSpec(1, 8, 1000, 1280, dtype="f32"),
    "split over a long reduction": MatmulSpec(1, 24, 40, 12544, a_transposed=True, dtype="f32"),
    "split, uneven last block": MatmulSpec(1, 30, 70, 2039, a_transposed=True, dtype="f32"),
    "split, not transposed": MatmulSpec(1, 20, 40, 5000, dtype="f32"),
    "batch": MatmulSpec(6, 33, 47, 64, dtype="f32"),
    "batch, transposed": MatmulSpec(6, 33, 47, 64, b_transposed=True, dtype="f32"),
    "batch of two": MatmulSpec(2, 64, 96, 80, b_transposed=True, dtype="f32"),
    "batch over a shared b": MatmulSpec(5, 21, 64, 80, b_batched=False, dtype="f32"),
    "batch over a shared a": MatmulSpec(5, 21, 64, 80, a_batched=False, dtype="f32"),
    "batch, a transposed": MatmulSpec(5, 21, 64, 80, a_transposed=True, b_batched=False, dtype="f32"),
    "deep": MatmulSpec(1, 30, 64, 3000, dtype="f32"),
    "long and narrow": MatmulSpec(1, 1200, 48, 40, dtype="f32"),
    "long and narrow, transposed": MatmulSpec(1, 6000, 24, 40, b_transposed=True, dtype="f32"),
    "uneven blocks of the reduction": MatmulSpec(1, 150, 330, 1021, b_transposed=True, dtype="f32"),
    "blocks of rows": MatmulSpec(1, 1100, 72, 500, a_transposed=True, dtype="f32"),
    "parts": MatmulSpec(1, 390, 710, 520, a_transposed=True, dtype="f32"),
    "parts, uneven last block": MatmulSpec(1, 1030, 300, 521, a_transposed=True, dtype="f32"),
    "parts, copied": MatmulSpec(1, 512, 330, 576, a_transposed=True, dtype="f32"),
}


ALONE = ("columns", "split, uneven last block", "parts, copied")


@pytest.mark.parametrize(
    ("threads", "name"),
    sample(crossed([1, 2], BIG), [*(f"1-{name}" for name in ALONE), *(f"2-{name}" for name in BIG)]),
)
def test_every_way_to_share_the_work(name: str, threads: int) -> None:
    check(BIG[name], threads=threads)


def test_every_strategy_and_panel_is_reached() -> None:
    plans = [plan_of(spec) for spec in BIG.values()]
    assert {found.strategy for found in plans} == {"batch", "rows", "columns", "split"}
    assert {found.panels for found in plans} == {"direct", "shared", "private"}

    assert {found.order for found in plans} == {"rows", "columns", "parts"}
    assert {found.waiting for found in plans} >= {"registers", "output"}


def plan_of(spec: MatmulSpec) -> MatmulPlan:
    return plan(folded(spec), load_cpu(native_target()), 2)


@pytest.mark.parametrize(
    "spec",
    [
        MatmulSpec(1, 61, 75, 400, dtype="f32"),
        MatmulSpec(1, 130, 70, 401, b_transposed=True, dtype="f32"),
        MatmulSpec(1, 29, 50, 1100, a_transposed=True, sums=True, dtype="f32"),
        MatmulSpec(1, 90, 70, 300, a_transposed=True, sums=True, dtype="f32"),
        MatmulSpec(6, 33, 47, 64, dtype="f32"),
    ],
)
def test_every_choice_is_the_same_product(spec: MatmulSpec) -> None:
    target, inputs = load_cpu(native_target()), random_inputs(spec)
    offered = choices(spec, target, 2)
    assert len(offered) > 1
    for choice in offered:
        got, *sums = Kernel(spec, target, 2, choice).run(*inputs)
        assert distance(got, expected(spec, inputs)) < 6e-7, choice.text
        for one in sums:
            assert distance(one, inputs[1].astype(np.float64).sum(axis=(0, 1))) < 1e-6, choice.text


def test_a_choice_that_names_no_schedule() -> None:
    with pytest.raises(ValueError, match="strategy"):
        plan(MatmulSpec(1, 8, 8, 8, dtype="f32"), load_cpu(native_target()), 2, choose(strategy="sideways"))


SUMS = {
    "split": MatmulSpec(1, 30, 70, 2039, a_transposed=True, sums=True, dtype="f32"),
    "one row tile": MatmulSpec(1, 5, 33, 5000, a_transposed=True, sums=True, dtype="f32"),
    "columns": MatmulSpec(1, 100, 200, 196, a_transposed=True, sums=True, dtype="f32"),
    "blocks of rows": MatmulSpec(1, 1100, 72, 500, a_transposed=True, sums=True, dtype="f32"),
    "parts": MatmulSpec(1, 390, 710, 520, a_transposed=True, sums=True, dtype="f32"),
    "small": MatmulSpec(1, 3, 5, 7, a_transposed=True, sums=True, dtype="f32"),
}


@pytest.mark.parametrize("name", list(SUMS))
@pytest.mark.parametrize("threads", [1, 2])
def test_column_sums_of_b(name: str, threads: int) -> None:
    """The bias gradient comes with the weight gradient; an epilogue touches only the latter."""
    spec = dataclasses.replace(SUMS[name], epilogue=RELU6)
    inputs = random_inputs(spec)
    d_w, d_b = Kernel(spec, load_cpu(native_target()), threads).run(*inputs)
    assert distance(d_w, expected(spec, inputs)) < 3e-6
    assert distance(d_b, inputs[1].astype(np.float64).sum(axis=(0, 1))) < 1e-6


@pytest.mark.parametrize(
    "name", ["rows, transposed", "split, uneven last block", "batch, transposed", "small m, large b"]
)
def test_avx2(name: str) -> None:
    check(BIG[name], target="x86-64-v3")


def bias(n: int) -> Access:
    return picked((n,), 2)


EPILOGUES = [
    (
        "bias and clip",
        lambda s: dataclasses.replace(s, epilogue=Binary("add", RELU6, Ref(1)), epilogue_inputs=(bias(s.n),)),
    ),
    (
        "residual",
        lambda s: dataclasses.replace(
            s, epilogue=Binary("add", Ref(0), Ref(1)), epilogue_inputs=(identity(s.batch, s.m, s.n),)
        ),
    ),
    (
        "scalar and per row",
        lambda s: dataclasses.replace(
            s,
            epilogue=Binary("mul", Binary("add", Ref(0), Ref(2)), Ref(1)),
            epilogue_inputs=(picked((1,), None), picked((s.m,), 1)),
        ),
    ),
    (
        "transposed and shifted",
        lambda s: dataclasses.replace(
            s,
            epilogue=Binary("sub", Unary("tanh", Ref(0)), Ref(1)),
            epilogue_inputs=(
                Access(TensorType("f32", (s.n + 2, s.batch * s.m)), (Affine(((2, 1),), 2), Affine(((0, s.m), (1, 1))))),
            ),
        ),
    ),
    (
        "position",
        lambda s: dataclasses.replace(
            s, epilogue=Binary("add", Ref(0), Unary("to_f32", Binary("add", Index(2), Index(1))))
        ),
    ),
]
EPILOGUE_CASES = [pytest.param(*case, id=case[0]) for case in EPILOGUES]


@pytest.mark.parametrize(("name", "change"), EPILOGUE_CASES)
@pytest.mark.parametrize(
    "spec",
    [
        MatmulSpec(1, 37, 50, 20, dtype="f32"),
        MatmulSpec(1, 20, 44, 2100, a_transposed=True, dtype="f32"),
        MatmulSpec(3, 18, 21, 16, b_batched=False, dtype="f32"),
    ],
)
def test_epilogues(name: str, change: object, spec: MatmulSpec) -> None:
    # Clipping leaves small values of long sums, whose relative error is larger.
    check(change(spec), tolerance=3e-6)  # type: ignore[operator]


@pytest.mark.parametrize(
    "spec",
    [
        MatmulSpec(1, 45, 50, 30, dtype="f32"),
        MatmulSpec(1, 20, 44, 2100, a_transposed=True, dtype="f32"),
        MatmulSpec(1, 130, 330, 700, dtype="f32"),
    ],
)
def test_output_may_be_a_residual_input(spec: MatmulSpec) -> None:
    """The epilogue's operand and the output share storage, as an in-place update does."""
    access = identity(1, spec.m, spec.n)
    spec = dataclasses.replace(spec, epilogue=Binary("sub", Ref(1), Ref(0)), epilogue_inputs=(access,))
    kernel = Kernel(spec, load_cpu(native_target()), 2)
    inputs, storages = random_inputs(spec), kernel.storages()
    for storage, tensor, array in zip(storages, kernel.types.inputs, inputs, strict=False):
        storage.view(tensor)[...] = array
    storages[3] = storages[2]
    kernel.call(storages)
    assert distance(storages[3].view(kernel.types.outputs[0]), expected(spec, inputs)) < 6e-7


@pytest.mark.parametrize(
    "spec",
    [
        MatmulSpec(1, 64, 96, 960, dtype="f32"),
        MatmulSpec(1, 32, 64, 4608, dtype="f32"),
        MatmulSpec(1, 32, 16, 50000, a_transposed=True, dtype="f32"),
        MatmulSpec(1, 8, 64, 2048, b_transposed=True, dtype="f32"),
    ],
)
def test_as_accurate_as_pytorch(spec: MatmulSpec) -> None:
    inputs = [np.abs(array) for array in random_inputs(spec)]
    a, b = (torch.from_numpy(array) for array in inputs)
    a, b = (a.mT if spec.a_transposed else a), (b.mT if spec.b_transposed else b)
    want = expected(spec, inputs)
    theirs = distance((a @ b).numpy().reshape(want.shape), want)
    ours = distance(run_native(spec, inputs, 2), want)
    assert ours <= 3 * theirs + 1e-8, f"{ours:.2e} against {theirs:.2e}"
