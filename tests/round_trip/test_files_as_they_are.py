"""Files as others wrote them come home trained and otherwise as they were: weights wherever a file may hold them.

The first loss is that of ONNX Runtime's output; the trained file gives the loss of what the binary learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import pockfarm
from compiler.graph import Array
from tests.compiler.frontend.onnx_graphs import run_onnx

SAMPLES, STEPS = 8, 5
WEIGHT = np.random.default_rng(3).standard_normal((4, 3)).astype(np.float32)
OTHER = np.random.default_rng(4).standard_normal((4, 3)).astype(np.float32)


def constant(output: str, array: Array) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [output], value=numpy_helper.from_array(array))


def product(weight: str, output: str = "y") -> onnx.NodeProto:
    return helper.make_node("MatMul", ["x", weight], [output])


def branch(nodes: Sequence[onnx.NodeProto], stored: Mapping[str, Array]) -> onnx.GraphProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    return helper.make_graph(list(nodes), "branch", [], [helper.make_tensor_value_info("z", 1, None)], tensors)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    stored: Mapping[str, Array],
    *,
    kind: int = TensorProto.FLOAT,
    opset: int = 18,
    functions: Sequence[onnx.FunctionProto] = (),
) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "net",
        [helper.make_tensor_value_info("x", kind, ["N", 4])],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    imports = [helper.make_opsetid("", opset), *([helper.make_opsetid("local", 1)] if functions else [])]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8, functions=functions)
    return bytes(model.SerializeToString())


def in_branches(*, constants: bool) -> bytes:
    """Both branches call what they hold by one name."""
    branches = {}
    for name, array in (("then_branch", WEIGHT), ("else_branch", OTHER)):
        nodes = [*([constant("w", array)] if constants else []), product("w", "z")]
        branches[name] = branch(nodes, {} if constants else {"w": array})
    return model_of([helper.make_node("If", ["always"], ["y"], **branches)], {"always": np.asarray(True)})


def in_a_function() -> bytes:
    inside = helper.make_function(
        "local", "Layer", ["x"], ["y"], [constant("w", WEIGHT), product("w")], [helper.make_opsetid("", 18)]
    )
    return model_of([helper.make_node("Layer", ["x"], ["y"], domain="local")], {}, functions=[inside])


FILES: Mapping[str, Callable[[], bytes]] = {
    "a constant": lambda: model_of([constant("w", WEIGHT), product("w")], {}),
    "a constant beside initializers": lambda: model_of(
        [constant("w", WEIGHT), product("w", "h"), helper.make_node("Add", ["h", "b"], ["y"])], {"b": OTHER[0]}
    ),
    "constants of branches": lambda: in_branches(constants=True),
    "initializers of branches": lambda: in_branches(constants=False),
    "a constant of a function": in_a_function,
    "float16": lambda: model_of([product("w")], {"w": WEIGHT.astype(np.float16)}, kind=TensorProto.FLOAT16),
    "float64": lambda: model_of([product("w")], {"w": WEIGHT.astype(np.float64)}, kind=TensorProto.DOUBLE),
    "float64 in between": lambda: model_of(
        [
            product("w", "h"),
            helper.make_node("Cast", ["h"], ["d"], to=TensorProto.DOUBLE),
            helper.make_node("Mul", ["d", "scale"], ["e"]),
            helper.make_node("Cast", ["e"], ["y"], to=TensorProto.FLOAT),
        ],
        {"w": WEIGHT, "scale": np.asarray(1.5)},
    ),
    "opset 9": lambda: model_of(
        [product("w", "h"), helper.make_node("Clip", ["h"], ["y"], min=-9.0, max=9.0)], {"w": WEIGHT}, opset=9
    ),
    "an output of one number": lambda: model_of(
        [product("w", "h"), helper.make_node("ReduceMean", ["h"], ["y"], keepdims=0)], {"w": WEIGHT}
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_comes_home_trained_and_otherwise_as_it_was(name: str) -> None:
    model = FILES[name]()
    kind = onnx.load_from_string(model).graph.input[0].type.tensor_type.elem_type
    batch = 1 if name == "an output of one number" else SAMPLES
    x = np.random.default_rng(5).standard_normal((batch, 4)).astype(helper.tensor_dtype_to_np_dtype(kind))
    (answer,) = run_onnx(model, ["y"], {"x": x})
    y = np.broadcast_to(np.ones_like(answer, np.float32), answer.shape if answer.shape else (1,))
    settings = {"batch": batch, "loss": {"kind": "mse"}, "optimizer": {"learning_rate": 0.1}}
    tuned = pockfarm.fine_tune(model, None, {"x": x, "y": y}, spec=settings, steps=STEPS)
    rounding = 2e-3 if kind == TensorProto.FLOAT16 else 1e-5
    assert tuned.losses[0] == pytest.approx(float(np.square(answer.astype(np.float64) - 1).mean()), rel=rounding)
    (trained,) = run_onnx(tuned.onnx, ["y"], {"x": x})
    assert float(np.square(trained.astype(np.float64) - 1).mean()) < tuned.losses[-1] < tuned.losses[0]
    assert list(without_elements(tuned.onnx)) == list(without_elements(model))


def test_a_constant_bias_beside_initializers_learns() -> None:
    x = np.random.default_rng(5).standard_normal((SAMPLES, 4)).astype(np.float32)
    y = np.ones((SAMPLES, 3), np.float32)
    spec = {"batch": SAMPLES, "loss": {"kind": "mse"}, "optimizer": {"learning_rate": 0.1}}
    nodes = [constant("b", OTHER[0]), product("w", "h"), helper.make_node("Add", ["h", "b"], ["y"])]
    tuned = pockfarm.fine_tune(model_of(nodes, {"w": WEIGHT}), None, {"x": x, "y": y}, spec=spec, steps=1)
    assert tuned.changed == ("b", "w")


def without_elements(model: bytes) -> Iterator[Any]:
    """A file's parts, of its tensors the names, types and shapes alone."""

    def parts(value: Any) -> Iterator[Any]:
        if isinstance(value, onnx.TensorProto):
            yield value.name, value.data_type, tuple(value.dims)
        elif hasattr(value, "ListFields"):
            for field, entry in value.ListFields():
                yield field.name
                yield from parts(entry)
        elif isinstance(value, str | bytes | int | float):
            yield value
        else:
            for entry in value:
                yield from parts(entry)

    yield from parts(onnx.load_from_string(model))
