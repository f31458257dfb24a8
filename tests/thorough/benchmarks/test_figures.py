"""Rooflines, portable graphs and plots."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.frameworks.portable import Operator, feeds_of, load_graph
from benchmarks.inner_loops import Turn, new_enough, pressure_in
from benchmarks.machine import Limits
from benchmarks.plot import Line, line_chart
from benchmarks.prepare import PLAIN_PASSES, write_portable
from benchmarks.roofline import KernelPoint, Roofline, by_family, place
from benchmarks.sides import FRAMEWORKS
from compiler.frontend.importer import import_model
from compiler.ops import OPERATORS
from compiler.passes import run_passes
from tests.compiler.named import evaluate_named
from tests.models import export, transformers_model

LIMITS = Limits({2: 200.0}, {1 << 20: 150.0, 1 << 28: 20.0})


@pytest.mark.parametrize(
    ("kernel", "bound", "fraction"),
    [
        (KernelPoint("gemm", "forward", "matmul", 2000.0, 200_000_000, 1 << 10), "compute", 0.5),
        (KernelPoint("add", "forward", "map", 100.0, 1000, 1_000_000), "memory", 0.5),
        (KernelPoint("cached", "forward", "map", 25.0, 1000, 1_000_000), "memory", 2.0),
    ],
)
def test_the_bound_is_the_longer_of_arithmetic_and_traffic(kernel: KernelPoint, bound: str, fraction: float) -> None:
    found = place(kernel, LIMITS, 2)
    assert found.bound == bound
    assert found.fraction == pytest.approx(fraction)
    assert found.reason == ""


def test_kernels_below_the_goal_have_a_reason() -> None:
    slow = place(KernelPoint("erf", "forward", "map", 500.0, 2_000_000, 1_000_000), LIMITS, 2)
    tiny = place(KernelPoint("bias", "update", "map", 1.0, 10, 100), LIMITS, 2)
    assert slow.reason.startswith("element-wise")
    assert tiny.reason.startswith("launch")
    # One thread reaches 62% of its half of the peak; two are no faster.
    stuck = place(KernelPoint("gemm", "forward", "matmul", 1600.0, 100_000_000, 1 << 10, 1600.0), LIMITS, 2)
    assert stuck.reason.startswith("threads: 1.0x of one")
    narrow = place(KernelPoint("gemm", "backward", "matmul", 450.0, 13_000_000, 2_400_000, 900.0), LIMITS, 2)
    assert narrow.reason.startswith("shape")
    moves = place(KernelPoint("transpose", "forward", "map", 600.0, 0, 4_800_000, 1000.0), LIMITS, 2)
    assert moves.reason.startswith("access")
    (total,) = by_family([slow, place(KernelPoint("erf", "forward", "map", 50.0, 1000, 1_000_000), LIMITS, 2)])
    assert total.calls == 2
    assert total.fraction == pytest.approx(100 / 550)


def test_a_step_stands_on_the_roofline_by_the_sum_of_its_bounds() -> None:
    points = [KernelPoint("gemm", "forward", "matmul", 2000.0, 200_000_000, 1 << 10)] * 2
    found = Roofline("m", "full", 2, 5.0, LIMITS, tuple(place(point, LIMITS, 2) for point in points))
    assert found.share == pytest.approx(2 * 1.0 / 5.0)


def test_the_portable_graph_means_what_the_model_means(tmp_path: Path) -> None:
    model, inputs, names = transformers_model("vit")
    batch = inputs(2)
    imported = import_model(export(model, batch, input_names=names), input_shapes={}, batch=2, batch_norm="fold")
    write_portable(run_passes(imported, PLAIN_PASSES), tmp_path)
    images = {name: tensor.numpy() for name, tensor in zip(names, batch, strict=True)}
    graph, feeds = feeds_of(load_graph(tmp_path), images.__getitem__)
    assert not any(node.op == "is_nan" for node in graph.nodes)

    def numpy_operator(op: str) -> Operator:
        def apply(x: Any, attrs: Any) -> Any:
            plain = {key: tuple(value) if isinstance(value, list) else value for key, value in attrs.items()}
            return OPERATORS[op].evaluate(tuple(np.asarray(one) for one in x), plain)[0]

        return apply

    operators = {node.op: numpy_operator(node.op) for node in graph.nodes}
    logits = graph.run(operators, {**graph.parameters, **graph.constants, **feeds})
    np.testing.assert_allclose(logits, evaluate_named(imported, images)["logits"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(logits, model(*batch).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", ["jax_side.py", "tensorflow_side.py"])
def test_frameworks_know_every_operator_of_a_text_model(side: str, tmp_path: Path) -> None:
    model, inputs, names = transformers_model("distilbert")
    imported = import_model(export(model, inputs(2), input_names=names), input_shapes={}, batch=2, batch_norm="fold")
    write_portable(run_passes(imported, PLAIN_PASSES), tmp_path)
    tree = ast.parse((FRAMEWORKS / side).read_text())
    tables = [one.value for one in tree.body if isinstance(one, ast.AnnAssign) and isinstance(one.value, ast.Dict)]
    known = {key.value for table in tables for key in table.keys if isinstance(key, ast.Constant)}
    assert {node["op"] for node in json.loads((tmp_path / "graph.json").read_text())["nodes"]} <= known


def test_a_chart_is_well_formed_and_has_every_point() -> None:
    text = line_chart([Line("a<b", [(1, 3), (8, 5)]), Line("c", [(1, 2)])], title="t & u", x="x", y="y", log2_x=True)
    root = ElementTree.fromstring(text)
    assert len(root.findall(".//{http://www.w3.org/2000/svg}circle")) == 3


def test_the_limit_of_a_loop_is_its_busiest_unit() -> None:
    report = """\
Total uOps:        1200

Dispatch Width:    3

Resources:
[0]   - A57UnitB
[1.0] - A57UnitI
[1.1] - A57UnitI
[2]   - A57UnitL

Resource pressure per iteration:
[0]    [1.0]  [1.1]  [2]
1.00   0.50   0.75   4.00
"""
    pressure = pressure_in(report)
    assert pressure == {"B": 1.0, "I": 0.75, "L": 4.0, "dispatch": 2.0}
    assert Turn(4.1, pressure).limit == "L 98%"
    assert Turn(8.0, pressure).limit == "latency (L 50%)"


def test_an_older_model_of_a_core_gives_no_figures() -> None:
    assert new_enough("Debian LLVM version 19.1.7\n  Optimized build.\n")
    assert new_enough("LLVM (http://llvm.org/):\n  LLVM version 21.0.0\n")
    assert not new_enough("Debian LLVM version 14.0.6\n  Optimized build.\n")
    assert not new_enough("")
