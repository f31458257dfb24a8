"""The text of grid kernels in OpenCL C: constants, parameters, limits, sameness, and every scalar function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from compiler.codegen.api import build_kernels
from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.opencl import compile_kernel
from compiler.codegen.tir import tir
from compiler.element_types import DType, emitted_of_numpy
from compiler.errors import InternalError
from compiler.graph import Array
from compiler.kernels.expressions import BINARY, UNARY, Binary, Const, Expr, Index, Ref, Select, Unary
from compiler.kernels.spec import GatherSpec, MapSpec, signature
from compiler.targets import GridTarget, load
from tests.compiler.codegen.grid.in_place import OPENCL
from tests.compiler.codegen.reference import identity, value
from tests.compiler.codegen.test_scalar_math import SPECIAL, spread, ulps
from tests.kernel_harness.launch import build_in_process, build_object, run_kernel
from tests.sample import thinned


def target() -> GridTarget:
    found = load(OPENCL)
    assert isinstance(found, GridTarget)
    return found


def apply(expr: Expr, *inputs: Array, result: DType = "f32") -> Array:
    """The expression over flat arrays, by a compiled kernel."""
    (size,) = inputs[0].shape
    rows = [emitted_of_numpy(array.dtype) for array in inputs]
    reads = tuple(identity(size, dtype=row.name) for row in rows if row is not None)
    spec = MapSpec((size,), reads, (identity(size, dtype=result),), (expr,))
    return run_kernel(spec, inputs, target=OPENCL)[0]


# ---------------------------------------------------------------------------------------------------------- constants

AWKWARD = [
    0.1,
    1 / 3,
    2 / 3,
    3.4028235e38,
    -3.4028235e38,
    1e-45,
    -1.17549435e-38,
    1.1754942e-38,
    16777215.0,
    123456.789,
    np.pi,
    1.0000001,
    0.99999994,
    1e10,
    -7e-22,
    0.5,
    0.0,
    -0.0,
    np.inf,
    -np.inf,
]


def chosen(constants: list[float]) -> Expr:
    """Constant i at point i."""
    expr: Expr = Binary("mul", Ref(0), Const(constants[0]))
    for number, constant in enumerate(constants[1:], start=1):
        here = Binary("eq", Index(0), Const(number))
        expr = Select(here, Binary("mul", Ref(0), Const(constant)), expr)
    return expr


def test_constants_survive_bit_for_bit() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 150, dtype=np.uint32)
    drawn = [float(one) for one in bits.view(np.float32) if np.isfinite(one)]
    constants = AWKWARD + drawn
    got = apply(chosen(constants), np.ones(len(constants), np.float32))
    np.testing.assert_array_equal(got.view(np.uint32), np.array(constants, np.float32).view(np.uint32))


def test_constants_that_stand_alone_survive_bit_for_bit() -> None:
    """Each the whole expression of an output, so that nothing is computed with it."""
    spec = MapSpec((3,), (), (identity(3),) * len(AWKWARD), tuple(map(Const, AWKWARD)))
    for got, constant in zip(run_kernel(spec, [], target=OPENCL), AWKWARD, strict=True):
        np.testing.assert_array_equal(got.view(np.uint32), np.full(3, constant, np.float32).view(np.uint32))


def test_a_constant_may_be_no_number() -> None:
    assert np.isnan(apply(Binary("add", Ref(0), Const(float("nan"))), np.zeros(3, np.float32))).all()


@pytest.mark.parametrize("constant", [-(2**63), 2**62, 2**53 + 2, 2**31, -(2**31) - 1, -1])
def test_constants_of_whole_numbers_keep_all_their_bits(constant: int) -> None:
    got = apply(Binary("bit_or", Ref(0), Const(float(constant))), np.zeros(3, np.int64), result="i64")
    np.testing.assert_array_equal(got, np.full(3, constant))


# ------------------------------------------------------------------------------------------------------------ launches

SPEC = GatherSpec("scatter_add", 1, 20, 5, 100, dtype="f32")


def test_a_launch_takes_the_operands_that_it_uses() -> None:
    """Operands: index, d_y, table, workspace. Clearing reads none, sorting no gradient, summing no index."""
    kernel = build_object(SPEC, target())
    assert [launch.operands for launch in kernel.launches] == [(3,), (0, 3), (1, 2, 3)]
    text = kernel.artefacts[0].content.decode()
    heads = [line for line in text.splitlines() if line.startswith("__kernel")]
    names = ("in0", "in1", "out0", "ws")
    for head, launch in zip(heads, kernel.launches, strict=True):
        taken = ", ".join(f"__global uchar* b_{names[n]}, ulong at_{names[n]}" for n in launch.operands)
        assert head.endswith(f" {launch.entry}({taken}) {{")
        assert f"reqd_work_group_size({launch.items}, 1, 1)" in head


@pytest.mark.parametrize(("items", "elements"), [(257, 1), (64, 8193)])
def test_a_group_that_is_too_large_is_refused(items: int, elements: int) -> None:
    def write(here: Here) -> None:
        shared = here.shared(elements)
        here.block.store(shared, 0, tir.literal(1.0, "float32"))
        here.block.store(here.operands.outputs[0], here.item, tir.load(shared, 0))

    grid = Grid(MapSpec((512,), (), (identity(512),), (Const(1.0),)))
    grid.launch(1, items, write)
    with pytest.raises(InternalError, match=f"{items} items and {4 * elements} shared bytes are more than 256 and"):
        compile_kernel(grid, target(), symbol="pf_large", workspace_bytes=0)


def test_a_group_may_be_as_large_as_the_target_says_and_do_a_single_thing() -> None:
    grid = Grid(MapSpec((256,), (), (identity(256),), (Const(1.0),)))
    grid.launch(1, 256, lambda here: here.block.store(here.operands.outputs[0], here.item, tir.literal(1.0, "float32")))
    (launch,) = compile_kernel(grid, target(), symbol="pf_fits", workspace_bytes=0).launches
    assert (launch.groups, launch.items, launch.operands) == (1, 256, (0,))


def test_the_same_spec_gives_the_same_bytes_in_any_process() -> None:
    first = build_in_process(SPEC, target())
    build_in_process(MapSpec((9,), (identity(9),), (identity(9),), (Unary("exp", Ref(0)),)), target())
    built = build_kernels([SPEC], target(), threads=1, cache_dir=None, jobs=1)
    assert build_in_process(SPEC, target()) == first == built[signature(SPEC)]


# ----------------------------------------------------------------------------------------------------------- functions


@dataclass(frozen=True)
class Case:
    """A function on inputs. `limit`: largest error in units in the last place; None: the result is exact."""

    op: str
    inputs: tuple[Array, ...]
    limit: float | None = None
    result: DType = "f32"
    means: Callable[..., Array] | None = None
    """What it means, where NumPy's function of the name means another thing."""


