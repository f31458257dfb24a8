"""Writes ONNX networks layer by layer with seeded weights; needs only `onnx` and NumPy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Float = NDArray[np.float32]
OPSET = 18
IR_VERSION = 10
PARAMETERS = "parameters"
"""Key of the model's metadata: the names of what its author trains, as a JSON list."""


class Network:
    """An ONNX graph under construction. Layer methods take and return value names; weights are `<layer>.weight`.

    Weights are normal with standard deviation `gain / sqrt(fan_in)`: gain sqrt(2) keeps the scale through a ReLU.
    """

    def __init__(self, name: str, seed: int, *, batch_norm: bool = False) -> None:
        self._name = name
        self._rng = np.random.default_rng(seed)
        self._batch_norm = batch_norm
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, Float] = {}
        self._constants: set[str] = set()
        self._parameters: list[str] = []

    # -------------------------------------------------------------------------------------------------- graph pieces

    def node(self, op_type: str, *inputs: str, name: str, **attributes: object) -> str:
        """Append a node; its output is called `<name>.out`."""
        output = f"{name}.out"
        self._nodes.append(helper.make_node(op_type, inputs, [output], name=name, **attributes))
        return output

    def constant(self, name: str, array: NDArray[np.generic]) -> str:
        """A tensor that is not a weight (shapes, bounds, factors), shared by name: a Constant node, as none learns."""
        if name not in self._constants:
            self._constants.add(name)
            value = numpy_helper.from_array(array, name)
            self._nodes.append(helper.make_node("Constant", [], [name], name=name, value=value))
        return name

    def normal(self, name: str, shape: Sequence[int], deviation: float) -> str:
        """A weight drawn from a normal distribution."""
        return self.filled(name, self._draw(shape, deviation))

    def filled(self, name: str, array: Float) -> str:
        """A weight with given values."""
        self._parameters.append(name)
        return self._statistic(name, array)

    def _statistic(self, name: str, array: Float) -> str:
        """A tensor that training leaves alone."""
        self._initializers[name] = array.astype(np.float32)
        return name

    def _draw(self, shape: Sequence[int], deviation: float) -> Float:
        return (self._rng.standard_normal(tuple(shape)) * deviation).astype(np.float32)

    # -------------------------------------------------------------------------------------------------------- layers

    def conv(
        self,
        x: str,
        name: str,
        channels: tuple[int, int],
        kernel: int,
        *,
        stride: int = 1,
        group: int = 1,
        gain: float = sqrt(2),
    ) -> str:
        """2-D convolution (inputs, outputs) with `same` padding for odd kernels, and its bias or normalisation."""
        inputs, outputs = channels
        fan_in = inputs // group * kernel * kernel
        weight = self.normal(f"{name}.weight", (outputs, inputs // group, kernel, kernel), gain / sqrt(fan_in))
        geometry = {"kernel_shape": [kernel, kernel], "strides": [stride, stride], "pads": [kernel // 2] * 4}
        if self._batch_norm:
            y = self.node("Conv", x, weight, name=name, group=group, **geometry)
            return self._norm(y, f"{name}.norm", outputs)
        bias = self.normal(f"{name}.bias", (outputs,), 0.05)
        return self.node("Conv", x, weight, bias, name=name, group=group, **geometry)

    def _norm(self, x: str, name: str, channels: int) -> str:
        """BatchNormalization with statistics as a trained net has them: means near zero, variances near one."""
        scale = self.filled(f"{name}.weight", self._rng.uniform(0.8, 1.2, channels).astype(np.float32))
        bias = self.normal(f"{name}.bias", (channels,), 0.05)
        mean = self._statistic(f"{name}.running_mean", self._draw((channels,), 0.1))
        variance = self._statistic(f"{name}.running_var", self._rng.uniform(0.8, 1.2, channels).astype(np.float32))
        return self.node("BatchNormalization", x, scale, bias, mean, variance, name=name, epsilon=1e-5)

    def linear(self, x: str, name: str, inputs: int, outputs: int, *, gain: float = 1.0) -> str:
        """x W' + b on [N, inputs], as torch.nn.Linear exports it."""
        weight = self.normal(f"{name}.weight", (outputs, inputs), gain / sqrt(inputs))
        bias = self.normal(f"{name}.bias", (outputs,), 0.05)
        return self.node("Gemm", x, weight, bias, name=name, transB=1)

    def project(self, x: str, name: str, inputs: int, outputs: int, *, gain: float = 1.0) -> str:
        """x W + b on [..., inputs]."""
        weight = self.normal(f"{name}.weight", (inputs, outputs), gain / sqrt(inputs))
        bias = self.normal(f"{name}.bias", (outputs,), 0.05)
        product = self.node("MatMul", x, weight, name=name)
        return self.node("Add", product, bias, name=f"{name}.add")

    def relu(self, x: str, name: str) -> str:
        """max(x, 0)."""
        return self.node("Relu", x, name=name)

    def relu6(self, x: str, name: str) -> str:
        """min(max(x, 0), 6), written as Clip."""
        low = self.constant("relu6.low", np.asarray(0, np.float32))
        high = self.constant("relu6.high", np.asarray(6, np.float32))
        return self.node("Clip", x, low, high, name=name)

    def pooled(self, x: str, name: str) -> str:
        """Global average pooling: [N, C, H, W] -> [N, C]."""
        return self.node("Flatten", self.node("GlobalAveragePool", x, name=name), name=f"{name}.flat", axis=1)

    def layer_norm(self, x: str, name: str, width: int) -> str:
        """LayerNormalization over the last axis."""
        scale = self.filled(f"{name}.weight", self._rng.uniform(0.8, 1.2, width).astype(np.float32))
        bias = self.normal(f"{name}.bias", (width,), 0.05)
        return self.node("LayerNormalization", x, scale, bias, name=name, axis=-1, epsilon=1e-5)

    def gelu(self, x: str, name: str) -> str:
        """0.5 x (1 + erf(x / sqrt 2)) in opset-18 operators, as PyTorch exports it."""
        root = self.constant("gelu.root", np.asarray(sqrt(2), np.float32))
        one = self.constant("gelu.one", np.asarray(1, np.float32))
        half = self.constant("gelu.half", np.asarray(0.5, np.float32))
        bell = self.node("Erf", self.node("Div", x, root, name=f"{name}.scaled"), name=f"{name}.erf")
        gate = self.node("Add", bell, one, name=f"{name}.gate")
        return self.node("Mul", self.node("Mul", x, gate, name=f"{name}.gated"), half, name=name)

    # -------------------------------------------------------------------------------------------------------- finish

    def model(self, logits: str, *, inputs: Mapping[str, tuple[int, Sequence[int | str]]], classes: int) -> bytes:
        """The checked model: `inputs` gives ONNX element type and shape by name; the output is `logits`."""
        self._nodes.append(helper.make_node("Identity", [logits], ["logits"], name="logits"))
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [helper.make_tensor_value_info(name, kind, list(shape)) for name, (kind, shape) in inputs.items()],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])],
            [numpy_helper.from_array(array, name) for name, array in self._initializers.items()],
        )
        model = helper.make_model(
            graph,
            producer_name="pockfarm examples",
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )
        helper.set_model_props(model, {PARAMETERS: json.dumps(self._parameters)})
        onnx.checker.check_model(model)
        return bytes(model.SerializeToString(deterministic=True))


def image_input(channels: int, resolution: int) -> Mapping[str, tuple[int, Sequence[int | str]]]:
    """One float image input, [batch, channels, resolution, resolution]."""
    return {"input": (TensorProto.FLOAT, ("batch", channels, resolution, resolution))}
