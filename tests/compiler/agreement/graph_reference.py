"""The meaning of an ONNX file that our own author code wrote: its graph run by PyTorch, gradients by its autograd.

Nothing of the compiler is used. What the parameters are is what the author code recorded when it made them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper

from examples.models.network import PARAMETERS
from tests.compiler.agreement.reference import Reference, as_tensor

Tensors = Mapping[str, torch.Tensor]
Handler = Callable[[Sequence[Any], dict[str, Any]], torch.Tensor | tuple[torch.Tensor, ...]]


def _pads(values: Sequence[int]) -> tuple[int, int, int, int]:
    top, left, bottom, right = values
    return left, right, top, bottom


def _conv(x: Sequence[Any], a: dict[str, Any]) -> torch.Tensor:
    padded = F.pad(x[0], _pads(a.get("pads", [0, 0, 0, 0])))
    bias = x[2] if len(x) > 2 else None
    return F.conv2d(padded, x[1], bias, a.get("strides", 1), 0, a.get("dilations", 1), a.get("group", 1))


def _clip(x: Sequence[Any], a: dict[str, Any]) -> torch.Tensor:
    low = x[1].item() if len(x) > 1 and x[1] is not None else -float("inf")
    high = x[2].item() if len(x) > 2 and x[2] is not None else float("inf")
    return F.hardtanh(x[0], low, high)


def _max_pool(x: Sequence[Any], a: dict[str, Any]) -> torch.Tensor:
    padded = F.pad(x[0], _pads(a.get("pads", [0, 0, 0, 0])), value=-float("inf"))
    return F.max_pool2d(padded, a["kernel_shape"], a.get("strides", 1))


def _gemm(x: Sequence[Any], a: dict[str, Any]) -> torch.Tensor:
    left = x[0].T if a.get("transA") else x[0]
    right = x[1].T if a.get("transB") else x[1]
    product = a.get("alpha", 1.0) * (left @ right)
    return product + a.get("beta", 1.0) * x[2] if len(x) > 2 else product


def _reshape(x: Sequence[Any], a: dict[str, Any]) -> torch.Tensor:
    wanted = [int(extent) for extent in x[1]]
    return x[0].reshape([x[0].shape[i] if extent == 0 else extent for i, extent in enumerate(wanted)])


def _slice(x: Sequence[Any], a: dict[str, Any]) -> torch.Tensor:
    starts, stops = x[1].tolist(), x[2].tolist()
    axes = x[3].tolist() if len(x) > 3 and x[3] is not None else range(len(starts))
    steps = x[4].tolist() if len(x) > 4 else [1] * len(starts)
    index: list[Any] = [slice(None)] * x[0].dim()
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        index[axis] = slice(start, min(stop, x[0].shape[axis]), step)
    return x[0][tuple(index)]


def _reduce_mean(x: Sequence[Any], a: dict[str, Any]) -> torch.Tensor:
    axes = x[1].tolist() if len(x) > 1 and x[1] is not None else a.get("axes")
    return x[0].mean(dim=axes, keepdim=bool(a.get("keepdims", 1)))


def _layer_norm(x: Sequence[Any], a: dict[str, Any]) -> torch.Tensor:
    axis = a.get("axis", -1) % x[0].dim()
    bias = x[2] if len(x) > 2 else None
    return F.layer_norm(x[0], x[0].shape[axis:], x[1], bias, a.get("epsilon", 1e-5))


def _batch_norm(x: Sequence[Any], a: dict[str, Any]) -> torch.Tensor:
    return F.batch_norm(x[0], x[3], x[4], x[1], x[2], training=False, eps=a.get("epsilon", 1e-5))


def _gather(x: Sequence[Any], a: dict[str, Any]) -> torch.Tensor:
    axis = a.get("axis", 0) % x[0].dim()
    shape = (*x[0].shape[:axis], *x[1].shape, *x[0].shape[axis + 1 :])
    return torch.index_select(x[0], axis, x[1].reshape(-1)).reshape(shape)


def _axes_of(x: Sequence[Any], a: dict[str, Any]) -> list[int]:
    return list(x[1].tolist() if len(x) > 1 and x[1] is not None else a.get("axes", []))


def _unsqueeze(x: Sequence[Any], a: dict[str, Any]) -> torch.Tensor:
    value = x[0]
    for axis in sorted(_axes_of(x, a)):
        value = value.unsqueeze(axis)
    return value


def _gelu(x: Sequence[Any], a: dict[str, Any]) -> torch.Tensor:
    return F.gelu(x[0], approximate=a.get("approximate", "none"))


HANDLERS: Mapping[str, Handler] = {
    "Conv": _conv,
    "Clip": _clip,
    "Relu": lambda x, a: F.relu(x[0]),
    "Add": lambda x, a: x[0] + x[1],
    "Sub": lambda x, a: x[0] - x[1],
    "Mul": lambda x, a: x[0] * x[1],
    "Div": lambda x, a: x[0] / x[1],
    "Pow": lambda x, a: x[0] ** x[1],
    "Sqrt": lambda x, a: x[0].sqrt(),
    "Erf": lambda x, a: torch.erf(x[0]),
    "Tanh": lambda x, a: torch.tanh(x[0]),
    "Sigmoid": lambda x, a: torch.sigmoid(x[0]),
    "Gelu": _gelu,
    "Identity": lambda x, a: x[0],
    "MatMul": lambda x, a: x[0] @ x[1],
    "Gemm": _gemm,
    "GlobalAveragePool": lambda x, a: x[0].mean(dim=(2, 3), keepdim=True),
    "ReduceMean": _reduce_mean,
    "MaxPool": _max_pool,
    "Flatten": lambda x, a: x[0].flatten(a.get("axis", 1)),
    "Reshape": _reshape,
    "Transpose": lambda x, a: x[0].permute(a["perm"]),
    "Softmax": lambda x, a: F.softmax(x[0], a.get("axis", -1)),
    "LayerNormalization": _layer_norm,
    "BatchNormalization": _batch_norm,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": lambda x, a: torch.cat(list(x), a["axis"]),
    "Unsqueeze": _unsqueeze,
    "Squeeze": lambda x, a: x[0].squeeze(tuple(_axes_of(x, a))) if _axes_of(x, a) else x[0].squeeze(),
    "IsNaN": lambda x, a: torch.isnan(x[0]),
    "Where": lambda x, a: torch.where(x[0], x[1], x[2]),
    "Expand": lambda x, a: x[0].expand(torch.broadcast_shapes(x[0].shape, tuple(x[1].tolist()))),
    "Shape": lambda x, a: torch.tensor(x[0].shape),
}


def _clip_margin(x: Sequence[Any], a: dict[str, Any]) -> float:
    bounds = [bound.item() for bound in x[1:] if bound is not None]
    return min((x[0] - bound).abs().min().item() for bound in bounds)


def _pool_margin(x: Sequence[Any], a: dict[str, Any]) -> float:
    padded = F.pad(x[0], _pads(a.get("pads", [0, 0, 0, 0])), value=-1.0)
    windows = F.unfold(padded.flatten(0, 1)[:, None], a["kernel_shape"], stride=a.get("strides", 1))
    first, second = windows.topk(2, dim=1).values.unbind(dim=1)
    live = first > 0  # zeros come from a ReLU that blocks the gradient whichever of them wins
    return (first - second)[live].min().item() if live.any() else float("inf")


KINKS: Mapping[str, Callable[[Sequence[Any], dict[str, Any]], float]] = {
    "Relu": lambda x, a: x[0].abs().min().item(),
    "Clip": _clip_margin,
    "MaxPool": _pool_margin,
}


@dataclass(frozen=True)
class GraphReference(Reference):
    """An ONNX model as a differentiable function of the parameters that its author recorded."""

    model: onnx.ModelProto

    @classmethod
    def of(cls, model: bytes) -> GraphReference:
        """The reference of a file written by `examples.models`."""
        return cls(onnx.load_from_string(model))

    def initial(self) -> dict[str, np.ndarray]:
        """Every parameter in file layout, float32."""
        (record,) = (item.value for item in self.model.metadata_props if item.key == PARAMETERS)
        return {name: np.array(self._stored[name]) for name in json.loads(record)}

    @cached_property
    def _stored(self) -> dict[str, np.ndarray]:
        return {item.name: numpy_helper.to_array(item) for item in self.model.graph.initializer}

    @cached_property
    def _attributes(self) -> list[dict[str, Any]]:
        """Of each node, in their order."""
        listed = []
        for node in self.model.graph.node:
            found = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
            listed.append({key: one.decode() if isinstance(one, bytes) else one for key, one in found.items()})
        return listed

    def channel_axes(self) -> dict[str, int]:
        """The axis of each weight that runs over a layer's input channels."""
        axes = {}
        for node, attributes in zip(self.model.graph.node, self._attributes, strict=True):
            if node.op_type == "Conv":
                axes[node.input[1]] = 0 if attributes.get("group", 1) > 1 else 1
            elif node.op_type == "Gemm":
                axes[node.input[1]] = 1 if attributes.get("transB") else 0
            elif node.op_type == "MatMul":
                axes[node.input[1]] = 0
        return axes

    def logits(self, weights: Tensors, feeds: Mapping[str, np.ndarray], real: torch.dtype) -> torch.Tensor:
        """Forward pass in precision `real`."""
        return self._run(weights, feeds, real, None)

    def watched_logits(
        self, weights: Tensors, feeds: Mapping[str, np.ndarray], real: torch.dtype
    ) -> tuple[torch.Tensor, float]:
        """The same, and how close it comes to a point where it has no derivative (a ReLU at 0, a tie in a pool)."""
        margins = [float("inf")]
        return self._run(weights, feeds, real, margins), min(margins)

    def _run(
        self, weights: Tensors, feeds: Mapping[str, np.ndarray], real: torch.dtype, margins: list[float] | None
    ) -> torch.Tensor:
        """The logits; `margins` collects each node's distance to its nearest kink."""
        values: dict[str, torch.Tensor] = {
            name: as_tensor(array, real) for name, array in self._stored.items() if name not in weights
        }
        values |= {name: as_tensor(array, real) for name, array in feeds.items()}
        values |= weights
        for node, attributes in zip(self.model.graph.node, self._attributes, strict=True):
            if node.op_type == "Constant":
                values[node.output[0]] = as_tensor(numpy_helper.to_array(attributes["value"]), real)
                continue
            operands = [values[name] if name else None for name in node.input]
            if margins is not None and node.op_type in KINKS:
                with torch.no_grad():
                    margins.append(KINKS[node.op_type](operands, attributes))
            values[node.output[0]] = HANDLERS[node.op_type](operands, attributes)
        return values[self.model.graph.output[0].name]