def with_special(numbers: Array) -> tuple[Array, ...]:
    return (np.concatenate([numbers, SPECIAL]),)


def pairs(first: Array, second: Array) -> tuple[Array, ...]:
    return tuple(grid.ravel() for grid in np.meshgrid(first, second))


_generator = np.random.default_rng(7)
REALS = pairs(np.concatenate([SPECIAL, spread(-40, 40, 80)]), np.concatenate([SPECIAL, spread(-40, 40, 80)]))
PLAIN = pairs(spread(-9, 9, 120), np.array([3, -3, 0.7, -0.1, 1e-3, 250, 1e6], np.float32))
BASES = np.array([0.0, 1.0, -1.0, 2.0, -2.0, -0.5, np.inf, -np.inf, np.nan, 3e38, 1.7, 3e-6], np.float32)
EXPONENTS = np.array([0.0, 1.0, -1.0, 2.0, 3.0, 0.5, -2.5, 7.25, np.inf, -np.inf, np.nan, 200.0], np.float32)
WHOLE = pairs(
    np.array([-(2**62), -17, -4, -1, 0, 1, 3, 17, 2**40 + 5, 2**62]), np.array([-(2**33), -5, -1, 1, 2, 3, 7])
)
TRUTHS = pairs(np.array([False, True]), np.array([False, True]))
WORDS = (_generator.integers(-(2**63), 2**63, 99), _generator.integers(-(2**63), 2**63, 99))
SHIFTS = pairs(np.array([-9, -1, 0, 1, 77]), np.arange(40))


def _towards_zero(x: Array, y: Array) -> Array:
    return np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))


def _last(x: Array, y: Array) -> Array:
    """The remainder of a division towards zero."""
    return x - y * _towards_zero(x, y)


