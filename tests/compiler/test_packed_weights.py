"""A step whose frozen weights are packed: it learns what PyTorch learns, and its checkpoints hold plain weights."""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

from compiler.api import BuildSettings, compile_training
from compiler.graph import TensorType
from compiler.kernels.spec import MatmulSpec
from compiler.placement.place import packed_state
from compiler.program.program import StateTensor
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from compiler.values import Value
from tests.kernel_harness.machine import native_target
from tests.unpacked import unpacked

BATCH, STEPS, RATE = 64, 3, 0.05
WIDTHS = (4096, 64, 96, 48, 10)
"""Of the layers; the first weight is larger than what the loader reads at a time."""
TRAINED = ("w1", "b1", "b3")


def _weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    tensors = {}
    for layer, (wide, out) in enumerate(pairwise(WIDTHS)):
        tensors[f"w{layer}"] = (rng.standard_normal((out, wide)) / np.sqrt(wide)).astype(np.float32)
        tensors[f"b{layer}"] = (0.1 * rng.standard_normal(out)).astype(np.float32)
    return tensors


def _model(weights: dict[str, np.ndarray]) -> bytes:
    nodes, value = [], "x"
    last = len(WIDTHS) - 2
    for layer in range(last + 1):
        out = "logits" if layer == last else f"h{layer}"
        nodes.append(helper.make_node("Gemm", [value, f"w{layer}", f"b{layer}"], [out], name=f"fc{layer}", transB=1))
        value = out
        if layer < last:
            nodes.append(helper.make_node("Relu", [out], [f"r{layer}"], name=f"relu{layer}"))
            value = f"r{layer}"
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [BATCH, WIDTHS[0]])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [BATCH, WIDTHS[-1]])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return bytes(model.SerializeToString())


def _by_torch(
    weights: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray
) -> tuple[list[float], dict[str, np.ndarray]]:
    tensors = {name: torch.tensor(array, dtype=torch.float64) for name, array in weights.items()}
    for name in TRAINED:
        tensors[name].requires_grad_()
    optimizer = torch.optim.SGD([tensors[name] for name in TRAINED], lr=RATE, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        value = torch.tensor(x, dtype=torch.float64)
        for layer in range(len(WIDTHS) - 1):
            value = torch.nn.functional.linear(value, tensors[f"w{layer}"], tensors[f"b{layer}"])
            value = value.relu() if layer < len(WIDTHS) - 2 else value
        loss = torch.nn.functional.cross_entropy(value, torch.tensor(y))
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses, {name: tensor.detach().numpy() for name, tensor in tensors.items()}


@pytest.mark.parametrize(("limit_bytes", "copies"), [(None, True), (64 << 20, False)])
def test_a_step_with_packed_weights_learns_as_pytorch(tmp_path: Path, limit_bytes: int | None, copies: bool) -> None:
    weights = _weights()
    rng = np.random.default_rng(2)
    x = rng.standard_normal((BATCH, WIDTHS[0]), dtype=np.float32)
    y = rng.integers(0, WIDTHS[-1], BATCH)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    spec = TrainingSpec.parse(
        {
            "batch": BATCH,
            "threads": 2,
            "memory_limit_bytes": limit_bytes,
            "optimizer": {"kind": "sgd", "learning_rate": RATE, "momentum": 0.9},
        }
    )
    plan = SparsePlan.parse({"name": "middle", "update": [{"parameters": list(TRAINED)}]})
    bundle = compile_training(_model(weights), BuildSettings(plan, spec, load(native_target())))
    unpacked(bundle.data, tmp_path)
    notes = " ".join(json.loads((tmp_path / "report.json").read_text())["notes"])
    assert ("stored packed" in notes) is copies
    command = [
        str(tmp_path / "bin/step"),
        "train",
        "--weights",
        str(tmp_path / "weights.safetensors"),
        "--input",
        f"x={tmp_path / 'x.npy'}",
        "--labels",
        str(tmp_path / "y.npy"),
        "--order",
        "sequential",
        "--steps",
        str(STEPS),
        "--save",
        str(tmp_path / "saved.safetensors"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    losses, exact = _by_torch(weights, x, y)
    assert [event["loss"] for event in events if event["event"] == "step"] == pytest.approx(losses, rel=1e-5)
    saved = load_file(tmp_path / "saved.safetensors")
    assert not [name for name in saved if "packed" in name]
    for name, array in weights.items():
        if name in TRAINED:
            np.testing.assert_allclose(saved[name], exact[name], rtol=1e-4, atol=1e-6)
        else:
            assert np.array_equal(saved[name], array), name


@pytest.mark.parametrize("transposed", [False, True])
def test_a_packed_layout_is_the_panels_of_the_matrix(transposed: bool) -> None:
    """A weight kept as [2, 3, in = 20, out = 32] whose file holds [out, in, 3, 2], read as a product's B."""
    file = np.arange(32 * 20 * 6, dtype=np.float32).reshape(32, 20, 3, 2)
    perm = (3, 2, 1, 0)
    inside = file.transpose(perm)
    tensor = StateTensor(Value(0), "w", TensorType("f32", inside.shape), "parameter", file.shape, file.shape, perm)
    n, k = (6, 640) if transposed else (32, 120)
    width = 3 if transposed else 16
    packed = packed_state(tensor, MatmulSpec(1, 8, n, k, b_transposed=transposed, dtype="f32"), transposed, width)
    assert packed is not None
    matrix = inside.reshape(n, k).T if transposed else inside.reshape(k, n)
    panels = np.stack(np.split(matrix, n // width, axis=1))
    found = file.reshape(packed.view_shape).transpose(packed.perm).reshape(panels.shape)
    assert np.array_equal(found, panels)
    assert packed.type.shape == file.reshape(packed.view_shape).transpose(packed.perm).shape


def test_no_layout_where_panels_do_not_divide_the_weight() -> None:
    tensor = StateTensor(Value(0), "w", TensorType("f32", (20, 24)), "parameter", (20, 24), (20, 24), (0, 1))
    assert packed_state(tensor, MatmulSpec(1, 8, 24, 20, dtype="f32"), False, 16) is None
    assert packed_state(tensor, MatmulSpec(1, 8, 30, 16, dtype="f32"), False, 16) is None
