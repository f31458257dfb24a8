"""A model may call its values and nodes what it likes: the step that is built does not depend on it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from safetensors.numpy import load, load_file

from compiler.api import compile_training
from compiler.errors import ModelError
from compiler.graph import Array
from compiler.kernels.canonical import canonical
from compiler.pipeline import walk
from compiler.program.program import MemoryPlan, Program
from compiler.program.state import CheckpointNames
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load as load_target
from examples.models import MODELS
from tests.compiler.hostile_names import OURS, hostile_names, renamed, renaming
from tests.sample import crossed, sample
from tests.unpacked import unpacked

FULL = SparsePlan.of_preset("full")
SMALL: Mapping[str, Mapping[str, int]] = {
    "mcunet": {"resolution": 32},
    "mobilenet_v2": {"resolution": 32, "width": 0.35, "classes": 10},  # type: ignore[dict-item]
    "resnet18": {"resolution": 32, "width": 8, "classes": 10},
    "resnet50": {"resolution": 32, "width": 8, "classes": 10},
}
SPECS = {
    "sgd": TrainingSpec.parse({"batch": 4, "optimizer": {"kind": "sgd", "momentum": 0.9}, "threads": 2}),
    "adamw": TrainingSpec.parse({"batch": 4, "optimizer": {"kind": "adamw"}, "threads": 2}),
}


def programs_of(model: bytes, spec: TrainingSpec) -> list[object]:
    """Kernels, operands, aliases and offsets of a step, values by the order in which they come up."""
    settings = BuildSettings(FULL, spec, load_target("x86-64-v3"))
    made: dict[str, Any] = {}
    for stage in walk(model, settings):
        made[stage.name] = stage.product
        if stage.name == "memory":
            break
    return [_shape(program, made["memory"]) for program in made["place"]]


def _shape(program: Program, memory: MemoryPlan) -> list[object]:
    numbers: dict[object, int] = {}
    number = {value: numbers.setdefault(value, len(numbers)) for value in (*program.inputs, *program.state)}
    rows: list[object] = [list(number.values())]
    for index, call in enumerate(program.calls):
        operands = [
            (
                numbers.setdefault(value, len(numbers)),
                str(program.types[value]),
                numbers.setdefault(program.root(value), len(numbers)),
                memory.placements.get((program.name, value)),
            )
            for value in (*call.inputs, *call.outputs)
        ]
        told = dataclasses.replace(call, inputs=(), outputs=(), layer="", parameter="")
        rows.append((canonical(call.spec), operands, told, memory.workspaces.get((program.name, index))))
    return rows


@pytest.mark.parametrize(
    ("name", "optimizer"),
    sample(crossed(sorted(MODELS), SPECS), ["mcunet-sgd", "transformer_encoder-adamw"]),
)
def test_programs_do_not_depend_on_names(name: str, optimizer: str) -> None:
    model = MODELS[name](**SMALL.get(name, {}))
    onnx.checker.check_model(renamed(model, renaming(model)))
    assert programs_of(renamed(model, renaming(model)), SPECS[optimizer]) == programs_of(model, SPECS[optimizer])


def build(model: bytes, folder: Path, cache: Path, optimizer: str = "sgd") -> Path:
    bundle = compile_training(
        model, BuildSettings(FULL, SPECS[optimizer], load_target("x86-64-v3"), cache_dir=cache, jobs=1)
    )
    return unpacked(bundle.data, folder)


def train(folder: Path, name: str) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses of three steps and the checkpoint after them; the events parse as JSON."""
    manifest = json.loads((folder / "manifest.json").read_text())
    rng = np.random.default_rng(0)
    shapes = {one["name"]: one["shape"] for one in manifest["inputs"]}
    assert list(shapes) == [name]
    np.save(folder / "x.npy", rng.normal(size=shapes[name]).astype(np.float32))
    np.save(folder / "y.npy", rng.integers(0, 2, manifest["labels"]["shape"]))
    command = [
        str(folder / "bin/step"),
        "train",
        "--weights",
        str(folder / "weights.safetensors"),
        "--order",
        "sequential",
        "--input",
        f"{name}={folder / 'x.npy'}",
        "--labels",
        str(folder / "y.npy"),
        "--steps",
        "3",
        "--save",
        str(folder / "saved.safetensors"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return [event["loss"] for event in events if event["event"] == "step"], load_file(folder / "saved.safetensors")


@pytest.mark.parametrize("optimizer", sample(SPECS, ["adamw"]))
def test_what_is_trained_does_not_depend_on_names(optimizer: str, tmp_path: Path, kernel_cache: Path) -> None:
    model = MODELS["small_cnn"]()
    names = renaming(model)
    plain = build(model, tmp_path / "plain", kernel_cache, optimizer)
    hostile = build(renamed(model, names), tmp_path / "hostile", kernel_cache, optimizer)
    (input_name,) = [value.name for value in onnx.load_from_string(model).graph.input]
    losses, weights = train(plain, input_name)
    hostile_losses, hostile_weights = train(hostile, names[input_name])
    assert hostile_losses == losses
    parameters = [name for name in load((plain / "weights.safetensors").read_bytes()) if name in names]
    assert parameters
    for name in parameters:
        np.testing.assert_array_equal(hostile_weights[names[name]], weights[name], err_msg=name)
    assert len(hostile_weights) == len(weights)
    exported = onnx.load(hostile / "training.onnx")
    onnx.checker.check_model(exported)
    told = {entry.key: entry.value for entry in exported.metadata_props}
    assert told["labels"] in {value.name for value in exported.graph.input}
    assert told["labels"] not in names.values()
    info = subprocess.run([str(hostile / "bin/step"), "info"], capture_output=True, text=True, check=True)
    assert json.loads(info.stdout)["inputs"][0]["name"] == names[input_name]


def linear(*, weight: str = "w", bias: str = "b", output: str = "y", data: str = "x") -> bytes:
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        [helper.make_node("Gemm", [data, weight, bias], [output], transB=1)],
        "linear",
        [helper.make_tensor_value_info(data, onnx.TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, ["batch", 3])],
        [
            onnx.numpy_helper.from_array(rng.normal(size=(3, 4)).astype(np.float32), weight),
            onnx.numpy_helper.from_array(np.ones(3, np.float32), bias),
        ],
    )
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())


