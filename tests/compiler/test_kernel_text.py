"""The readable text of kernels: exact both ways, for every operator's kernels and for values drawn at random."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.graph import TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.canonical import canonical
from compiler.kernels.expressions import BINARY, UNARY, Binary, Const, Expr, Index, Ref, Select, Stat, Unary
from compiler.kernels.spec import MapSpec, MatmulSpec
from compiler.kernels.text import read, show
from tests.compiler.tuning.test_spec_text import example_kernels
from tests.sample import some

numbers = st.floats(allow_nan=False) | st.integers(-(1 << 70), 1 << 70)
leaves = (
    st.builds(Const, numbers)
    | st.builds(Ref, st.integers(0, 30))
    | st.builds(Stat, st.integers(0, 3))
    | st.builds(Index, st.integers(0, 5))
)
expressions: st.SearchStrategy[Expr] = st.recursive(
    leaves,
    lambda inner: (
        st.builds(Unary, st.sampled_from(UNARY), inner)
        | st.builds(Binary, st.sampled_from(BINARY), inner, inner)
        | st.builds(Select, inner, inner, inner)
    ),
    max_leaves=12,
)
affines = st.builds(
    Affine,
    st.lists(st.tuples(st.integers(0, 9), st.integers(-9, 9).filter(bool)), max_size=3).map(tuple),
    st.integers(-99, 99),
)
tensors = st.builds(
    TensorType, st.sampled_from(("f32", "i64", "i32", "bool")), st.lists(st.integers(1, 9), max_size=4).map(tuple)
)
accesses = st.builds(Access, tensors, st.lists(affines, max_size=4).map(tuple), st.none() | st.floats(allow_nan=False))
maps = st.builds(
    MapSpec,
    st.lists(st.integers(1, 9), max_size=3).map(tuple),
    st.lists(accesses, max_size=3).map(tuple),
    st.lists(accesses, max_size=2).map(tuple),
    st.lists(expressions, max_size=2).map(tuple),
)


def test_every_operators_kernel_survives() -> None:
    for spec in some(example_kernels()):
        assert canonical(read(show(spec))) == canonical(spec)


@pytest.mark.thorough
@settings(max_examples=300)
@given(maps)
def test_any_map_survives(spec: MapSpec) -> None:
    assert canonical(read(show(spec))) == canonical(spec)


@pytest.mark.thorough
@settings(max_examples=300)
@given(st.recursive(st.text() | numbers | st.booleans() | st.none(), lambda inner: st.lists(inner).map(tuple)))
def test_any_plain_value_survives(value: object) -> None:
    found = read(show(value))
    assert (found, repr(found)) == (value, repr(value))


def test_it_is_short() -> None:
    bias = Access(TensorType("f32", (4,)), (Affine(((2, 1),)),))
    spec = MatmulSpec(1, 8, 4, 16, dtype="f32", epilogue=Binary("add", Ref(0), Ref(1)), epilogue_inputs=(bias,))
    assert show(spec) == (
        "MatmulSpec(batch=1, m=8, n=4, k=16, dtype=f32, epilogue=add($0, $1), epilogue_inputs=(f32[4](i2)))"
    )


@pytest.mark.parametrize(
    "text", ["", "(", "MatmulSpec(batch=1)", "MatmulSpec(q=1)", "f32[4", "add($0, $1, $2)", "1 2", "#x"]
)
def test_what_is_no_text_of_a_kernel_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read(text)
