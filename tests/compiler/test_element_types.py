"""The table of element types against those who have tables of their own: NumPy, ONNX, TIR, and the C runtime."""

from __future__ import annotations

import re
from typing import get_args

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from compiler.element_types import ELEMENT_TYPES, DType, ElementType, emitted_of_numpy, emitted_of_onnx, higher
from compiler.errors import BuildError
from compiler.frontend.importer import import_model
from compiler.kernels.movement import ElementsSpec, ResampleSpec, ScanSpec, SelectSpec
from compiler.kernels.spec import AttentionSpec, GatherSpec, KernelSpec, NormGradSpec, PoolSpec
from compiler.targets import load
from tests.architecture.sources import ROOT
from tests.kernel_harness.launch import build_object

ROWS = list(ELEMENT_TYPES.values())
RUNTIME = ROOT / "compiler" / "runtime"


def c_list(file: str, pattern: str) -> list[str]:
    """The items of a C initializer or enumeration."""
    (body,) = re.findall(pattern, (RUNTIME / file).read_text())
    return [item.strip().strip('"') for item in body.split(",")]


def test_every_name_has_a_row() -> None:
    assert tuple(ELEMENT_TYPES) == get_args(DType)
    assert [row.name for row in ROWS] == list(ELEMENT_TYPES)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_agrees_with_numpy_onnx_and_tir(row: ElementType) -> None:
    assert row.numpy.itemsize == row.item_bytes
    assert TensorProto.DataType.Name(row.onnx) == {"float32": "FLOAT"}.get(row.label, row.label.upper())
    bits = int(re.sub(r"\D", "", row.tir))
    assert bits == 8 * row.item_bytes
    assert row.is_real == ("float" in row.label or row.name == "i8")  # which stands for reals
    assert ELEMENT_TYPES[row.sums_in].is_emitted
    assert row.sum.item_bytes >= row.item_bytes
    if row.name != "bf16":
        assert row.numpy == np.dtype(row.label) == helper.tensor_dtype_to_np_dtype(row.onnx)


def test_the_runtime_has_the_types_in_this_order() -> None:
    assert c_list("pockfarm_step.h", r"typedef enum \{([^}]*)\} pf_dtype;") == [row.c_name for row in ROWS]
    assert c_list("image.h", r"uint8_t bytes\[\] = \{([^}]*)\}") == [str(row.item_bytes) for row in ROWS]
    assert c_list("image.h", r"names\[\] = \{([^}]*)\}") == [row.name for row in ROWS]
    assert c_list("checkpoint_read.c", r"names\[\] = \{([^}]*)\}") == [row.name.upper() for row in ROWS]


def test_only_emitted_types_are_found_by_code_or_array() -> None:
    for row in ROWS:
        expected = row if row.is_emitted else None
        assert emitted_of_onnx(row.onnx) is expected
        assert emitted_of_numpy(row.numpy) is expected
    assert emitted_of_numpy(np.dtype("f8")) is None
    assert emitted_of_onnx(99) is None


def test_the_higher_type_holds_both() -> None:
    names: list[DType] = ["bool", "i32", "i64", "f16", "f32"]
    for position, low in enumerate(names):
        for high in names[position:]:
            assert higher(low, high) == higher(high, low) == high


@pytest.mark.parametrize("code", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_a_model_in_half_precision_is_read_in_single_and_that_is_said(code: int) -> None:
    halves = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "half",
        [helper.make_tensor_value_info("x", code, [2, 3])],
        [helper.make_tensor_value_info("y", code, [2, 3])],
    )
    model = helper.make_model(halves, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    graph = import_model(model.SerializeToString(), input_shapes={}, batch=2, batch_norm="fold")
    assert {tensor.dtype for tensor in graph.types.values()} == {"f32"}
    assert [warning.code for warning in graph.warnings] == ["model.real_type"]


def refused_specs(dtype: DType) -> list[KernelSpec]:
    """Kernels beside the contractions, which `test_precision` has."""
    return [
        PoolSpec("max", 1, 4, 4, 8, 2, 2, (2, 2), (2, 2), (0, 0, 0, 0), dtype=dtype),
        GatherSpec("gather", 1, 8, 16, 4, dtype=dtype),
        NormGradSpec(4, 16, 1e-5, True, dtype=dtype),
        AttentionSpec("forward", 1, 2, 2, 8, 8, 16, 16, 0.25, dtype=dtype),
        ElementsSpec("gather", 1, 8, 16, 4, dtype=dtype),
        ResampleSpec("forward", 1, 8, 16, 4, 2, dtype=dtype),
        ScanSpec("sum", 1, 8, 16, dtype=dtype),
        SelectSpec(1, 8, 16, 4, dtype=dtype),
    ]


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("position", range(8))
def test_a_kernel_that_would_compute_in_half_precision_is_refused_by_name(position: int, dtype: DType) -> None:
    with pytest.raises(BuildError, match=rf"computes in f32, not in {dtype}"):
        build_object(refused_specs(dtype)[position], load("x86-64-v3"), 1)
