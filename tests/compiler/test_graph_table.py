"""The compile report's layers: the graph before and after the plan, and which passes fired."""

from __future__ import annotations

from pathlib import Path

from compiler.api import BuildSettings, compile_training
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from examples.models import MODELS
from tests.compiler.test_declined import report_of
from tests.kernel_harness.machine import native_target


def report_for(model: str, plan: str | dict[str, object], cache: Path) -> dict[str, object]:
    spec = TrainingSpec.parse({"batch": 4, "threads": 2})
    settings = BuildSettings(plan=SparsePlan.parse(plan), spec=spec, target=load(native_target()), cache_dir=cache)
    return report_of(compile_training(MODELS[model](), settings).data)


def test_a_frozen_beginning_has_no_backward_nodes(kernel_cache: Path) -> None:
    report = report_for("small_cnn", {"update": [{"layers": [-1]}]}, kernel_cache)
    layers = report["layers"]
    assert isinstance(layers, dict)
    rows = layers["rows"]
    assert layers["rows_left_out"] == 0
    convolutions = [row for row in rows if "conv2d" in row["operators"]]
    assert len(convolutions) >= 2
    assert all(row["forward"] >= 1 and "backward" not in row and "update" not in row for row in convolutions)
    dense = rows[-1]
    assert dense["update"] >= 1
    assert dense["from"]
    everything = report_for("small_cnn", "full", kernel_cache)["layers"]
    assert isinstance(everything, dict)
    assert all(row["backward"] and row["update"] for row in everything["rows"] if "conv2d" in row["operators"])
    for row in rows:
        assert all(source < rows.index(row) for source in row["from"]), "a row reads what stands before it"


def test_every_pass_that_ran_is_counted(kernel_cache: Path) -> None:
    passes = report_for("small_cnn", "full", kernel_cache)["passes"]
    assert isinstance(passes, list)
    named = {(one["on"], one["pass"]): one for one in passes}
    assert len(named) == len(passes) > 10
    assert all(0 <= one["changed"] <= one["ran"] for one in passes)
    assert any(one["changed"] for one in passes)
    assert any(not one["changed"] for one in passes)
