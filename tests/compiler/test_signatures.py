"""The name of a kernel is that of its text: by identity it is only found faster."""

from __future__ import annotations

from dataclasses import replace

from compiler.kernels.canonical import canonical
from compiler.kernels.expressions import Binary, Const, Ref
from compiler.kernels.spec import MapSpec, signature
from tests.compiler.codegen.reference import identity


def _shifted(by: float) -> MapSpec:
    return MapSpec((8,), (identity(8),), (identity(8),), (Binary("add", Ref(0), Const(by)),))


def test_equal_specs_of_other_texts_have_other_names() -> None:
    plus, minus = _shifted(0.0), _shifted(-0.0)
    assert plus == minus
    assert canonical(plus) != canonical(minus)
    assert signature(plus) == signature(_shifted(0.0)) != signature(minus)
    assert signature(plus) == signature(plus)


def test_a_name_does_not_outlive_its_spec() -> None:
    names = [signature(_shifted(float(number))) for number in range(200)]
    assert len(set(names)) == 200, "each spec is gone when the next one is made, maybe in its place"
    first = _shifted(1.0)
    assert signature(replace(first, extents=(9,))) != signature(first)
