"""Parameters whose gradients need each other: no update may overwrite what the other's gradient still reads."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.pipeline import walk
from compiler.program.program import Program
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from tests.compiler.frontend.cases.case import floats
from tests.compiler.frontend.onnx_graphs import model_of, node


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("factors", [2, 3])
def test_a_weight_that_is_a_product_of_parameters_has_an_order(factors: int, optimizer: str) -> None:
    names = [f"p{number}.weight" for number in range(factors)]
    nodes = [node("Mul", names[:2], ["w1"])]
    nodes += [node("Mul", [f"w{number - 1}", names[number]], [f"w{number}"]) for number in range(2, factors)]
    nodes.append(node("MatMul", ["x", f"w{factors - 1}"], ["y"]))
    arrays = {name: np.asarray(floats(5, 3, seed=seed)) for seed, name in enumerate(names)}
    model = model_of(nodes, {"x": ("f32", ("batch", 5))}, initializers=arrays)
    spec = TrainingSpec.parse({"batch": 4, "optimizer": {"kind": optimizer}})
    stages = walk(model, BuildSettings(SparsePlan.of_preset("full"), spec, load("raspberry-pi-4")))
    programs = next(stage.product for stage in stages if stage.name == "schedule")
    assert isinstance(programs, tuple)
    (train,) = (program for program in programs if isinstance(program, Program) and program.name == "train")
    assert sum(call.phase == "update" for call in train.calls) >= factors
