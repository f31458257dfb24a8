"""Operands of sixteen bits: a kernel does in f32 what it always did, with what it reads widened, and rounds once.

So what it writes is, to the last bit, the result of the same kernel in f32, rounded by somebody else (ml_dtypes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import ml_dtypes
import numpy as np
import pytest

from compiler.element_types import DType
from compiler.graph import Array, TensorType
from compiler.kernels.access import Access, axis, identity
from compiler.kernels.canonical import canonical
from compiler.kernels.expressions import Binary, Const, Expr, Ref, Stat, Unary
from compiler.kernels.movement import ElementsSpec, ResampleSpec
from compiler.kernels.spec import (
    AttentionSpec,
    GatherSpec,
    KernelSpec,
    MapSpec,
    MatmulSpec,
    NormGradSpec,
    PoolSpec,
    ReduceSpec,
    RowSpec,
    signature,
)
from compiler.program.halves import holding, may_be_half
from compiler.program.operands import operand_types
from compiler.targets import load
from tests.compiler.codegen.contractions import RELU6, Kind, conv, depthwise
from tests.compiler.codegen.emulation import run_emulated
from tests.kernel_harness.launch import Kernel
from tests.kernel_harness.machine import native_target
from tests.sample import crossed, sample

HALVES: dict[DType, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
Pool = Literal["max", "max_grad", "average", "average_grad", "max_places", "places_grad"]
KINDS: tuple[Kind, ...] = get_args(Kind)
POOLS: tuple[Pool, ...] = get_args(Pool)
PADS = (1, 1, 1, 1)


def vector(size: int) -> Access:
    return identity(TensorType("f32", (size,)))


def with_epilogue(spec: Any, shape: tuple[int, ...]) -> Any:
    """The clipped sum of the result and another tensor of its shape."""
    return replace(spec, epilogue=Binary("add", RELU6, Ref(1)), epilogue_inputs=(identity(TensorType("f32", shape)),))


def specs() -> dict[str, KernelSpec]:
    """One of each family and kind, with sizes that leave ends of vectors."""
    image = (2, 9, 11, 20)
    scaled: Expr = Binary("mul", Unary("exp", Ref(0)), Const(0.5))
    flipped = Access(TensorType("f32", (33, 21)), (axis(1), axis(0)))
    padded = Access(TensorType("f32", (40,)), (axis(0, offset=-3),), fill=0.0)
    rows = identity(TensorType("f32", (7, 37)))
    softmax = Binary("div", Unary("exp", Binary("sub", Ref(0), Stat(0))), Stat(1))
    found: dict[str, KernelSpec] = {
        "map": MapSpec((77,), (vector(77),), (vector(77),), (scaled,)),
        "map transposed": MapSpec((21, 33), (flipped,), (identity(TensorType("f32", (21, 33))),), (scaled,)),
        "map padded": MapSpec((50,), (padded,), (vector(50),), (scaled,)),
        "reduce": ReduceSpec((7, 37), (1,), "sum", (rows,), Ref(0), Access(TensorType("f32", (7,)), (axis(0),))),
        "row": RowSpec(
            7,
            37,
            (rows,),
            (("max", Ref(0)), ("sum", Unary("exp", Binary("sub", Ref(0), Stat(0))))),
            (rows,),
            (softmax,),
        ),
        "product": with_epilogue(MatmulSpec(1, 45, 67, 130, dtype="f32"), (1, 45, 67)),
        "product of a transpose": MatmulSpec(2, 45, 67, 130, dtype="f32", b_transposed=True),
        "long product": MatmulSpec(1, 300, 260, 3000, dtype="f32", b_batched=False, b_transposed=True),
        "long product and a residual": with_epilogue(MatmulSpec(1, 300, 260, 3000, dtype="f32"), (1, 300, 260)),
        "weight gradient": MatmulSpec(1, 45, 67, 900, dtype="f32", a_transposed=True, sums=True),
        "gather": GatherSpec("gather", 1, 8, 37, 5, dtype="f32"),
        "gather of one": GatherSpec("gather", 1, 50, 1, 35, dtype="f32"),
        "scatter": GatherSpec("scatter_add", 1, 8, 37, 5, dtype="f32"),
        "norm": NormGradSpec(9, 52, 1e-5, True, dtype="f32"),
        "elements": ElementsSpec("gather", 2, 8, 5, 6, dtype="f32"),
        "elements along": ElementsSpec("gather", 2, 8, 1, 20, dtype="f32"),
        "elements added": ElementsSpec("add", 2, 8, 5, 6, dtype="f32"),
        "resample": ResampleSpec("forward", 2, 8, 20, 6, 2, dtype="f32"),
        "resample gradient": ResampleSpec("gradient", 2, 8, 20, 6, 2, dtype="f32"),
        "attention": AttentionSpec("forward", 2, 4, 2, 19, 19, 16, 16, 0.25, True, dtype="f32"),
        "attention gradient": AttentionSpec("backward", 2, 4, 2, 19, 19, 16, 16, 0.25, True, dtype="f32"),
        "masked attention": AttentionSpec("forward", 2, 4, 4, 9, 9, 16, 16, 0.25, mask=(2, 1, 1, 9), dtype="f32"),
    }
    for kind in KINDS:
        found[f"conv {kind}"] = conv(kind, image, 24, (3, 3), (1, 1), PADS)
        found[f"strided conv {kind}"] = conv(kind, image, 24, (3, 3), (2, 2), PADS)
        found[f"grouped conv {kind}"] = conv(kind, image, 20, (3, 3), (1, 1), PADS, groups=2)
        found[f"winograd {kind}"] = conv(kind, (2, 24, 24, 64), 64, (3, 3), (1, 1), PADS)
        found[f"depthwise {kind}"] = depthwise(kind, image, (3, 3), (1, 1), PADS)
        found[f"strided depthwise {kind}"] = depthwise(kind, image, (5, 5), (2, 2), (2, 2, 2, 2))
    found["conv and a residual"] = with_epilogue(conv("forward", image, 24, (3, 3), (1, 1), PADS), (2, 9, 11, 24))
    found["winograd and a residual"] = with_epilogue(
        conv("forward", (2, 24, 24, 64), 64, (3, 3), (1, 1), PADS), (2, 24, 24, 64)
    )
    found["depthwise and a residual"] = with_epilogue(depthwise("forward", image, (3, 3), (1, 1), PADS), image)
    for pool in POOLS:
        found[f"pool {pool}"] = PoolSpec(pool, 2, 9, 11, 20, 4, 5, (3, 3), (2, 2), (0, 0, 0, 0), dtype="f32")
    return found


SPECS = specs()
MOVES = {"gather", "gather of one", "elements", "elements along", "pool max", "pool max_places"}
"""Kernels that compute nothing: what they read in half, they write exactly."""


def drawn(spec: KernelSpec, dtype: DType) -> list[Array]:
    """Inputs of the f32 kernel that sixteen bits hold exactly."""
    rng, found = np.random.default_rng(7), []
    bound = getattr(spec, "rows", 2)
    for tensor in operand_types(spec).inputs:
        if tensor.dtype == "f32":
            found.append(rng.standard_normal(tensor.shape, np.float32).astype(HALVES[dtype]).astype(np.float32))
        elif isinstance(spec, PoolSpec):
            image = rng.standard_normal((spec.n, spec.h, spec.w, spec.c), np.float32)
            found.append(Kernel(replace(spec, kind="max_places"), load(native_target()), 2).run(image)[1])
        else:
            found.append(rng.integers(0, bound, tensor.shape).astype({"i64": np.int64, "i32": np.int32}[tensor.dtype]))
    return found


def stored(array: Array, tensor: TensorType) -> Array:
    return array.astype(HALVES[tensor.dtype]).view("V2" if tensor.dtype == "bf16" else "f2")


def ran(spec: KernelSpec, inputs: Sequence[Array]) -> list[Array]:
    """Results in f32, widened if they are half of one."""
    types, found = operand_types(spec), []
    given = [stored(a, t) if t.dtype in HALVES else a for a, t in zip(inputs, types.inputs, strict=True)]
    for array, tensor in zip(Kernel(spec, load(native_target()), 2).run(*given), types.outputs, strict=True):
        half = HALVES.get(tensor.dtype)
        found.append(array if half is None else array.view(half).astype(np.float32))
    return found


LIKE_ANOTHER = {
    "winograd input_grad",
    "winograd and a residual",
    "strided conv input_grad",
    "strided depthwise weight_grad",
    "long product and a residual",
    "depthwise and a residual",
    "grouped conv input_grad",
    "strided conv weight_grad",
}
KEPT = [f"{name}-{('bf16', 'f16')[i % 2]}" for i, name in enumerate(SPECS) if name not in LIKE_ANOTHER][::3]
"""A third of the families and kinds in one of the two: plans are those of f32, only reading and writing is not."""


@pytest.mark.parametrize(("name", "dtype"), sample(crossed(SPECS, HALVES), KEPT))
def test_a_kernel_widens_what_it_reads_and_rounds_what_it_writes(name: str, dtype: DType) -> None:
    spec = SPECS[name]
    types = operand_types(spec)
    may = may_be_half(spec)
    assert len(may) == len(types.inputs) + len(types.outputs)
    assert any(may), "nothing to show"
    half = holding(spec, tuple(dtype if one else None for one in may))
    inputs = drawn(spec, dtype)
    is_rounded = may[len(types.inputs) :]
    require_rounded_once(ran(half, inputs), ran(spec, inputs), is_rounded, dtype, is_moved=name in MOVES)


def require_rounded_once(
    got: Sequence[Array], want: Sequence[Array], is_rounded: Sequence[bool], dtype: DType, *, is_moved: bool
) -> None:
    """Results of f32, some of them rounded; `is_moved`: they were exact. Raises: AssertionError."""
    for ours, theirs, half in zip(got, want, is_rounded, strict=True):
        expected = theirs
        if half:
            expected = theirs.astype(HALVES[dtype]).astype(theirs.dtype)
            assert np.array_equal(expected, theirs) == is_moved, "the test shows nothing"
        np.testing.assert_array_equal(ours, expected)


WEIGHTS = {
    "product": 1,
    "product of a transpose": 1,
    "long product": 1,
    "product of panels": 1,
    "gather": 0,
    "gather of one": 0,
    "conv forward": 1,
    "conv input_grad": 1,
    "grouped conv forward": 1,
    "winograd forward": 1,
    "winograd input_grad": 1,
    "depthwise forward": 1,
    "strided depthwise input_grad": 1,
}
"""Kernels that read a weight that may be whole numbers, and which of their operands that is."""


WEIGHTS_KEPT = (
    "product",
    "product of panels",
    "gather",
    "conv input_grad",
    "winograd forward",
    "strided depthwise input_grad",
)


@pytest.mark.parametrize("name", sample(WEIGHTS, WEIGHTS_KEPT))
def test_a_kernel_widens_a_weight_of_bytes(name: str) -> None:
    panels = MatmulSpec(1, 45, 128, 130, dtype="f32", b_batched=False, b_panel=32)
    spec, place = SPECS.get(name, panels), WEIGHTS[name]
    inputs = drawn(spec, "bf16")
    inputs[place] = np.random.default_rng(9).integers(-127, 128, inputs[place].shape).astype(np.float32)
    types = operand_types(spec)
    held: list[DType | None] = [None] * (len(types.inputs) + len(types.outputs))
    held[place] = "i8"
    in_bytes = [array.astype(np.int8) if i == place else array for i, array in enumerate(inputs)]
    for ours, theirs in zip(ran(holding(spec, tuple(held)), in_bytes), ran(spec, inputs), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_every_half_has_its_numbers() -> None:
    assert set(HALVES) <= set(get_args(DType))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_every_number_is_rounded_as_by_somebody_else(dtype: DType) -> None:
    """Halfway cases, the largest, infinities, NaN, and numbers too small for anything but zero."""
    half = np.arange(0, 2**16, dtype=np.uint16).view(HALVES[dtype]).astype(np.float32)
    finite = half[np.isfinite(half)]
    ordered = np.unique(finite)
    between = (ordered[:-1].astype(np.float64) + ordered[1:]) / 2
    normal = np.abs(between) > 2.0**-120  # a machine's own instruction takes the smallest bfloat16 for zero
    middle = between[normal].astype(np.float32)
    near = [np.nextafter(middle, np.float32(end)) for end in (np.inf, -np.inf)]
    array = np.concatenate([half[(np.abs(half) > 2.0**-120) | (half == 0) | np.isnan(half)], middle, *near])
    size = len(array)
    spec = MapSpec((size,), (vector(size),), (Access(TensorType(dtype, (size,)), (axis(0),)),), (Ref(0),))
    (got,) = ran(spec, [array])
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(got, array.astype(HALVES[dtype]).astype(np.float32))


def test_a_kernel_without_halves_keeps_its_name() -> None:
    plain = MatmulSpec(1, 2, 3, 4, dtype="f32")
    assert holding(plain, (None,) * 3) == plain
    assert "stored" not in canonical(plain)
    assert signature(holding(plain, ("bf16", None, None))) != signature(holding(plain, ("f16", None, None)))


@pytest.mark.parametrize("board", ["", "raspberry-pi-4"])
def test_float16_holds_what_is_too_large_as_its_largest(board: str) -> None:
    """At any width, and what is infinite or no number as it is; on a board, emulated."""
    given = np.array([65503, 65519.9, 65520, 7e4, 3e38, -7e4, np.inf, -np.inf, np.nan, 1e-7] * 5, np.float32)
    copied = holding(MapSpec((50,), (vector(50),), (vector(50),), (Ref(0),)), (None, "f16"))
    with np.errstate(over="ignore"):
        wanted = np.where(np.isfinite(given), np.clip(given, -65504, 65504), given).astype(np.float16)
    native = Kernel(copied, load(native_target()), 2).run
    (found,) = run_emulated(copied, [given], target=board) if board else native(given)
    np.testing.assert_array_equal(found.view(np.float16), wanted)
