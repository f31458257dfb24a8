"""A call whose values are not what its kernel takes is refused before it can write past them."""

from __future__ import annotations

import re
from dataclasses import replace

from compiler.graph import TensorType
from compiler.kernels.spec import GatherSpec
from compiler.program.operands import find_mismatch
from compiler.program.program import KernelCall, Program
from tests.compiler.named import all_named, named

_SPEC = GatherSpec("gather", outer=1, rows=5, inner=4, count=3, dtype="bool")
_TYPES = {"table": TensorType("bool", (5, 4)), "index": TensorType("i64", (3,)), "y": TensorType("bool", (3, 4))}


def _program(spec: GatherSpec, types: dict[str, TensorType]) -> Program:
    call = KernelCall(spec, all_named("table", "index"), all_named("y"), "node_Gather", "forward", 0, 72, 12)
    own = {named(name): name for name in types}
    typed = {named(name): tensor for name, tensor in types.items()}
    return Program("forward", (call,), typed, all_named("table", "index"), all_named("y"), {}, names=own)


def test_shapes_may_differ_where_sizes_and_types_agree() -> None:
    assert find_mismatch(_program(_SPEC, _TYPES)) == ""
    assert find_mismatch(_program(_SPEC, {**_TYPES, "y": TensorType("bool", (12,))})) == ""


def test_another_type_is_refused() -> None:
    assert re.search(r"takes 'table', bool.*, as f32", find_mismatch(_program(replace(_SPEC, dtype="f32"), _TYPES)))


def test_another_size_is_refused() -> None:
    assert "takes 'y'" in find_mismatch(_program(_SPEC, {**_TYPES, "y": TensorType("bool", (2, 4))}))


def test_another_number_of_operands_is_refused() -> None:
    program = _program(_SPEC, _TYPES)
    call = replace(program.calls[0], inputs=all_named("table"))
    mismatch = find_mismatch(replace(program, calls=(call,)))
    assert "2 inputs and 1 outputs" in mismatch
    assert mismatch.endswith(" 1 and 1")
