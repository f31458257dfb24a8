"""Max pooling's gradient against PyTorch, ties included, and as exported."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

from compiler.export.onnx_model import to_model_proto_bytes
from compiler.graph import TensorType
from compiler.ops import OPERATORS
from compiler.ops.record import NamedNode

ATTRS = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}


def _case(levels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x with few distinct levels (so with ties), d_y, and PyTorch's d_x; NHWC."""
    rng = np.random.default_rng(2)
    x = rng.integers(0, levels, (2, 7, 8, 3)).astype(np.float32)
    leaf = torch.from_numpy(x.transpose(0, 3, 1, 2).copy()).requires_grad_()
    y = F.max_pool2d(leaf, 3, 2, 1)
    d_y = torch.from_numpy(rng.normal(size=tuple(y.shape)).astype(np.float32))
    y.backward(d_y)
    assert leaf.grad is not None
    nhwc = (0, 2, 3, 1)
    return x, *(t.detach().numpy().transpose(nhwc) for t in (d_y, leaf.grad))


@pytest.mark.parametrize("levels", [3, 10_000])
def test_gradient_goes_to_the_first_maximum(levels: int) -> None:
    x, d_y, expected = _case(levels)
    (found,) = OPERATORS["max_pool_grad"].evaluate([x, d_y], ATTRS)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_exported_gradient_agrees() -> None:
    x, d_y, expected = _case(10_000)
    arrays = {"x": x, "d_y": d_y}
    types = {name: TensorType("f32", array.shape) for name, array in arrays.items()}
    types["d_x"] = types["x"]
    node = NamedNode("max_pool_grad", ("x", "d_y"), ("d_x",), ATTRS)
    model = to_model_proto_bytes(
        nodes=OPERATORS["max_pool_grad"].to_onnx(node, types),
        inputs={name: types[name] for name in ("x", "d_y")},
        outputs={"d_x": types["d_x"]},
        initializers={},
        name="pool",
    )
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (found,) = session.run(["d_x"], {name: np.ascontiguousarray(arrays[name]) for name in ("x", "d_y")})
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
