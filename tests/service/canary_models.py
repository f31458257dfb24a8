"""Makes the models of timed canaries: `python -m tests.service.canary_models` writes them into
`service/boards/canary/`.

Their weights are multiples of 1/64, which float32 holds exactly, so that the files are the same wherever they are made.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from service.boards import canary

FOLDER = Path(canary.__file__).parent
OPSET, IR_VERSION = 17, 8
CLASSES = 10


class Net:
    """Nodes and weights, one after the other."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._names = (f"v{number}" for number in itertools.count())

    def node(self, kind: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        name = out or next(self._names)
        self.nodes.append(helper.make_node(kind, [*inputs], [name], **attributes))
        return name

    def weight(self, name: str, *shape: int, fan_in: int = 0) -> str:
        """About as large as its fan-in asks for; without one, zeros (a bias)."""
        count = int(np.prod(shape))
        pattern = (np.arange(count, dtype=np.int64) * 37 % 101 - 50) / 50.0
        scale = max(1, round(64 / np.sqrt(fan_in))) if fan_in else 0
        return self.parameter(name, (np.round(pattern * scale) / 64).astype(np.float32).reshape(shape))

    def parameter(self, name: str, value: NDArray[np.float32]) -> str:
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def constant(self, value: NDArray[Any]) -> str:
        """A number in the graph, which nobody takes for a parameter."""
        return self.node("Constant", value=numpy_helper.from_array(value))

    def model(self, name: str, shape: list[str | int], logits: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(logits, TensorProto.FLOAT, ["n", CLASSES])],
            self.weights,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="pockfarm")
        made.ir_version = IR_VERSION
        onnx.checker.check_model(made, full_check=True)
        return made


def convolutions() -> onnx.ModelProto:
    """A stem, a depth-wise and a point-wise convolution, a strided one: what a small vision network is made of."""
    net = Net()

    def conv(x: str, name: str, inside: int, outside: int, kernel: int, stride: int, group: int = 1) -> str:
        fan_in = inside // group * kernel * kernel
        w = net.weight(f"{name}.weight", outside, inside // group, kernel, kernel, fan_in=fan_in)
        b, pad = net.weight(f"{name}.bias", outside), kernel // 2
        y = net.node(
            "Conv",
            x,
            w,
            b,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            group=group,
            pads=[pad, pad, pad, pad],
        )
        return net.node("Relu", y)

    x = conv("x", "stem", 3, 16, 3, 2)
    x = conv(x, "depthwise", 16, 16, 3, 1, group=16)
    x = conv(x, "pointwise", 16, 64, 1, 1)
    x = conv(x, "strided", 64, 32, 3, 2)
    x = net.node("Flatten", net.node("GlobalAveragePool", x), axis=1)
    head = net.weight("head.weight", CLASSES, 32, fan_in=32), net.weight("head.bias", CLASSES)
    return net.model("convolutions", ["n", 3, 32, 32], net.node("Gemm", x, *head, transB=1, out="logits"))


def attention() -> onnx.ModelProto:
    """One encoder block of a transformer: 32 tokens of 32 features, two heads."""
    net, tokens, width, heads, inner = Net(), 32, 32, 2, 128

    def linear(x: str, name: str, inside: int, outside: int) -> str:
        w = net.weight(f"{name}.weight", inside, outside, fan_in=inside)
        return net.node("Add", net.node("MatMul", x, w), net.weight(f"{name}.bias", outside))

    def norm(x: str, name: str) -> str:
        ones = net.parameter(f"{name}.weight", np.ones(width, np.float32))
        return net.node("LayerNormalization", x, ones, net.weight(f"{name}.bias", width), axis=-1)

    apart = net.constant(np.array([0, tokens, heads, width // heads], np.int64))
    together = net.constant(np.array([0, tokens, width], np.int64))
    x = norm("x", "norm1")
    q, k, v = (net.node("Reshape", linear(x, name, width, width), apart) for name in ("query", "key", "value"))
    q, v = (net.node("Transpose", one, perm=[0, 2, 1, 3]) for one in (q, v))
    scores = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 2, 3, 1]))
    scale = net.constant(np.array((width // heads) ** -0.5, np.float32))
    mixed = net.node("MatMul", net.node("Softmax", net.node("Mul", scores, scale), axis=-1), v)
    mixed = net.node("Reshape", net.node("Transpose", mixed, perm=[0, 2, 1, 3]), together)
    x = net.node("Add", "x", linear(mixed, "out", width, width))
    y = linear(norm(x, "norm2"), "up", width, inner)
    root, half, one = (net.constant(np.array(value, np.float32)) for value in (2**-0.5, 0.5, 1.0))
    gate = net.node("Add", net.node("Erf", net.node("Mul", y, root)), one)
    y = net.node("Mul", net.node("Mul", y, gate), half)
    x = net.node("Add", x, linear(y, "down", inner, width))
    x = net.node("ReduceMean", x, axes=[1], keepdims=0)
    head = net.weight("head.weight", CLASSES, width, fan_in=width), net.weight("head.bias", CLASSES)
    return net.model("attention", ["n", tokens, width], net.node("Gemm", x, *head, transB=1, out="logits"))


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {"convolutions": convolutions, "attention": attention}

if __name__ == "__main__":
    for name, make in MODELS.items():
        (FOLDER / f"{name}.onnx").write_bytes(make().SerializeToString(deterministic=True))
