"""Recipes are short, their environments exact; `make recipes` runs them. The search for weights by their elements."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import pockfarm
from examples.recipes.__main__ import OURS, PACKAGES
from pockfarm.errors import UsageError

FOLDER = Path("examples/recipes")


@pytest.mark.parametrize("name", ["keras_recipe", "flax_recipe"])
def test_a_recipe_has_at_most_fifteen_lines(name: str) -> None:
    (function,) = [
        part for part in ast.parse((FOLDER / f"{name}.py").read_text()).body if isinstance(part, ast.FunctionDef)
    ]
    assert function.end_lineno is not None
    assert function.end_lineno - function.lineno <= 15


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_every_package_of_a_recipe_has_an_exact_version(name: str) -> None:
    lines = (FOLDER / f"constraints-{name}.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+-]+", line) for line in lines)
    held = {line.split("==")[0].lower().replace("_", "-") for line in lines}
    assert held >= {*PACKAGES[name], *OURS}


def model_of(**tensors: np.ndarray) -> bytes:
    stored = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    value = helper.make_tensor_value_info("x", 1, [1])
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", [value], [helper.make_tensor_value_info("y", 1, [1])], stored
    )
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def test_weights_are_found_transposed_and_reshaped_and_come_back() -> None:
    kernel, heads, bias, gone = drawn(3, 3, 4, 8), drawn(16, 2, 8), drawn(8), drawn(9, 9)
    turned, flat = kernel.transpose(3, 2, 0, 1), heads.reshape(16, 16)
    model = model_of(const_1=turned, const_2=flat, const_3=bias[None], axes=np.asarray([0, 1]))
    given = {"kernel": kernel, "heads": heads, "bias": bias, "gone": gone}
    matched = pockfarm.match_weights(model, given)
    assert {name: match.tensor for name, match in matched.matches.items()} == {
        "kernel": "const_1",
        "heads": "const_2",
        "bias": "const_3",
    }
    assert matched.absent == ("gone",)
    assert matched.plan["update"] == [{"parameters": ["const_1", "const_2", "const_3"]}]
    back = matched.back({"const_1": turned + 1, "const_2": flat * 2, "const_3": bias[None] - 1})  # type: ignore[arg-type]
    for name, want in {"kernel": kernel + 1, "heads": heads * 2, "bias": bias - 1, "gone": gone}.items():
        np.testing.assert_array_equal(back[name], want)


square = drawn(4, 4)
AMBIGUOUS = {
    "two tensors": (model_of(a=np.zeros(4, np.float32), b=np.zeros(4, np.float32)), {"w": np.zeros(4)}, "'a', 'b'"),
    "two weights": (model_of(a=square), {"v": square, "w": square.T}, "'v' and 'w' hold the same"),
    "two orders": (model_of(a=square + square.T), {"w": square + square.T}, "2 orders of its axes"),
    "none": (model_of(a=square), {"w": square * 2}, "no weight is a tensor"),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_what_could_be_several_is_an_error(name: str) -> None:
    model, weights, message = AMBIGUOUS[name]
    assert onnx.load_from_string(model).graph.initializer
    with pytest.raises(UsageError, match=message):
        pockfarm.match_weights(model, weights)
