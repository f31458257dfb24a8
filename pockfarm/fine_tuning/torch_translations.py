"""Operators of PyTorch's that its current exporter has no translation for, composed of ONNX's.

Without one a module goes through the TorchScript exporter, which leaves out the sizes in distances of odd order.
The door to onnxscript, which that exporter needs: imported only while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import torch
from onnxscript import opset18 as op


def _distances(x: Any, y: Any, p: float, compute_mode: Any = None) -> Any:
    """The p-norms of x[..., i, :] - y[..., j, :]. Shapes: x [..., P, M], y [..., R, M] -> [..., P, R]."""
    apart = op.Abs(op.Sub(op.Unsqueeze(x, [-2]), op.Unsqueeze(y, [-3])))
    if p == inf:
        return op.ReduceMax(apart, [-1], keepdims=0)
    if p == 0:
        return op.ReduceSum(op.CastLike(op.Greater(apart, 0.0), x), [-1], keepdims=0)
    if p in (1, 2):
        return (op.ReduceL1 if p == 1 else op.ReduceL2)(apart, [-1], keepdims=0)
    return op.Pow(op.ReduceSum(op.Pow(apart, p), [-1], keepdims=0), 1 / p)


def _euclidean_distances(x: Any, y: Any) -> Any:
    return _distances(x, y, 2.0)


TRANSLATIONS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten._cdist_forward.default: _distances,
    torch.ops.aten._euclidean_dist.default: _euclidean_distances,
}
