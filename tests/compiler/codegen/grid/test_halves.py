"""Operands of sixteen bits on engines: a kernel does what it does in f32, with what it reads widened, and rounds once.

OpenCL runs on this machine's driver; CUDA's text as C++, which shows everything but what its instructions are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from compiler.element_types import DType
from compiler.errors import BuildError
from compiler.graph import Array, TensorType
from compiler.kernels.access import Access, axis
from compiler.kernels.expressions import Ref
from compiler.kernels.spec import KernelSpec, MapSpec, MatmulSpec
from compiler.program.halves import Held, holding, may_be_half
from compiler.program.operands import operand_types
from compiler.targets import load
from tests.compiler.codegen.test_halves import (
    HALVES,
    MOVES,
    SPECS,
    WEIGHTS,
    drawn,
    require_rounded_once,
    stored,
    vector,
)
from tests.kernel_harness.launch import build_object, run_kernel
from tests.sample import crossed, sample

ENGINES = ("x86-64-v3/opencl", "x86-64-v3/cuda")
ALIKE = ("strided", "winograd", "long", "product of", "conv and", "depthwise and", "elements along", "gather of")
"""How names begin whose kernels for a grid are like another's here."""
WEIGHTS_KEPT = (
    ("product", ENGINES[0]),
    ("conv input_grad", ENGINES[1]),
    ("gather", ENGINES[1]),
    ("depthwise forward", ENGINES[0]),
)
KEPT = [
    f"{name}-{half}-{ENGINES[(i // 2) % 2]}"
    for i, name in enumerate([name for name in SPECS if not name.startswith(ALIKE)][::3])
    for half in (("bf16", "f16")[i % 2],)
]
"""A third of the families and kinds in one of the two, on one of the engines: all widen and round by the same lines."""


def ran(spec: KernelSpec, inputs: Sequence[Array], engine: str) -> list[Array]:
    """Results in f32, widened if they are half of one."""
    types, found = operand_types(spec), []
    given = [stored(a, t) if t.dtype in HALVES else a for a, t in zip(inputs, types.inputs, strict=True)]
    initial = [np.zeros(t.shape, np.float32) if t.dtype == "f32" else None for t in types.outputs]
    for array, tensor in zip(run_kernel(spec, given, target=engine, initial=initial), types.outputs, strict=True):
        half = HALVES.get(tensor.dtype)
        found.append(array if half is None else array.view(half).astype(np.float32))
    return found


@pytest.mark.parametrize(("name", "dtype", "engine"), sample(crossed(SPECS, HALVES, ENGINES), KEPT))
def test_a_kernel_widens_what_it_reads_and_rounds_what_it_writes(name: str, dtype: DType, engine: str) -> None:
    spec = SPECS[name]
    types, may = operand_types(spec), may_be_half(spec)
    half = holding(spec, tuple(dtype if one else None for one in may))
    inputs = drawn(spec, dtype)
    got, want = ran(half, inputs, engine), ran(spec, inputs, engine)
    require_rounded_once(got, want, may[len(types.inputs) :], dtype, is_moved=name in MOVES)


def numbers(dtype: DType) -> Array:
    """All that sixteen bits hold, what is halfway between two of them, and its neighbours."""
    half = np.arange(0, 2**16, dtype=np.uint16).view(HALVES[dtype]).astype(np.float32)
    ordered = np.unique(half[np.isfinite(half)])
    middle = ((ordered[:-1].astype(np.float64) + ordered[1:]) / 2).astype(np.float32)
    near = [np.nextafter(middle, np.float32(end)) for end in (np.inf, -np.inf)]
    return np.concatenate([half, middle, *near])


def copy(size: int, source: DType, into: DType) -> MapSpec:
    def typed(dtype: DType) -> Access:
        return Access(TensorType(dtype, (size,)), (axis(0),))

    return MapSpec((size,), (typed(source),), (typed(into),), (Ref(0),))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_every_number_is_rounded_and_widened_as_by_somebody_else(dtype: DType, engine: str) -> None:
    array = numbers(dtype)
    (bits,) = run_kernel(copy(len(array), "f32", dtype), [array], target=engine)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = array.astype(HALVES[dtype])
    kept = np.abs(array) >= 2.0**-126  # a device may take what is smaller for zero
    kept |= array == 0
    found: Any = bits.view(HALVES[dtype])
    np.testing.assert_array_equal(found[kept].astype(np.float32), wanted[kept].astype(np.float32))
    (wide,) = run_kernel(copy(len(bits), dtype, "f32"), [bits], target=engine)
    np.testing.assert_array_equal(wide, found.astype(np.float32))


@pytest.mark.parametrize("engine", ENGINES)
def test_float16_holds_what_is_too_large_as_its_largest(engine: str) -> None:
    given = np.array([65503, 65519.9, 65520, 7e4, 3e38, -7e4, np.inf, -np.inf, np.nan, 1e-7], np.float32)
    copied = holding(MapSpec((10,), (vector(10),), (vector(10),), (Ref(0),)), (None, "f16"))
    with np.errstate(over="ignore"):
        wanted = np.where(np.isfinite(given), np.clip(given, -65504, 65504), given).astype(np.float16)
    (found,) = run_kernel(copied, [given], target=engine)
    np.testing.assert_array_equal(found.view(np.float16), wanted)


def test_a_text_says_how_to_round_only_if_it_does() -> None:
    for engine in ENGINES:
        words = [
            build_object(holding(SPECS["map"], held), load(engine)).artefacts[-1].content.decode(errors="replace")
            for held in ((None, None), ("f16", None))
        ]
        word = "cvt.f32.f16" if engine.endswith("cuda") else "vload_half"
        assert [word in one for one in words] == [False, True]


@pytest.mark.parametrize(
    ("name", "engine"),
    sample(crossed([name for name in WEIGHTS if name in SPECS], ENGINES), [f"{n}-{e}" for n, e in WEIGHTS_KEPT]),
)
def test_a_kernel_widens_a_weight_of_bytes(name: str, engine: str) -> None:
    spec, place = SPECS[name], WEIGHTS[name]
    inputs = drawn(spec, "bf16")
    inputs[place] = np.random.default_rng(9).integers(-127, 128, inputs[place].shape).astype(np.float32)
    types = operand_types(spec)
    held: Held = tuple("i8" if i == place else None for i in range(len(types.inputs) + len(types.outputs)))
    in_bytes = [array.astype(np.int8) if i == place else array for i, array in enumerate(inputs)]
    for ours, theirs in zip(ran(holding(spec, held), in_bytes, engine), ran(spec, inputs, engine), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("engine", ENGINES)
def test_panels_are_refused(engine: str) -> None:
    spec = MatmulSpec(1, 45, 128, 130, dtype="f32", b_batched=False, b_panel=32)
    with pytest.raises(BuildError, match="no panels of 32 columns"):
        build_object(spec, load(engine))
