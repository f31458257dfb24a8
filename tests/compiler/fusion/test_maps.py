"""Maps merged into what reads them: operands of a reduction's epilogue stay operands of its epilogue."""

from __future__ import annotations

from compiler.fusion.maps import fuse_into_reader
from compiler.graph import TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.expressions import Binary, Ref, Unary
from compiler.kernels.spec import MapSpec, ReduceSpec
from compiler.program.operands import operand_types
from compiler.program.program import KernelCall
from compiler.rewriting.passes import Reason
from tests.compiler.named import all_named

WHOLE = Access(TensorType("f32", (6, 8)), (Affine(((0, 1),)), Affine(((1, 1),))))
ROW = Access(TensorType("f32", (8,)), (Affine(((1, 1),)),))
SUM = ReduceSpec(
    (6, 8), (0,), "sum", (WHOLE, WHOLE), Binary("mul", Ref(0), Ref(1)), ROW, Binary("add", Ref(0), Ref(1)), (ROW,)
)
READER = KernelCall(SUM, all_named("a", "b", "c"), all_named("y"), "layer", "forward", 1, 1, 1)


def producer(output: str, shape: tuple[int, ...]) -> KernelCall:
    access = Access(TensorType("f32", shape), tuple(Affine(((axis, 1),)) for axis in range(len(shape))))
    spec = MapSpec(shape, (access,), (access,), (Unary("exp", Ref(0)),))
    return KernelCall(spec, all_named("x"), all_named(output), "layer", "forward", 1, 1, 1)


def test_an_epilogue_keeps_its_operands() -> None:
    fused = fuse_into_reader(producer("b", (6, 8)), READER, frozenset({1}))
    assert isinstance(fused, KernelCall)
    assert fused.inputs == all_named("a", "x", "c")
    assert len(operand_types(fused.spec).inputs) == len(fused.inputs)


def test_what_only_an_epilogue_reads_is_not_merged() -> None:
    assert isinstance(fuse_into_reader(producer("c", (8,)), READER, frozenset({2})), Reason)
