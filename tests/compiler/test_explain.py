"""`pockfarm plan explain`: rows that add up to what the plan and the programs say; no kernel is built."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler import pipeline
from compiler.bundle.plan_table import MAX_NAME
from compiler.explain import explain_plan
from compiler.program.program import MemoryPlan, Program
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.stages import STAGES
from compiler.targets import load
from examples.models import MODELS
from pockfarm.cli import main
from tests.compiler.frontend.onnx_graphs import model_of, node


def settings_of(plan: str, spec: str) -> BuildSettings:
    return BuildSettings(SparsePlan.parse(plan), TrainingSpec.parse(spec), load("x86-64-v3"))


def row(told: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in told["rows"] if one["name"] == name]
    return dict(found)


def test_rows_add_up_to_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "build_kernels", lambda *_, **__: pytest.fail("a kernel was built"))
    settings = settings_of("pockengine-mobilenetv2", "{batch: 1, optimizer: {momentum: 0.9}}")
    model = MODELS["mobilenet_v2"](resolution=32)
    told = explain_plan(model, settings)
    stages = itertools.islice(pipeline.walk(model, settings), STAGES.index("kernels"))
    products = {stage.name: stage.product for stage in stages}
    train = next(one for one in products["place"] if isinstance(one, Program) and one.name == "train")  # type: ignore[union-attr]
    memory = products["memory"]
    assert isinstance(memory, MemoryPlan)
    totals = told["totals"]
    assert totals["forward_flops"] == sum(call.flops for call in train.calls if call.phase == "forward")
    assert totals["backward_flops"] == sum(call.flops for call in train.calls if call.phase != "forward")
    assert 0 < totals["optimizer_bytes"] == totals["weight_bytes"] <= memory.optimizer_bytes
    assert told["memory"]["arena_bytes"] == memory.arena_bytes
    assert totals["kept_bytes"] > 0
    first = row(told, "blocks.10.expand")
    assert (first["number"], first["learns"]) == (30, ["weight", "bias"])
    assert first["elements"] * 4 == first["weight_bytes"] == first["optimizer_bytes"]
    assert row(told, "blocks.9.expand")["learns"] == []
    assert row(told, "blocks.9.expand")["backward_flops"] == 0
    assert told["frozen"][0]["first"] == "stem.weight"
    assert told["frozen"][0]["last"].startswith("blocks.9.project")
    assert len(told["blocks"]["found"]) == 16


def test_flops_are_those_of_all_micro_batches() -> None:
    one, four = (
        explain_plan(MODELS["mlp"](), settings_of("full", f"{{batch: 8, accumulate: {count}}}"))["totals"]
        for count in (1, 4)
    )
    assert four["forward_flops"] == 4 * one["forward_flops"]
    assert 3 * one["backward_flops"] < four["backward_flops"] < 5 * one["backward_flops"]


def test_rows_add_up_to_the_state_that_is_planned() -> None:
    """Sums over micro-batches lie beside the optimizer's state; every tensor here is a multiple of an alignment."""
    plan = "update: [{parameters: ['fc[12].weight']}]"
    for kind, states in (("sgd", 0), ("adamw", 2)):
        told = explain_plan(
            MODELS["mlp"](), settings_of(plan, f"{{batch: 2, accumulate: 4, optimizer: {{kind: {kind}}}}}")
        )
        totals, memory = told["totals"], told["memory"]
        assert totals["accumulator_bytes"] == totals["weight_bytes"] > 0
        assert totals["optimizer_bytes"] == states * totals["weight_bytes"]
        assert totals["optimizer_bytes"] + totals["accumulator_bytes"] == memory["optimizer_bytes"]
        assert {one["name"] for one in told["rows"] if one["accumulator_bytes"]} == {"fc1", "fc2"}


def explained(capsys: pytest.CaptureFixture[str], tmp_path: Path, plan: str, spec: str = "{batch: 2}") -> str:
    (tmp_path / "net.onnx").write_bytes(MODELS["mlp"]())
    assert main(["plan", "explain", str(tmp_path / "net.onnx"), "--plan", plan, "--spec", spec]) == 0
    return capsys.readouterr().out


