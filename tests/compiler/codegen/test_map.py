"""Element-wise kernels against NumPy float64: broadcast, transpose, slice, pad, concat, types, in-place updates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.graph import Array, TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.expressions import Binary, Const, Expr, Index, Ref, Select, Unary
from compiler.kernels.spec import MapSpec
from compiler.targets import load, load_cpu
from tests.compiler.codegen.reference import identity, picked, run_map
from tests.kernel_harness.launch import Kernel, build_in_process, build_object, run_kernel
from tests.kernel_harness.machine import native_target
from tests.sample import sample, thinned

ADD = Binary("add", Ref(0), Ref(1))


def values(access: Access, generator: np.random.Generator) -> Array:
    if access.type.dtype == "bool":
        return generator.random(access.type.shape) < 0.5
    if access.type.dtype in ("i64", "i32"):
        return generator.integers(-50, 50, access.type.shape).astype(access.type.dtype.replace("i", "int"))
    return generator.normal(size=access.type.shape).astype(np.float32)


def check(spec: MapSpec, *, threads: int = 2, tolerance: float = 1e-6) -> None:
    generator = np.random.default_rng(0)
    inputs = [values(access, generator) for access in spec.inputs]
    initial = [values(access, generator) for access in spec.outputs]
    for got, want in zip(
        run_kernel(spec, inputs, threads=threads, initial=initial), run_map(spec, inputs, initial), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("size", [1, 2, 3, 15, 16, 17, 31, 1000, 16_384, 16_385, 100_003])
def test_flat_sizes(size: int) -> None:
    check(MapSpec((size,), (identity(size), identity(size)), (identity(size),), (ADD,)))


def test_scalars() -> None:
    check(MapSpec((), (identity(), identity()), (identity(),), (ADD,)))
    check(MapSpec((1, 1), (identity(1, 1), identity(1, 1)), (identity(1, 1),), (ADD,)))


BROADCASTS = [
    ((8, 7, 5, 24), (24,), (3,)),
    ((8, 7, 5, 24), (8, 1, 1, 24), (0, None, None, 3)),
    ((64, 50, 40), (64, 1, 40), (0, None, 2)),
    ((64, 50, 40), (1,), (None,)),
    ((300, 1000), (300, 1), (0, None)),
    ((300, 10), (10,), (1,)),
    ((4, 6, 50, 50), (4, 1, 1, 50), (0, None, None, 3)),
    ((2, 3, 1, 5), (3, 1, 1), (1, None, None)),
]


@pytest.mark.parametrize(("extents", "shape", "axes"), BROADCASTS, ids=str)
def test_broadcasts(extents: tuple[int, ...], shape: tuple[int, ...], axes: tuple[int | None, ...]) -> None:
    check(MapSpec(extents, (identity(*extents), picked(shape, *axes)), (identity(*extents),), (ADD,)))


PERMUTATIONS = [
    ((8, 3, 20, 20), (0, 2, 3, 1)),
    ((8, 20, 20, 24), (0, 3, 1, 2)),
    ((4, 50, 6, 32), (0, 2, 1, 3)),
    ((4, 50, 6, 32), (0, 2, 3, 1)),
    ((70, 90), (1, 0)),
    ((500, 300), (1, 0)),
    ((3, 5, 7), (2, 1, 0)),
    ((128, 2), (1, 0)),
    ((2, 128), (1, 0)),
    ((2, 17, 3, 33, 5), (4, 3, 2, 1, 0)),
]


@pytest.mark.parametrize(("shape", "order"), thinned((pytest.param(*case, id=str(case)) for case in PERMUTATIONS), 5))
def test_transposes(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    extents = tuple(shape[axis] for axis in order)
    place = {axis: number for number, axis in enumerate(order)}
    read = Access(TensorType("f32", shape), tuple(Affine(((place[axis], 1),)) for axis in range(len(shape))))
    check(MapSpec(extents, (read,), (identity(*extents),), (Ref(0),)))
    written = MapSpec(
        shape,
        (identity(*shape),),
        (Access(TensorType("f32", extents), tuple(Affine(((axis, 1),)) for axis in order)),),
        (Ref(0),),
    )
    check(written)


@settings(max_examples=60)
@given(st.data())
def test_any_shape_broadcast_and_order(data: st.DataObject) -> None:
    extents = tuple(data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4)))
    axes = range(len(extents))
    accesses = []
    for _ in range(2):
        order = data.draw(st.permutations(list(axes)))
        used = [axis if data.draw(st.booleans()) else None for axis in order]
        accesses.append(picked(tuple(1 if axis is None else extents[axis] for axis in used), *used))
    order = data.draw(st.permutations(list(axes)))
    output = picked(tuple(extents[axis] for axis in order), *order)
    check(MapSpec(extents, tuple(accesses), (output,), (ADD,)), threads=data.draw(st.integers(1, 2)))


def test_slices_with_steps_read_and_written() -> None:
    source = Access(TensorType("f32", (40, 100)), (Affine(((0, 2),), 3), Affine(((1, 3),), 1)))
    check(MapSpec((18, 33), (source,), (identity(18, 33),), (Ref(0),)))
    check(MapSpec((18, 33), (identity(18, 33),), (source,), (Ref(0),)))
    flipped = Access(TensorType("f32", (18, 33)), (Affine(((0, 1),)), Affine(((1, -1),), 32)))
    check(MapSpec((18, 33), (flipped,), (identity(18, 33),), (Ref(0),)))


@pytest.mark.parametrize("fill", [0.0, -np.inf, 2.5])
@pytest.mark.parametrize("channels", [1, 3, 32])
def test_padding(fill: float, channels: int) -> None:
    index = (Affine(((0, 1),)), Affine(((1, 1),), -1), Affine(((2, 1),), -2), Affine(((3, 1),)))
    source = Access(TensorType("f32", (2, 9, 11, channels)), index, fill)
    check(MapSpec((2, 12, 14, channels), (source,), (identity(2, 12, 14, channels),), (Ref(0),)))


@pytest.mark.parametrize("axis", sample(range(3), {"0", "2"}))
@pytest.mark.parametrize("sizes", [(5, 7), (32, 32, 16), (1, 1), tuple(range(1, 41))], ids=str)
def test_concatenation(axis: int, sizes: tuple[int, ...]) -> None:
    total = sum(sizes)
    extents = tuple(total if a == axis else 12 for a in range(3))
    inputs, expr, start = [], None, 0
    for number, size in enumerate(sizes):
        shape = tuple(size if a == axis else 12 for a in range(3))
        index = tuple(Affine(((a, 1),), -start if a == axis else 0) for a in range(3))
        inputs.append(Access(TensorType("f32", shape), index, 0.0))
        start += size
        piece: Expr = Ref(number)
        expr = piece if expr is None else Select(Binary("lt", Index(axis), Const(start - size)), expr, piece)
    assert expr is not None
    check(MapSpec(extents, tuple(inputs), (identity(*extents),), (expr,)))


def test_guards_over_two_axes() -> None:
    """Patches of a padded image: position = 2 i + k - 1."""
    index = (Affine(((0, 2), (1, 1)), -1), Affine(((2, 2), (3, 1)), -1))
    source = Access(TensorType("f32", (9, 11)), index, 0.5)
    check(MapSpec((5, 3, 6, 3), (source,), (identity(5, 3, 6, 3),), (Ref(0),)))


def test_comparisons_booleans_and_casts() -> None:
    shape = (37, 45)
    x, flag = identity(*shape), identity(*shape, dtype="bool")
    number, small = identity(*shape, dtype="i64"), identity(*shape, dtype="i32")
    both = Binary("and", Binary("lt", Ref(0), Const(0.3)), Unary("not", Ref(1)))
    picked_value = Select(Ref(1), Unary("to_f32", Ref(2)), Ref(0))
    wider, narrower = Binary("add", Ref(2), Unary("to_i64", Ref(3))), Binary("mul", Unary("to_i32", Ref(2)), Ref(3))
    either = Binary("or", Ref(1), Binary("eq", Ref(2), Const(3)))
    exprs = (both, picked_value, wider, Unary("to_bool", Ref(3)), narrower, either)
    outputs = (flag, x, number, flag, small, flag)
    check(MapSpec(shape, (x, flag, number, small), outputs, exprs))


def test_positions() -> None:
    """A causal mask and a position ramp."""
    mask = Binary("le", Index(2), Index(1))
    ramp = Binary("mul", Unary("to_f32", Index(2)), Const(0.5))
    shape = (3, 20, 37)
    check(MapSpec(shape, (identity(*shape),), (identity(*shape),) * 2, (Select(mask, Ref(0), Const(-np.inf)), ramp)))


def test_constants_fill() -> None:
    check(MapSpec((100, 7), (), (identity(100, 7), identity(100, 7, dtype="i64")), (Const(1.5), Const(7))))


@pytest.mark.parametrize("threads", [1, 2])
def test_adam_in_place(threads: int) -> None:
    """Outputs share storage with the inputs that they replace, and the result is the same."""
    size = 40_003
    flat, rate = identity(size), picked((1,), None)
    m = Binary("add", Binary("mul", Ref(2), Const(0.9)), Binary("mul", Ref(1), Const(0.1)))
    v = Binary("add", Binary("mul", Ref(3), Const(0.99)), Binary("mul", Binary("mul", Ref(1), Ref(1)), Const(0.01)))
    step = Binary("div", m, Binary("add", Unary("sqrt", v), Const(1e-8)))
    p = Binary("sub", Ref(0), Binary("mul", Ref(4), step))
    spec = MapSpec((size,), (flat, flat, flat, flat, rate), (flat, flat, flat), (p, m, v))
    kernel = Kernel(spec, load(native_target()), threads)
    storages = kernel.storages()
    generator = np.random.default_rng(0)
    inputs = [np.abs(generator.normal(size=access.type.shape)).astype(np.float32) for access in spec.inputs]
    for storage, access, array in zip(storages, spec.inputs, inputs, strict=False):
        storage.view(access.type)[...] = array
    shared = [*storages[:5], storages[0], storages[2], storages[3]]
    kernel.call(shared)
    for storage, want in zip(shared[5:], run_map(spec, inputs), strict=True):
        np.testing.assert_allclose(storage.view(flat.type), want, rtol=2e-6, atol=1e-6)


def test_partial_update_leaves_the_rest() -> None:
    """The first 3 of 8 input channels of a weight [KH, KW, C, K] take a step in place."""
    weight = TensorType("f32", (3, 3, 8, 20))
    window = Access(weight, tuple(Affine(((axis, 1),)) for axis in range(4)))
    gradient = identity(3, 3, 3, 20)
    expr = Binary("sub", Ref(0), Binary("mul", Ref(1), Const(0.5)))
    spec = MapSpec((3, 3, 3, 20), (window, gradient), (window,), (expr,))
    generator = np.random.default_rng(0)
    w = generator.normal(size=weight.shape).astype(np.float32)
    g = generator.normal(size=gradient.type.shape).astype(np.float32)
    kernel = Kernel(spec, load(native_target()), 2)
    storages = kernel.storages()
    storages[0].view(weight)[...] = w
    storages[1].view(gradient.type)[...] = g
    kernel.call([storages[0], storages[1], storages[0]])
    got = storages[0].view(weight)
    np.testing.assert_allclose(got[:, :, :3], w[:, :, :3] - 0.5 * g, rtol=1e-6)
    np.testing.assert_array_equal(got[:, :, 3:], w[:, :, 3:])


def test_a_shared_subexpression_is_computed_once() -> None:
    """An expression graph that as a tree has 2**40 nodes still compiles."""
    expr: Expr = Ref(0)
    for _ in range(40):
        expr = Binary("mul", Binary("add", expr, expr), Const(0.5))
    x = np.random.default_rng(0).normal(size=33).astype(np.float32)
    spec = MapSpec((33,), (identity(33),), (identity(33),), (expr,))
    with pytest.MonkeyPatch.context() as patch:
        # The spec's own digest walks the tree; only this test has such an expression.
        patch.setattr("compiler.codegen.symbols.signature", lambda spec: "shared" * 11)
        (got,) = Kernel(spec, load_cpu(native_target()), 2, build=build_in_process).run(x)
    np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("target", ["x86-64-v3", "raspberry-pi-4"])
def test_other_targets_build(target: str) -> None:
    transpose = Access(TensorType("f32", (8, 24, 400)), (Affine(((0, 1),)), Affine(((2, 1),)), Affine(((1, 1),))))
    for inputs, extents in (((identity(50, 77),), (50, 77)), ((transpose,), (8, 400, 24))):
        spec = MapSpec(extents, inputs, (identity(*extents),), (Unary("tanh", Ref(0)),))
        assert build_object(spec, load(target)).object_bytes
