"""An independent meaning of a training step: the ONNX graph run by PyTorch, gradients by its autograd.

Nothing of the compiler's graph, operators or gradients is used; only the parameters' names (a bias that an exporter
dropped or a weight that it folded has no name in the file) come from the import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper

from compiler.frontend.naming import folded_weights
from compiler.frontend.source import parse_model
from compiler.graph import Parameter

torch.set_num_threads(1)  # tests run side by side: more threads than cores make PyTorch spin

Tensors = dict[str, torch.Tensor]
Handler = Callable[[Sequence[torch.Tensor | None], dict[str, Any]], torch.Tensor | tuple[torch.Tensor, ...]]


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
class Reference:
    """An ONNX model as a differentiable function of its parameters."""

    model: onnx.ModelProto
    parameters: Mapping[str, Parameter]

    @cached_property
    def transposed(self) -> Mapping[str, str]:
        """Initializer that an exporter folded from a Linear's weight -> the parameter that it is the transpose of."""
        source = parse_model(self.model.SerializeToString())
        return {name: known.source for name, known in folded_weights(source, tied=()).items()}

    def initial(self) -> dict[str, np.ndarray]:
        """Every parameter in file layout, float32; dropped biases as zeros."""
        stored = {item.name: numpy_helper.to_array(item) for item in self.model.graph.initializer}
        stored |= {weight: stored[name].T for name, weight in self.transposed.items()}
        stored |= {
            node.output[0]: numpy_helper.to_array(node.attribute[0].t)
            for node in self.model.graph.node
            if node.op_type == "Constant" and node.attribute[0].name == "value"
        }
        zeros = {name: np.zeros(own.file_shape, np.float32) for name, own in self.parameters.items() if own.created}
        return {name: np.array(stored[name]) if name not in zeros else zeros[name] for name in self.parameters}

    def kink_margin(self, weights: Mapping[str, np.ndarray], feeds: Mapping[str, np.ndarray]) -> float:
        """How close the forward pass comes to a point where it has no derivative (a ReLU at 0, a tie in a pool)."""
        margins = [float("inf")]
        wide = {name: _as(array, torch.float64) for name, array in weights.items()}
        with torch.no_grad():
            self.logits(wide, feeds, torch.float64, margins)
        return min(margins)

    def logits(
        self,
        weights: Tensors,
        feeds: Mapping[str, np.ndarray],
        real: torch.dtype,
        margins: list[float] | None = None,
    ) -> torch.Tensor:
        """Forward pass in precision `real`; `margins` collects each node's distance to its nearest kink."""
        values: dict[str, torch.Tensor] = {
            item.name: _as(numpy_helper.to_array(item), real) for item in self.model.graph.initializer
        }
        values |= {name: _as(array, real) for name, array in feeds.items()}
        values |= weights
        values |= {name: weights[weight].T for name, weight in self.transposed.items()}
        created = {own.layer: name for name, own in self.parameters.items() if own.created}
        for node in self.model.graph.node:
            attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
            attributes = {
                key: value.decode() if isinstance(value, bytes) else value for key, value in attributes.items()
            }
            if node.op_type == "Constant":
                if node.output[0] not in weights:
                    values[node.output[0]] = _as(numpy_helper.to_array(attributes["value"]), real)
                continue
            operands = [values[name] if name else None for name in node.input]
            if node.name in created:
                operands.append(weights[created[node.name]])
            if node.op_type == "Cast":
                values[node.output[0]] = _cast(operands[0], attributes["to"], real)
                continue
            if margins is not None and node.op_type in KINKS:
                margins.append(KINKS[node.op_type](operands, attributes))
            values[node.output[0]] = HANDLERS[node.op_type](operands, attributes)  # type: ignore[assignment]
        return values[self.model.graph.output[0].name]

    def loss_and_gradients(
        self,
        weights: Mapping[str, np.ndarray],
        feeds: Mapping[str, np.ndarray],
        labels: np.ndarray,
        real: torch.dtype,
        *,
        channels_last: bool = False,
    ) -> tuple[float, dict[str, np.ndarray]]:
        """Mean cross-entropy and its gradient by every parameter."""
        leaves = {name: _laid_out(_as(array, real), channels_last).requires_grad_() for name, array in weights.items()}
        logits = self.logits(leaves, feeds, real)
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), torch.from_numpy(labels).reshape(-1))
        loss.backward()
        zero = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        return loss.item(), {
            name: (leaf.grad if leaf.grad is not None else zero[name]).numpy() for name, leaf in leaves.items()
        }


def _laid_out(tensor: torch.Tensor, channels_last: bool) -> torch.Tensor:
    if channels_last and tensor.dim() == 4:
        return tensor.to(memory_format=torch.channels_last)
    return tensor


def _as(array: np.ndarray, real: torch.dtype) -> torch.Tensor:
    tensor = torch.from_numpy(np.array(array))
    return tensor.to(real) if tensor.is_floating_point() else tensor


def _cast(value: torch.Tensor | None, to: int, real: torch.dtype) -> torch.Tensor:
    assert value is not None
    kinds = {1: real, 6: torch.int32, 7: torch.int64, 9: torch.bool, 11: real}
    return value.to(kinds[to])
