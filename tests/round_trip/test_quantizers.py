"""Files of ONNX Runtime's own quantizers, static and dynamic: first losses and the file that comes back, beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

import pockfarm
from compiler.graph import Array
from pockfarm.errors import PockfarmError
from tests.models import export
from tests.sample import sample

BATCH = 4
ROUND = {"loss": {"kind": "mse"}, "optimizer": {"learning_rate": 0.01}, "batch": BATCH}


class Images(torch.nn.Module):
    """Convolutions, a sum, an activation with its own integer kernel, a mean and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.last = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.second(torch.relu(self.first(x))))
        return self.last((h + torch.sigmoid(h)).mean((2, 3)))


class Tokens(torch.nn.Module):
    """Products of matrices whose biases are sums of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.last = torch.nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x))).mean(1)


class Sequences(torch.nn.Module):
    """A recurrent layer, which only the dynamic quantizer changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LSTM(6, 16, batch_first=True)
        self.last = torch.nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layer(x)[0][:, -1])


NETS: Mapping[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "images": (Images, (3, 8, 8)),
    "sequences": (Sequences, (5, 6)),
    "tokens": (Tokens, (6, 8)),
}
WAYS: Mapping[str, tuple[QuantFormat | None, bool]] = {
    "dynamic": (None, False),
    "dynamic, by channel": (None, True),
    "integer operators": (QuantFormat.QOperator, False),
    "integer operators, by channel": (QuantFormat.QOperator, True),
    "pairs": (QuantFormat.QDQ, False),
    "pairs, by channel": (QuantFormat.QDQ, True),
}
CASES = [pytest.param(net, way, id=f"{net}-{way}") for net in ("images", "tokens") for way in WAYS]
QUICK = ["images-integer operators, by channel", "tokens-pairs, by channel", "tokens-dynamic"]


class Calibration(CalibrationDataReader):
    """What the static quantizer measures ranges on."""

    def __init__(self, x: Array) -> None:
        self._batches: Iterator[dict[str, Array]] = iter([{"x": x}, {"x": x * np.float32(0.9)}])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._batches, None)


def quantized(net: str, way: str, folder: Path) -> tuple[bytes, Array]:
    torch.manual_seed(0)
    build, shape = NETS[net]
    x = torch.randn(BATCH, *shape)
    real, whole = folder / "real.onnx", folder / "whole.onnx"
    real.write_bytes(export(build(), (x,), input_names=("x",), output_names=("y",), exporter="torchscript", opset=17))
    quant_format, by_channel = WAYS[way]
    if quant_format is None:
        quantize_dynamic(real, whole, weight_type=QuantType.QInt8, per_channel=by_channel)
    else:
        quantize_static(real, whole, Calibration(x.numpy()), quant_format=quant_format, per_channel=by_channel)
    return whole.read_bytes(), x.numpy()


def run_onnx(model: bytes, x: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["y"], {"x": x})[0])


def trained(model: bytes, x: Array, **spec: Any) -> tuple[pockfarm.FineTuned, Array, Array]:
    """What fine-tuning gives, what the file computed before, and the labels."""
    answer = run_onnx(model, x)
    labels = np.asarray(answer + 0.5, np.float32)
    tuned = pockfarm.fine_tune(model, None, {"x": x, "y": labels}, spec={**ROUND, **spec}, steps=10)
    return tuned, answer, labels


@pytest.mark.parametrize(("net", "way"), sample(CASES, QUICK))
def test_weights_learn_through_the_rounding(net: str, way: str, tmp_path: Path) -> None:
    model, x = quantized(net, way, tmp_path)
    tuned, answer, labels = trained(model, x, quantized="dequantize")
    assert tuned.losses[0] == pytest.approx(float(np.square(answer - labels).mean()), rel=1e-4)
    after = float(np.square(run_onnx(tuned.onnx, x) - labels).mean())
    assert max(after, tuned.losses[-1]) < tuned.losses[0]
    weights = sum(len(build.state_dict()) for build in [NETS[net][0]()])
    assert len(tuned.changed) == weights
    onnx.checker.check_model(tuned.onnx)


