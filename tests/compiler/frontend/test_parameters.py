"""Which initializers become parameters, in which layout, and the traps that exporters set."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from compiler.errors import ModelError, PlanError, SpecError
from compiler.frontend.importer import import_model
from compiler.frontend.source_passes import Wishes
from compiler.graph import Array, Graph
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.spec.documents import SparsePlan
from compiler.step.plan import resolve_plan
from tests.compiler.frontend.onnx_graphs import assert_agrees, feeds_for, imported, model_of, node
from tests.compiler.named import evaluate_named

IMAGE = {"x": ("f32", ("batch", 4, 6, 6))}
ROWS = {"x": ("f32", ("batch", 3, 4))}


def _floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _round_trips(graph: Graph, stored: dict[str, Array]) -> None:
    """Every parameter's inside array maps back to the file's bits."""
    for value, parameter in graph.parameters.items():
        name = parameter.name
        assert graph.arrays[value].shape == parameter.shape == graph.types[value].shape
        if name in stored:
            np.testing.assert_array_equal(parameter.to_file(graph.arrays[value]), stored[name])
            np.testing.assert_array_equal(parameter.to_inside(stored[name]), graph.arrays[value])


def test_layouts_kinds_and_channel_axes_of_layers() -> None:
    stored = {
        "conv.weight": _floats(4, 4, 3, 3),
        "conv.bias": _floats(4),
        "dw.weight": _floats(4, 1, 3, 3),
        "dw.bias": _floats(4),
        "fc.weight": _floats(5, 4),
        "fc.bias": _floats(5),
        "proj.weight": _floats(5, 2),
    }
    nodes = [
        node("Conv", ["x", "conv.weight", "conv.bias"], ["a"]),
        node("Conv", ["a", "dw.weight", "dw.bias"], ["b"], group=4),
        node("GlobalAveragePool", ["b"], ["c"]),
        node("Flatten", ["c"], ["d"]),
        node("Gemm", ["d", "fc.weight", "fc.bias"], ["e"], transB=1),
        node("MatMul", ["e", "proj.weight"], ["y"]),
    ]
    model = model_of(nodes, IMAGE, initializers=stored)
    graph = imported(model)
    assert_agrees(model, graph)
    _round_trips(graph, stored)
    found = {p.name: (p.shape, p.kind, p.channel_axis, p.layer) for p in graph.parameters.values()}
    assert found == {
        "conv.weight": ((3, 3, 4, 4), "weight", 2, "make_a"),
        "conv.bias": ((4,), "bias", None, "make_a"),
        "dw.weight": ((3, 3, 4), "weight", 2, "make_b"),
        "dw.bias": ((4,), "bias", None, "make_b"),
        "fc.weight": ((4, 5), "weight", 0, "make_e"),
        "fc.bias": ((5,), "bias", None, "make_e"),
        "proj.weight": ((5, 2), "weight", 0, "make_y"),
    }
    assert [graph.names[value] for value in graph.inputs] == ["x"]
    assert [graph.names[value] for value in graph.outputs] == ["y"]


def test_matmul_bias_norms_scales_and_position_table() -> None:
    stored = {
        "w": _floats(4, 4),
        "b": _floats(4),
        "s": _floats(4),
        "t": _floats(4),
        "p": _floats(1, 3, 4),
        "g": _floats(4),
    }
    nodes = [
        node("Add", ["x", "p"], ["positioned"]),
        node("LayerNormalization", ["positioned", "s", "t"], ["normed"]),
        node("MatMul", ["normed", "w"], ["product"]),
        node("Add", ["b", "product"], ["biased"]),
        node("Mul", ["biased", "g"], ["y"]),
    ]
    graph = imported(model_of(nodes, ROWS, initializers=stored))
    kinds = {p.name: (p.kind, p.channel_axis, p.layer) for p in graph.parameters.values()}
    assert kinds == {
        "p": ("weight", None, "make_positioned"),
        "s": ("weight", None, "make_normed"),
        "t": ("bias", None, "make_normed"),
        "w": ("weight", 0, "make_product"),
        "b": ("bias", None, "make_product"),
        "g": ("weight", None, "make_y"),
    }


def test_bounds_masks_integers_and_constant_nodes_are_constants() -> None:
    stored: dict[str, Array] = {
        "low": np.asarray([0.0], np.float32),
        "high": np.asarray([6.0], np.float32),
        "mask": np.triu(np.full((4, 4), np.finfo(np.float32).min, np.float32), 1)[:3],
        "infinite": np.full((3, 4), -np.inf, np.float32),
        "rows": np.asarray([2, 0, 1], np.int64),
    }
    nodes = [
        node("Clip", ["x", "low", "high"], ["a"]),
        node("Constant", [], ["factor"], value=numpy_helper.from_array(np.asarray([0.5], np.float32))),
        node("Mul", ["a", "factor"], ["b"]),
        node("Add", ["b", "mask"], ["c"]),
        node("Max", ["c", "infinite"], ["d"]),
        node("Gather", ["d", "rows"], ["y"], axis=1),
    ]
    graph = imported(model_of(nodes, ROWS, initializers=stored))
    assert not graph.parameters


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1)])
@pytest.mark.parametrize("op_type", ["Mul", "Add", "Sub", "Div"])
def test_a_one_element_initializer_is_a_parameter_in_its_own_shape(shape: tuple[int, ...], op_type: str) -> None:
    stored = {"temperature": np.full(shape, 1.5134218, np.float32)}
    model = model_of([node(op_type, ["x", "temperature"], ["y"])], ROWS, initializers=stored)
    graph = imported(model)
    _round_trips(graph, stored)
    assert {name: p.file_shape for name, p in graph.named_parameters().items()} == {"temperature": shape}
    assert [warning.code for warning in graph.warnings] == ["model.unlabelled"]
    assert_agrees(model, graph)


def test_a_convolution_without_bias_gets_none() -> None:
    weights = {"a.weight": _floats(4, 4, 3, 3), "b.weight": _floats(4, 4, 3, 3)}
    nodes = [node("Conv", ["x", "a.weight"], ["h"]), node("Conv", ["h", "b.weight"], ["y"])]
    assert set(imported(model_of(nodes, IMAGE, initializers=weights)).named_parameters()) == set(weights)


def test_no_bias_is_created_where_an_add_follows() -> None:
    stored = {"a.weight": _floats(4, 4, 3, 3), "shift": _floats(1, 4, 1, 1)}
    nodes = [node("Conv", ["x", "a.weight"], ["h"]), node("Add", ["h", "shift"], ["y"])]
    graph = imported(model_of(nodes, IMAGE, initializers=stored))
    assert {name: p.kind for name, p in graph.named_parameters().items()} == {"a.weight": "weight", "shift": "bias"}
    assert graph.named_parameters()["shift"].layer == "make_h"


def test_vectors_merged_through_identity_are_separate_parameters() -> None:
    stored = {"n1.weight": np.ones(4, np.float32), "n1.bias": _floats(4)}
    nodes = [
        node("Identity", ["n1.weight"], ["n2.weight"]),
        node("Identity", ["n1.bias"], ["n2.bias"]),
        node("LayerNormalization", ["x", "n1.weight", "n1.bias"], ["h"]),
        node("LayerNormalization", ["h", "n2.weight", "n2.bias"], ["y"]),
    ]
    model = model_of(nodes, ROWS, initializers=stored, producer="pytorch")
    graph = imported(model)
    assert set(graph.named_parameters()) == {"n1.weight", "n1.bias", "n2.weight", "n2.bias"}
    assert_agrees(model, graph)


def test_a_fresh_vector_that_two_nodes_read_is_one_parameter_unless_the_spec_says_otherwise() -> None:
    stored = {"a.weight": _floats(4, 4), "b.weight": _floats(4, 4), "zeros": np.zeros(4, np.float32)}
    nodes = [
        node("MatMul", ["x", "a.weight"], ["p"]),
        node("Add", ["p", "zeros"], ["h"]),
        node("MatMul", ["h", "b.weight"], ["q"]),
        node("Add", ["q", "zeros"], ["y"]),
    ]
    model = model_of(nodes, ROWS, initializers=stored)
    graph = imported(model)
    assert set(graph.named_parameters()) == {"a.weight", "b.weight", "zeros"}
    assert [warning.code for warning in graph.warnings] == ["model.shared_fill"]
    apart = import_model(model, input_shapes={}, batch=2, batch_norm="fold", wishes=Wishes(untied=("zeros",)))
    assert set(apart.named_parameters()) == {"a.weight", "b.weight", "zeros", "zeros@make_y"}


def test_what_the_spec_tells_apart_gets_names_that_nothing_has() -> None:
    """Nodes need not have names of their own, and an initializer may be called as ours would be."""
    stored = {"w": _floats(4, 4), "w@twice": _floats(4, 4, seed=1)}
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("MatMul", ["a", "w"], ["b"]),
        node("MatMul", ["b", "w"], ["c"]),
        node("MatMul", ["c", "w@twice"], ["y"]),
    ]
    for own in nodes:
        own.name = "twice"
    model = model_of(nodes, ROWS, initializers=stored)
    graph = import_model(model, input_shapes={}, batch=2, batch_norm="fold", wishes=Wishes(untied=("w",)))
    assert set(graph.named_parameters()) == {"w", "w@twice", "w@twice'", "w@twice'2"}
    feeds = feeds_for(graph)
    want = feeds["x"] @ np.linalg.matrix_power(stored["w"].astype(float), 3) @ stored["w@twice"]
    np.testing.assert_allclose(evaluate_named(graph, feeds)["y"], want, rtol=1e-5)


def test_the_spec_ties_equal_initializers_and_refuses_others() -> None:
    weight = _floats(4, 4)
    nodes = [node("MatMul", ["x", "a"], ["h"]), node("MatMul", ["h", "b"], ["y"])]
    model = model_of(nodes, ROWS, initializers={"a": weight, "b": weight})
    assert set(imported(model).named_parameters()) == {"a", "b"}
    tied = import_model(model, input_shapes={}, batch=2, batch_norm="fold", wishes=Wishes(tied=(("a", "b"),)))
    assert set(tied.named_parameters()) == {"a"}
    other = model_of(nodes, ROWS, initializers={"a": weight, "b": weight + 1})
    with pytest.raises(SpecError, match=r"spec\.tied\[0\]: 'b' differs from 'a'"):
        import_model(other, input_shapes={}, batch=2, batch_norm="fold", wishes=Wishes(tied=(("a", "b"),)))
    with pytest.raises(SpecError, match=r"^spec\.untied\[0\]: .* 'c' "):
        import_model(other, input_shapes={}, batch=2, batch_norm="fold", wishes=Wishes(untied=("c",)))


def test_a_matrix_shared_through_identity_stays_one_parameter() -> None:
    nodes = [
        node("Identity", ["w"], ["w2"]),
        node("MatMul", ["x", "w"], ["h"]),
        node("MatMul", ["h", "w2"], ["y"]),
    ]
    graph = imported(model_of(nodes, ROWS, initializers={"w": _floats(4, 4)}))
    assert set(graph.named_parameters()) == {"w"}
    assert graph.named_parameters()["w"].channel_axis is None


@pytest.mark.parametrize("output_layer", ["transposed node", "gemm", "folded copy"])
def test_a_tied_embedding_is_one_parameter(output_layer: str) -> None:
    table = _floats(7, 4)
    nodes = [node("Gather", ["embed", "tokens"], ["h"])]
    stored: dict[str, Array] = {"embed": table}
    if output_layer == "transposed node":
        nodes += [node("Transpose", ["embed"], ["head"], perm=[1, 0]), node("MatMul", ["h", "head"], ["y"])]
    elif output_layer == "gemm":
        nodes += [node("Gemm", ["h", "embed"], ["y"], transB=1)]
    else:
        stored["head"] = np.ascontiguousarray(table.T)
        nodes += [node("MatMul", ["h", "head"], ["y"])]
    model = model_of(nodes, {"tokens": ("i64", ("batch",))}, initializers=stored, producer="pytorch")
    graph = imported(model, batch=3)
    assert set(graph.named_parameters()) == {"embed"}
    feeds = feeds_for(graph, integers=7)
    assert_agrees(model, graph, feeds)
    changed = {**feeds, "embed": graph.arrays[graph.value_called("embed")] * 2}
    np.testing.assert_allclose(
        evaluate_named(graph, changed)["y"], 4 * evaluate_named(graph, feeds)["y"], rtol=1e-12
    )  # both uses follow the one parameter


def test_a_name_that_we_give_a_weight_is_no_other_values() -> None:
    """The module is `fc`, and so is the data that its author called `fc.weight`."""
    stored = {"onnx::MatMul_5": _floats(4, 4)}
    nodes = [onnx.helper.make_node("MatMul", ["fc.weight", "onnx::MatMul_5"], ["y"], name="/fc/MatMul")]
    model = model_of(nodes, {"fc.weight": ("f32", ("batch", 4))}, initializers=stored, producer="pytorch")
    graph = imported(model, batch=4)
    assert set(graph.named_parameters()) == {"fc.weight'"}
    assert_agrees(model, graph)


def test_one_weight_read_in_two_layouts_stays_one_parameter() -> None:
    nodes = [
        node("Gemm", ["x", "w"], ["h"], transB=1),
        node("Gemm", ["h", "w"], ["y"]),
    ]
    model = model_of(nodes, {"x": ("f32", ("batch", 4))}, initializers={"w": _floats(5, 4)})
    graph = imported(model)
    assert set(graph.named_parameters()) == {"w"}
    assert_agrees(model, graph)


def test_what_is_computed_from_parameters_is_computed_in_the_step() -> None:
    stored = {
        "table": _floats(9, 4),
        "start": np.asarray([2], np.int64),
        "end": np.asarray([5], np.int64),
        "frequency": _floats(4, seed=3),
    }
    nodes = [
        node("Slice", ["table", "start", "end"], ["rows"]),
        node("Add", ["x", "rows"], ["h"]),
        node("Constant", [], ["positions"], value=numpy_helper.from_array(np.arange(3, dtype=np.float32)[:, None])),
        node("Mul", ["positions", "frequency"], ["angle"]),
        node("Cos", ["angle"], ["cosine"]),
        node("Mul", ["h", "cosine"], ["y"]),
    ]
    model = model_of(nodes, ROWS, initializers=stored)
    graph = imported(model)
    assert set(graph.named_parameters()) == {"table", "frequency"}
    assert_agrees(model, graph)
    for value, parameter in graph.parameters.items():
        changed = {**feeds_for(graph), parameter.name: graph.arrays[value] + 1}
        assert not np.allclose(evaluate_named(graph, changed)["y"], evaluate_named(graph, feeds_for(graph))["y"])


def test_a_bound_that_others_read_too_cannot_learn_and_the_remedy_fits() -> None:
    nodes = [node("Clip", ["x", "low"], ["a"]), node("Mul", ["a", "low"], ["y"])]
    graph = imported(model_of(nodes, ROWS, initializers={"low": np.asarray(0.5103926, np.float32)}))
    assert "model.fixed_parameters" in [warning.code for warning in graph.warnings]
    with pytest.raises(PlanError, match=r"^plan\.preset: low .*'make_a' \(Clip\)"):
        resolve_plan(graph, SparsePlan.of_preset("full"))


def test_a_long_chain_on_a_parameter_does_not_recurse() -> None:
    nodes = [node("Mul", ["w" if i == 0 else f"w{i}", "w"], [f"w{i + 1}"]) for i in range(3000)]
    model = model_of([*nodes, node("Add", ["x", "w3000"], ["y"])], ROWS, initializers={"w": np.ones(4, np.float32)})
    graph = import_model(model, input_shapes={}, batch=2, batch_norm="fold")
    assert sum(made.op == "mul" for made in graph) == 3000


def test_a_damaged_weight_is_refused_by_name() -> None:
    weight = _floats(4, 5)
    weight[1, 2] = np.nan
    model = model_of([node("MatMul", ["x", "fc.weight"], ["y"])], ROWS, initializers={"fc.weight": weight})
    with pytest.raises(ModelError, match=r"fc\.weight.*NaN"):
        imported(model)


def test_tensorflow_style_layout_and_relu6() -> None:
    """NHWC input, Transpose pairs around the convolution, bias by Add, ReLU6 as Min and Max."""
    stored = {
        "kernel": _floats(5, 4, 3, 3),
        "bias": _floats(5),
        "six": np.asarray(6, np.float32),
        "zero": np.asarray(0, np.float32),
    }
    nodes = [
        node("Transpose", ["x"], ["nchw"], perm=[0, 3, 1, 2]),
        node("Conv", ["nchw", "kernel", "bias"], ["conv"], auto_pad="SAME_UPPER", strides=[2, 2]),
        node("Min", ["conv", "six"], ["low"]),
        node("Max", ["low", "zero"], ["relu6"]),
        node("Transpose", ["relu6"], ["y"], perm=[0, 2, 3, 1]),
    ]
    model = model_of(nodes, {"x": ("f32", ("batch", 6, 6, 4))}, initializers=stored)
    graph = imported(model)
    assert_agrees(model, graph)
    assert set(graph.named_parameters()) == {"kernel", "bias"}
    assert "transpose" not in [made.op for made in run_passes(graph, FORWARD_PASSES)]
