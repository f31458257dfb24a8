"""Binding of input shapes, and shape arithmetic folded at import."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import yaml

from compiler.errors import LimitExceeded, ModelShapeError
from compiler.frontend.file.prescan import ModelLimits
from compiler.frontend.importer import import_model
from tests.compiler.frontend.onnx_graphs import Shape, assert_agrees, imported, model_of, node

RELU = [node("Relu", ["x"], ["y"])]


def test_an_open_first_axis_is_the_batch() -> None:
    for axis in ("batch", None):
        graph = imported(model_of(RELU, {"x": ("f32", (axis, 3))}), batch=5)
        assert graph.types[graph.value_called("x")].shape == graph.types[graph.value_called("y")].shape == (5, 3)


def test_other_open_axes_come_from_the_spec_or_a_shared_symbol() -> None:
    nodes = [node("Add", ["x", "z"], ["y"])]
    model = model_of(nodes, {"x": ("f32", ("batch", "time")), "z": ("f32", ("batch", "time"))})
    graph = imported(model, x=(2, 7))
    assert graph.types[graph.value_called("z")].shape == (2, 7)


@pytest.mark.parametrize(
    ("shape", "bound", "message"),
    [
        (("batch", "time"), {}, r"input 'x' axis 1: is open"),
        ((4, 3), {}, r"input 'x' axis 0: is 4 .* batch is 2"),
        (("batch", 3), {"x": (2, 5)}, r"input 'x' axis 1: is 3 .* 5 in the spec"),
        (("batch", 3), {"x": (2, 3, 1)}, r"input 'x': has rank 2"),
        (("batch", 3), {"q": (2, 3)}, r"input 'q': the model has no such input"),
        (("batch", 3), {"x": (3, 3)}, r"input 'x' axis 0"),
        (("batch", "n"), {"x": (2, 0)}, r"input 'x' axis 1: is 0"),
    ],
)
def test_what_does_not_bind_is_refused(
    shape: tuple[int | str, ...], bound: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ModelShapeError, match=message):
        import_model(model_of(RELU, {"x": ("f32", shape)}), input_shapes=bound, batch=2, batch_norm="fold")


def test_one_symbol_with_two_extents_is_refused() -> None:
    model = model_of([node("MatMul", ["x", "z"], ["y"])], {"x": ("f32", ("b", "t")), "z": ("f32", ("b", "t"))})
    with pytest.raises(ModelShapeError, match="'t' is 4 here and 3 at input 'x' axis 1"):
        import_model(model, input_shapes={"x": (2, 3), "z": (2, 4)}, batch=2, batch_norm="fold")


def test_shape_arithmetic_of_a_dynamic_reshape_is_folded() -> None:
    """Shape -> Gather -> Unsqueeze -> Concat -> Reshape, as TorchScript writes `x.view(x.size(0), -1)`."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["n"]),
        node("Unsqueeze", ["n", "axis"], ["n1"]),
        node("Concat", ["n1", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    known = {"zero": np.asarray(0), "axis": np.asarray([0]), "rest": np.asarray([-1])}
    model = model_of(nodes, {"x": ("f32", ("batch", 3, 4))}, initializers=known)
    graph = imported(model, batch=6)
    assert [made.op for made in graph] == ["reshape"]
    assert_agrees(model, graph)


def test_a_causal_mask_of_constants_is_folded() -> None:
    """Range, comparison, Where, ConstantOfShape, Trilu and Expand on known shapes leave one constant."""
    nodes = [
        node("Shape", ["x"], ["t"], start=1, end=2),
        node("Squeeze", ["t"], ["n"]),
        node("Range", ["zero", "n", "one"], ["columns"]),
        node("Unsqueeze", ["columns", "axis"], ["rows"]),
        node("LessOrEqual", ["columns", "rows"], ["seen"]),
        node("Not", ["seen"], ["hidden"]),
        node("Where", ["hidden", "low", "none"], ["mask"]),
        node("Add", ["x", "mask"], ["y"]),
    ]
    known = {
        "zero": np.asarray(0),
        "one": np.asarray(1),
        "axis": np.asarray([1]),
        "low": np.asarray(-1e9, np.float32),
        "none": np.asarray(0, np.float32),
    }
    model = model_of(nodes, {"x": ("f32", ("batch", "t", "t"))}, initializers=known)
    graph = imported(model, x=(2, 5, 5))
    assert [made.op for made in graph] == ["add"]
    assert not graph.parameters
    assert_agrees(model, graph)


INTEGER_CASES = {
    "Div": (np.asarray([-7, 7, 7]), np.asarray([2, -2, 3])),
    "Mod": (np.asarray([-7, 7, 7]), np.asarray([2, -2, 3])),
    "Mul": (np.asarray([-7, 7]), np.asarray([[3], [2]])),
    "Max": (np.asarray([1, 5]), np.asarray([3, 3]), np.asarray([2, 9])),
    "CumSum": (np.asarray([[1, 2], [3, 4]]), np.asarray(1)),
    "NonZero": (np.asarray([[1, 0], [3, 4]]),),
    "ReduceProd": (np.asarray([2, 3, 4]),),
    "ScatterND": (np.asarray([1, 2, 3]), np.asarray([[2]]), np.asarray([9])),
    "Tile": (np.asarray([[1, 2]]), np.asarray([2, 3])),
    "ArgMax": (np.asarray([[1, 5, 2], [7, 0, 7]]),),
    "Size": (np.asarray([[1, 2]]),),
    "GatherND": (np.asarray([[1, 2], [3, 4]]), np.asarray([[1, 0]])),
    "GatherElements": (np.asarray([[1, 2], [3, 4]]), np.asarray([[1, 0]])),
}


@pytest.mark.parametrize("op_type", INTEGER_CASES)
def test_folded_integer_arithmetic_agrees(op_type: str) -> None:
    operands = INTEGER_CASES[op_type]
    names = [f"k{i}" for i in range(len(operands))]
    nodes = [
        node(op_type, names, ["folded"]),
        node("Cast", ["folded"], ["real"], to=1),
        node("ReduceSum", ["x"], ["total"], keepdims=0),
        node("Add", ["real", "total"], ["y"]),
    ]
    model = model_of(nodes, {"x": ("f32", ("batch", 3))}, initializers=dict(zip(names, operands, strict=True)))
    assert_agrees(model, imported(model))


TABLE, PLACES = np.asarray([[3, 1, 2], [9, 7, 8]]), np.asarray([[0, 1, 0]])
FOLDED_WITH_ATTRIBUTES: list[tuple[str, tuple[np.ndarray, ...], dict[str, object]]] = [
    ("CumSum", (TABLE, np.asarray(1)), {"exclusive": 1}),
    ("CumSum", (TABLE, np.asarray(1)), {"exclusive": 1, "reverse": 1}),
    ("CumSum", (TABLE, np.asarray(0)), {"reverse": 1}),
    ("GatherND", (TABLE, np.asarray([[2], [0]])), {"batch_dims": 1}),
    ("ScatterND", (TABLE, np.asarray([[0], [0]]), np.asarray([[5, 0, 1], [1, 2, 2]])), {"reduction": "add"}),
    ("ScatterElements", (TABLE, PLACES, np.asarray([[4, 9, 6]])), {}),
    ("ScatterElements", (TABLE, PLACES, np.asarray([[4, 9, 6]])), {"reduction": "max"}),
    ("Compress", (TABLE, np.asarray([True, False, True])), {"axis": 1}),
    ("TopK", (TABLE, np.asarray([2])), {"largest": 0}),
    ("Unique", (np.asarray([5, 1, 5, 3, 1]),), {"sorted": 0}),
]


@pytest.mark.parametrize(("op_type", "operands", "attributes"), FOLDED_WITH_ATTRIBUTES)
def test_folded_operators_heed_their_attributes(
    op_type: str, operands: tuple[np.ndarray, ...], attributes: dict[str, object]
) -> None:
    """Of several outputs the last one is looked at too: positions or counts."""
    count = {"TopK": 2, "Unique": 4}.get(op_type, 1)
    names, outputs = [f"k{i}" for i in range(len(operands))], [f"folded{i}" for i in range(count)]
    nodes = [node(op_type, names, outputs, **attributes), node("ReduceSum", ["x"], ["total"], keepdims=0)]
    for number in {0, count - 1}:
        nodes += [node("Cast", [f"folded{number}"], [f"real{number}"], to=1)]
        nodes += [node("Add", [f"real{number}", "total"], [f"y{number}"])]
    known = dict(zip(names, operands, strict=True))
    model = model_of(nodes, {"x": ("f32", ("batch", 3))}, [f"y{number}" for number in {0, count - 1}], known)
    graph = imported(model)
    assert {made.op for made in graph} <= {"reduce_sum", "add"}
    assert_agrees(model, graph)


@pytest.mark.parametrize(
    ("op_type", "operands", "attributes"),
    [
        ("OneHot", ("i", np.asarray(1 << 40), np.asarray([0.0, 1.0], np.float32)), {}),
        ("Pad", ("x", np.asarray([0, 1 << 40, 0, 0])), {"mode": "edge"}),
        ("Pad", ("x", np.asarray([0, 1 << 40, 0, 0])), {}),
        ("Resize", ("x", "", "", np.asarray([2, 1 << 40])), {"mode": "nearest"}),
        ("Resize", ("x", "", np.asarray([1, 2.0**30], np.float32)), {"mode": "linear"}),
        ("CenterCropPad", ("x", np.asarray([2, 1 << 40])), {}),
    ],
)
def test_little_input_cannot_ask_for_much_at_run_time(
    op_type: str, operands: tuple[object, ...], attributes: dict[str, object]
) -> None:
    names = [operand if isinstance(operand, str) else f"k{i}" for i, operand in enumerate(operands)]
    known = {f"k{i}": operand for i, operand in enumerate(operands) if isinstance(operand, np.ndarray)}
    inputs = {"x": ("f32", ("batch", 3)), "i": ("i64", ("batch",))}
    taken = {name: kind for name, kind in inputs.items() if name in names}
    model = model_of([node(op_type, names, ["y"], **attributes)], taken, initializers=known, infer_shapes=False)
    with pytest.raises(LimitExceeded, match="make_y"):
        imported(model)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_folded_arg_max_picks_the_tie_that_it_is_asked_for(axis: int, keepdims: int, last: int) -> None:
    known = {"k": np.asarray([[5.0, 1, 5], [5, 2, 0]], np.float32)}
    nodes = [
        node("ArgMax", ["k"], ["index"], axis=axis, keepdims=keepdims, select_last_index=last),
        node("Cast", ["index"], ["real"], to=1),
        node("ReduceSum", ["x"], ["total"], keepdims=0),
        node("Add", ["real", "total"], ["y"]),
    ]
    model = model_of(nodes, {"x": ("f32", ("batch", 3))}, initializers=known)
    assert_agrees(model, imported(model))


@pytest.mark.parametrize("op_type", ["Range", "Expand", "ConstantOfShape", "Tile"])
def test_little_input_cannot_ask_for_much_memory(op_type: str) -> None:
    huge = np.asarray([1 << 40])
    operands = {
        "Range": (np.asarray(0), np.asarray(1 << 40), np.asarray(1)),
        "Expand": (np.asarray([1.0], np.float32), huge),
        "ConstantOfShape": (huge,),
        "Tile": (np.asarray([1.0], np.float32), huge),
    }[op_type]
    names = [f"k{i}" for i in range(len(operands))]
    nodes = [node(op_type, names, ["big"]), node("ReduceSum", ["big"], ["s"]), node("Relu", ["x"], ["y"])]
    known = dict(zip(names, operands, strict=True))
    model = model_of(nodes, {"x": ("f32", ("batch", 3))}, initializers=known, infer_shapes=False)
    with pytest.raises(LimitExceeded, match=r"make_big.*compile time"):
        imported(model)


def test_run_time_tensors_are_limited_too() -> None:
    nodes = [node("Expand", ["x", "shape"], ["y"])]
    known = {"shape": np.asarray([1 << 20, 1 << 20, 1, 1])}
    model = model_of(nodes, {"x": ("f32", ("batch", 1))}, initializers=known, infer_shapes=False)
    with pytest.raises(LimitExceeded, match="make_y"):
        imported(model)
    small = ModelLimits(tensor_elements=10)
    with pytest.raises(LimitExceeded, match="input 'x'"):
        import_model(
            model_of(RELU, {"x": ("f32", ("batch", 9))}), input_shapes={}, batch=2, batch_norm="fold", limits=small
        )


@pytest.mark.parametrize(
    ("kind", "shape", "line"),
    [
        ("f32", ("batch", 3, "height", "width"), "inputs: {x: [2, 3, 224, 224]}"),
        ("f32", (None, None), "inputs: {x: [2, 16000]}"),
        ("i64", ("N", "T"), "inputs: {x: [2, 128]}"),
    ],
)
def test_an_open_axis_is_answered_by_the_line_to_write(kind: str, shape: Shape, line: str) -> None:
    model = model_of([node("Neg", ["x"], ["y"])], {"x": (kind, shape)}, infer_shapes=False)
    with pytest.raises(ModelShapeError) as refusal:
        imported(model)
    assert refusal.value.hint.endswith(line)
    (given,) = yaml.safe_load(f"{{{line}}}")["inputs"].values()
    imported(model, x=tuple(given))


@pytest.mark.parametrize("symbol", [-1, 0, "?", "-1", ""])
def test_what_exporters_write_for_an_open_axis_is_open_and_each_is_its_own(symbol: int | str) -> None:
    model = onnx.load_from_string(model_of([node("Neg", ["x"], ["y"])], {"x": ("f32", (2, 3, 4))}))
    for dim in (model.graph.input[0].type.tensor_type.shape.dim[axis] for axis in (1, 2)):
        if isinstance(symbol, int):
            dim.dim_value = symbol
        else:
            dim.dim_param = symbol
    graph = imported(model.SerializeToString(), x=(2, 5, 7))
    assert graph.types[graph.inputs[0]].shape == (2, 5, 7)