# Limits are those of OpenCL C 1.2, section 7.4, for single precision; of compositions, their sum.
UNARY_CASES = [
    Case("neg", with_special(spread(-120, 120)), 0),
    Case("neg", (WHOLE[0],), result="i64"),
    Case("abs", with_special(spread(-120, 120)), 0),
    Case("abs", (WHOLE[0],), result="i64"),
    Case("sign", with_special(spread(-120, 120)), 0),
    Case("sign", (WHOLE[0],), result="i64"),
    Case("floor", with_special(spread(-30, 30)), 0),
    Case("exp", with_special(spread(-30, 6.8)), 3),
    Case("log", with_special(np.abs(spread(-148, 127.9))), 3),
    Case("sqrt", with_special(np.abs(spread(-148, 127.9))), 3),
    Case("rsqrt", with_special(np.abs(spread(-120, 127))), 5.5),
    Case("reciprocal", with_special(spread(-120, 120)), 2.5),
    Case("tanh", with_special(spread(-60, 8)), 5),
    Case("sigmoid", with_special(spread(-60, 6.4)), 6),
    Case("erf", with_special(spread(-60, 8)), 16),
    Case("sin", with_special(spread(-60, 127)), 4),
    Case("cos", with_special(spread(-60, 127)), 4),
    Case("atan", with_special(spread(-60, 127)), 5),
    Case("is_nan", (SPECIAL,), result="bool"),
    Case("to_bool", (SPECIAL,), result="bool"),
    Case("to_bool", (WHOLE[0],), result="bool"),
    Case("not", (TRUTHS[0],), result="bool"),
    Case("not", (SPECIAL,), result="bool"),
    Case("to_f32", (WHOLE[0],), 0.5001),
    Case("to_f32", (TRUTHS[0],), 0),
    Case("to_i64", (np.append(spread(-9, 62, 400), np.float32(-0.99)),), result="i64"),
    Case("to_i64", (TRUTHS[0],), result="i64"),
    Case("to_i32", (np.append(spread(-9, 30, 400), np.float32(-0.99)),), result="i32"),
    Case("to_i32", (np.arange(-5, 5),), result="i32"),
]
BINARY_CASES = [
    *(Case(op, REALS, 0.5001) for op in ("add", "sub", "mul", "max", "min")),
    Case("div", REALS, 2.5),
    *(Case(op, REALS, result="bool") for op in ("lt", "le", "eq")),
    *(Case(op, WHOLE, result="bool") for op in ("lt", "le", "eq")),
    *(Case(op, WHOLE, result="i64") for op in ("max", "min", "mod", "bit_and", "bit_or", "bit_xor")),
    *(Case(op, (WHOLE[0] // 5, WHOLE[1]), result="i64") for op in ("add", "sub")),
    Case("mul", pairs(np.arange(-9, 9), np.array([-(2**59), -3, 0, 2**40])), result="i64"),
    Case("div", WHOLE, result="i64", means=_towards_zero),
    Case("fmod", WHOLE, result="i64", means=_last),
    Case("fmod", PLAIN, 0),
    Case("mod", PLAIN, 0.5001),
    Case(
        "pow",
        (
            np.exp(_generator.uniform(-20, 20, 50_000)).astype(np.float32),
            _generator.uniform(-8, 8, 50_000).astype(np.float32),
        ),
        16,
    ),
    Case("pow", pairs(BASES, EXPONENTS), 16),
    *(Case(op, TRUTHS, result="bool") for op in ("and", "or")),
    Case("shift_left", SHIFTS, result="i64"),
    *(Case(op, WORDS, result="i64") for op in ("philox", "philox0", "philox1")),
]


def check(case: Case, expr: Expr) -> None:
    """Compare with NumPy in float64, or with whole numbers."""
    wide = [array.astype(np.float64) if array.dtype == np.float32 else array for array in case.inputs]
    with np.errstate(all="ignore"):
        want = case.means(*wide) if case.means else value(expr, wide)
    got = apply(expr, *case.inputs, result=case.result)
    if case.limit is None:
        np.testing.assert_array_equal(got, want)
        return
    # Powers of e below 2**-125 may be given as 0, and so their quotients.
    want = np.where((got == 0) & (want < 2.0**-125) & (case.op in ("exp", "sigmoid")), 0, want)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert ulps(got[~np.isnan(want)], want[~np.isnan(want)]) <= case.limit


def _name(case: Case) -> str:
    return f"{case.op}-{case.inputs[0].dtype}"


@pytest.mark.parametrize("case", thinned(UNARY_CASES, 10, _name))
def test_functions_of_one_operand(case: Case) -> None:
    check(case, Unary(case.op, Ref(0)))


@pytest.mark.parametrize("case", thinned(BINARY_CASES, 10, _name))
def test_functions_of_two_operands(case: Case) -> None:
    check(case, Binary(case.op, Ref(0), Ref(1)))


def test_every_function_is_among_the_cases() -> None:
    assert {case.op for case in UNARY_CASES} == set(UNARY)
    assert {case.op for case in BINARY_CASES} == set(BINARY)


@pytest.mark.parametrize("constant", [0.7, 0.9, 3.0, -8.0, 1e-3, 1.4142135, 1e-38])
def test_division_by_a_constant(constant: float) -> None:
    inputs = spread(-80, 80, 20_000)
    with np.errstate(over="ignore"):
        want = inputs.astype(np.float64) / np.float64(np.float32(constant))
    assert ulps(apply(Binary("div", Ref(0), Const(constant)), inputs), want) <= 2.5


@pytest.mark.parametrize("exponent", thinned([0.0, 1.0, 2.0, 3.0, 4.0, 0.5, -0.5, -1.0, -2.0, 1.5, -3.0], 4))
def test_constant_exponents(exponent: float) -> None:
    x = np.linspace(0.1, 30, 999, dtype=np.float32)
    got = apply(Binary("pow", Ref(0), Const(exponent)), x)
    assert ulps(got, x.astype(np.float64) ** exponent) <= (5.5 if exponent in (0.5, -0.5, -1, -2) else 16)


def test_whole_numbers_over_zero_are_those_of_numpy() -> None:
    x = np.array([-7, 0, 7, -(2**63)])
    for op in ("div", "mod", "fmod"):
        np.testing.assert_array_equal(apply(Binary(op, Ref(0), Ref(1)), x, np.zeros(4, np.int64), result="i64"), 0)