def test_the_peak_stands_beside_its_lower_bound(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    memory = explain_plan(MODELS["mlp"](), settings_of("full", "{batch: 2, memory_limit_bytes: 1000000}"))["memory"]
    assert memory["peak_bytes"] == sum(memory[f"{name}_bytes"] for name in ("arena", "weights", "optimizer"))
    assert 0 < memory["bound_bytes"] <= memory["arena_bytes"]
    assert memory["limit_bytes"] == 1_000_000
    text = explained(capsys, tmp_path, "full", "{batch: 2, memory_limit_bytes: 1000000}")
    assert re.search(rf"^ *peak +{memory['peak_bytes'] / 1024:.3g} KiB", text, re.MULTILINE)
    assert f"above its lower bound of {memory['bound_bytes'] / 1024:.3g} KiB" in text
    assert "977 KiB are allowed" in text


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        ("full", "    name: full"),
        ("{preset: full}", "    name: full"),
        ("{lora: {targets: all-linear}}", "    name: lora"),
        ("{update: [{parameters: '*'}]}", "    name: frozen"),
        ("{name: mine, preset: full}", "  * name: mine"),
    ],
)
def test_a_name_is_starred_where_the_plan_has_one_of_its_own(
    plan: str, line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert line in explained(capsys, tmp_path, plan).splitlines()


def test_columns_that_are_empty_are_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    header = explained(capsys, tmp_path, "full").splitlines()[0]
    assert "optimizer B" not in header
    assert "sums B" not in header
    text = explained(capsys, tmp_path, "full", "{batch: 2, accumulate: 2, optimizer: {momentum: 0.9}}")
    assert {"optimizer", "sums", "gradient", "kept"} <= set(text.splitlines()[0].split())


def test_what_a_choice_by_magnitude_counts_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = "update: [{parameters: 'fc1.*', channels: {ratio: 0.5, along: output, select: magnitude}}]"
    text = explained(capsys, tmp_path, plan)
    assert "plan.update[0] chooses by the L2 norm" in text
    assert "chooses by" not in explained(capsys, tmp_path, plan.replace("magnitude", "first"))


def test_a_part_of_the_channels_is_told_and_counted() -> None:
    plan = "update: [{parameters: 'fc1.weight', ratio: 0.25}]"
    (learning,) = [one for one in explain_plan(MODELS["mlp"](), settings_of(plan, "batch: 2"))["rows"] if one["learns"]]
    assert learning["learns"] == ["weight 16 of 64 channels"]
    assert (learning["elements"], learning["all_elements"]) == (16 * 128, 64 * 128 + 128)


def test_every_field_of_both_documents_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(MODELS["mlp"]())
    arguments = ["plan", "explain", str(tmp_path / "net.onnx"), "--spec", "{batch: 2, optimizer: {kind: adamw}}"]
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["field"]: one["value"] for one in told["spec"]}["optimizer.kind"] == "adamw"
    assert main(arguments) == 0
    text = capsys.readouterr().out
    for document in ("plan", "spec"):
        for one in told[document]:
            assert f"{' ' if one['default'] else '*'} {one['field']}: " in text
    for schema, document in ((SparsePlan, "plan"), (TrainingSpec, "spec")):
        known = {one["field"].split(".")[0].split("[")[0] for one in told[document]}
        assert known == {one.called for one in members(schema)}


def members(record: type[Any]) -> tuple[Any, ...]:
    from compiler.spec.records import members_of

    return members_of(record)


def test_a_hostile_name_is_printable_and_short() -> None:
    name = "w\x1b[2J" + "x" * 900
    weight = {name: np.ones((3, 4), np.float32)}
    model = model_of([node("MatMul", ["x", name], ["y"])], {"x": ("f32", (2, 3))}, initializers=weight)
    told = json.dumps(explain_plan(model, settings_of("full", "{batch: 2, loss: {kind: mse}}")))
    assert "\\u001b" not in told
    assert "x" * (MAX_NAME + 1) not in told


def test_an_unknown_preset_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(MODELS["mlp"]())
    assert main(["plan", "explain", str(tmp_path / "net.onnx"), "--plan", "bias-onli"]) == 2
    assert "did you mean 'bias-only'?" in capsys.readouterr().err