def test_frozen_weights_stay_in_the_file_as_they_are(tmp_path: Path) -> None:
    model, x = quantized("images", "dynamic", tmp_path)
    tuned, answer, labels = trained(model, x)
    assert tuned.losses[0] == pytest.approx(float(np.square(answer - labels).mean()), rel=1e-4)
    assert tuned.losses[-1] < tuned.losses[0]
    before, after = (onnx.load_from_string(file).graph for file in (model, tuned.onnx))
    assert list(before.node) == list(after.node)
    assert len(tuned.changed) == len(["first.bias", "second.bias", "last.bias"])


def test_a_file_in_integers_alone_says_what_lets_it_learn(tmp_path: Path) -> None:
    model, x = quantized("images", "integer operators", tmp_path)
    with pytest.raises(PockfarmError, match="quantized: dequantize"):
        trained(model, x)


def test_a_quantized_lstm_learns_and_its_own_rounding_is_named(tmp_path: Path) -> None:
    model, x = quantized("sequences", "dynamic", tmp_path)
    tuned, answer, labels = trained(model, x, quantized="dequantize")
    assert tuned.losses[0] == pytest.approx(float(np.square(answer - labels).mean()), rel=0.05)
    assert tuned.losses[-1] < tuned.losses[0]
    assert "model.rounding" in {warning.code for warning in tuned.warnings}
    assert "DynamicQuantizeLSTM" not in {node.op_type for node in onnx.load_from_string(tuned.onnx).graph.node}


def test_a_bias_that_is_added_in_integers_takes_part() -> None:
    """As the dynamic quantizer of ONNX Runtime 1.5 wrote it: int32 biases join a product before it is made real."""
    random = np.random.default_rng(0)
    weight = random.integers(-100, 100, (3, 2, 3, 3)).astype(np.int8)
    stored = {
        "w": weight,
        "wz": np.asarray(0, np.int8),
        "ws": np.asarray(0.01, np.float32),
        "b": random.integers(-2000, 2000, (1, 3, 1, 1)).astype(np.int32),
    }
    nodes = [
        onnx.helper.make_node("DynamicQuantizeLinear", ["x"], ["xq", "xs", "xz"]),
        onnx.helper.make_node("ConvInteger", ["xq", "w", "xz", "wz"], ["c"]),
        onnx.helper.make_node("Add", ["c", "b"], ["sum"]),
        onnx.helper.make_node("Cast", ["sum"], ["real"], to=1),
        onnx.helper.make_node("Mul", ["xs", "ws"], ["scale"]),
        onnx.helper.make_node("Mul", ["real", "scale"], ["y"]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "net",
        [onnx.helper.make_tensor_value_info("x", 1, ["N", 2, 5, 5])],
        [onnx.helper.make_tensor_value_info("y", 1, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    opsets = [onnx.helper.make_opsetid("", 13)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    x = random.standard_normal((BATCH, 2, 5, 5)).astype(np.float32)
    tuned, answer, labels = trained(model, x, quantized="dequantize", optimizer={"kind": "adam", "learning_rate": 0.01})
    assert tuned.losses[0] == pytest.approx(float(np.square(answer - labels).mean()), rel=1e-4)
    assert tuned.losses[-1] < tuned.losses[0]
    assert float(np.square(run_onnx(tuned.onnx, x) - labels).mean()) < tuned.losses[0]


class Rounded(torch.nn.Module):
    """What PyTorch trains for integers: weights by channel and activations rounded, gradients straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.last = torch.nn.Linear(16, 3)
        self.register_buffer("scales", torch.rand(16) / 50 + 0.005)
        self.register_buffer("zeros", torch.zeros(16, dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.fake_quantize_per_tensor_affine(x, 0.02, 3, -128, 127)
        weight = torch.fake_quantize_per_channel_affine(self.first.weight, self.scales, self.zeros, 0, -128, 127)
        h = torch.relu(torch.nn.functional.linear(x, weight, self.first.bias))
        return self.last(torch.fake_quantize_per_tensor_affine(h, 0.01, 0, 0, 255))


def test_gradients_are_those_of_fake_quantization() -> None:
    torch.manual_seed(0)
    net = Rounded()
    x, labels = torch.randn(BATCH, 8) * 2, torch.randn(BATCH, 3)
    tuned = pockfarm.fine_tune(net, (x,), {"x": x.numpy(), "y": labels.numpy()}, spec=ROUND, steps=10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert tuned.losses == pytest.approx(losses, rel=1e-4)
    for name, tensor in net.state_dict().items():
        assert tuned[name].numpy() == pytest.approx(tensor.numpy(), rel=1e-4, abs=1e-5), name
