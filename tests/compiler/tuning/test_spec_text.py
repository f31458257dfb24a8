"""Kernels as text and back: the kernel of every operator's example survives, and what is not a kernel is refused."""

from __future__ import annotations

import pytest

from compiler.errors import TuningError
from compiler.kernels.canonical import canonical
from compiler.kernels.expressions import Ref
from compiler.kernels.spec import KernelSpec, MapSpec, MatmulSpec, PoolSpec, signature
from compiler.ops import OPERATORS
from compiler.ops.record import View
from compiler.program.program import KernelCall
from compiler.targets import load
from compiler.tuning.catalogue import Catalogue, catalogue_of, parse_spec
from tests.compiler.codegen.reference import identity
from tests.kernel_harness.machine import native_target

PRODUCT = MatmulSpec(1, 2, 3, 4, dtype="f32")


def example_kernels() -> list[KernelSpec]:
    lowered = [
        record.lower(example.inputs, record.infer(example.inputs, example.attrs), example.attrs)
        for record in OPERATORS.values()
        for example in record.examples
    ]
    return [spec for spec in lowered if not isinstance(spec, View)]


def test_every_kernel_survives() -> None:
    specs = example_kernels()
    assert len({type(spec) for spec in specs}) > 5
    for spec in specs:
        assert parse_spec(canonical(spec)) == spec


def test_infinities_and_signs_survive() -> None:
    padded = identity(4)
    for fill in (float("-inf"), float("inf"), -0.0, -1.5, 1e-40):
        spec = MapSpec((4,), (type(padded)(padded.type, padded.index, fill),), (identity(4),), (Ref(0),))
        assert canonical(parse_spec(canonical(spec))) == canonical(spec)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "Ref(operand=1)",
        "TensorType(dtype='f32',shape=(1))",
        canonical(PRODUCT)[:-1],
        canonical(PRODUCT) + ")",
        canonical(PRODUCT).replace("m=2", "m=02"),
        canonical(PRODUCT).replace("m=2,", ""),
        canonical(PRODUCT).replace("m=2", "w=2"),
        canonical(PRODUCT).replace("MatmulSpec", "__import__"),
        "(" * 100_000,
    ],
)
def test_not_a_kernel(text: str) -> None:
    with pytest.raises(TuningError, match="not a kernel's text"):
        parse_spec(text)


def call(spec: KernelSpec, flops: int, layer: str) -> KernelCall:
    return KernelCall(spec, (), (), layer, "forward", flops, 8, 8)


def test_a_catalogue_sums_what_equal_calls_do(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = PoolSpec("max", 1, 4, 4, 8, 2, 2, (2, 2), (2, 2), (0, 0, 0, 0), dtype="f32")
    other = MatmulSpec(1, 2, 3, 5, dtype="f32")
    monkeypatch.setattr("compiler.tuning.catalogue.choices_of", lambda spec, *_: (1,) if spec == pool else (1, 2))
    calls = [call(PRODUCT, 10, "a"), call(pool, 1000, "b"), call(PRODUCT, 30, "c"), call(other, 20, "d")]
    catalogue = catalogue_of(calls, load(native_target()), threads=2, version="v")
    assert [(one.name, one.calls, one.flops, one.bytes_moved) for one in catalogue.kernels] == [
        ("a", 2, 40, 32),
        ("d", 1, 20, 16),
    ]
    assert Catalogue.parse(catalogue.to_json()) == catalogue
    assert signature(catalogue.kernels[0].spec) == signature(PRODUCT)
    with pytest.raises(TuningError, match=r"kernels\.json"):
        Catalogue.parse(catalogue.to_json().replace(b"pockfarm.kernels/1", b"pockfarm.kernels/2"))