DEFECTS = {
    "an output called loss": {"output": "loss"},
    "a weight and the same after its update": {"weight": "w", "bias": "w'"},
    "a weight called as a hyper-parameter": {"weight": "hyper.learning_rate"},
    "a weight called as the state of another": {"weight": "w", "bias": "optimizer.momentum.w"},
    "a weight called loss": {"weight": "loss"},
    "a weight called labels": {"weight": "labels"},
    "an output called labels": {"output": "labels"},
    "an input called labels": {"data": "labels"},
    "an input called y": {"data": "y", "output": "z"},
    "an input called as a path": {"data": "../x"},
}


@pytest.mark.parametrize("case", DEFECTS)
def test_a_name_that_we_would_give_trains(case: str, tmp_path: Path, kernel_cache: Path) -> None:
    names = {"weight": "w", "bias": "b", "output": "y", "data": "x", **DEFECTS[case]}
    plain, odd = (build(linear(**own), tmp_path / key, kernel_cache) for key, own in (("a", {}), ("b", names)))
    losses, weights = train(plain, "x")
    odd_losses, odd_weights = train(odd, names["data"])
    assert odd_losses == losses
    for own, name in (("w", names["weight"]), ("b", names["bias"])):
        np.testing.assert_array_equal(odd_weights[name], weights[own])
    assert len(odd_weights) == len(weights) == 4


@pytest.mark.parametrize("name", OURS[:12])
def test_the_loss_is_found_by_the_outputs_name(name: str) -> None:
    spec = TrainingSpec.parse({"batch": 4, "loss": {"output": name}})
    model = linear(output=name, weight=f"{name}'", data=f"{name}''")
    assert programs_of(model, spec) == programs_of(linear(), TrainingSpec.parse({"batch": 4}))


def test_inputs_are_told_apart_by_the_longest_name(tmp_path: Path, kernel_cache: Path) -> None:
    """`a=b=FILE` is of the input `a=b`; a file whose name begins with `b=` is given with its folder."""
    infos = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 4]) for name in ("a", "a=b")]
    graph = helper.make_graph(
        [
            helper.make_node("Sub", ["a", "a=b"], ["difference"]),
            helper.make_node("Gemm", ["difference", "w", "b"], ["y"], transB=1),
        ],
        "two",
        infos,
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 3])],
        list(onnx.load_from_string(linear()).graph.initializer),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    folder = build(bytes(model.SerializeToString()), tmp_path / "two", kernel_cache)
    first, second = (np.random.default_rng(seed).normal(size=(4, 4)).astype(np.float32) for seed in range(2))
    np.save(folder / "b=1.npy", first)
    np.save(folder / "2.npy", second)
    command = [
        str(folder / "bin/step"),
        "infer",
        "--weights",
        "weights.safetensors",
        "--out",
        "out.npy",
        "--input",
        "a=./b=1.npy",
        "--input",
        "a=b=2.npy",
    ]
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    weights = load_file(folder / "weights.safetensors")
    want = (first - second) @ weights["w"].T + weights["b"]
    np.testing.assert_allclose(np.load(folder / "out.npy"), want, rtol=1e-4, atol=1e-5)


def test_a_weight_that_no_checkpoint_could_hold_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'__metadata__', which safetensors.*rename it"):
        programs_of(linear(weight="__metadata__"), SPECS["sgd"])


def test_names_in_checkpoints_never_coincide() -> None:
    parameters = [name for _, name in zip(range(300), hostile_names(), strict=False)]
    names = CheckpointNames(parameters)
    shapes: tuple[tuple[int, ...], ...] = ((3,), (3, 1), (3,))
    arrays: list[Array] = [*(np.zeros(shape, np.float32) for shape in shapes), np.zeros(3, np.int64)]
    states = [names.state(kind, own) for kind in ("momentum", "exp_avg", "exp_avg_sq") for own in parameters]
    every = [*parameters, *states, *map(names.constant, arrays)]
    assert len(set(every)) == len(every)
    again = CheckpointNames(list(reversed(parameters)))
    assert [again.state("momentum", own) for own in parameters] == states[: len(parameters)]


def test_usual_names_are_what_they_were() -> None:
    names = CheckpointNames(["fc.weight", "fc.bias"])
    assert names.state("momentum", "fc.weight") == "optimizer.momentum.fc.weight"
    assert names.constant(np.zeros(3, np.float32)).startswith("constant.")


def test_a_name_that_ends_early_in_c_is_refused() -> None:
    with pytest.raises(ModelError, match="NUL"):
        programs_of(linear(weight="w\0x"), SPECS["sgd"])
