"""Real input for the end-to-end tests: scikit-learn's digits, the small CNN, and what ONNX Runtime makes of weights."""

from __future__ import annotations

import io

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from safetensors.numpy import load
from sklearn.datasets import load_digits

from examples.models import MODELS

SPEC = """
batch: 32
optimizer: {kind: sgd, learning_rate: 0.05, momentum: 0.9}
"""
SPARSE = """
name: sparse
update:
  - parameters: ["pointwise.weight"]
    ratio: 0.5
  - parameters: ["pointwise.bias", "classifier.weight", "classifier.bias"]
"""


def cnn(seed: int = 0) -> bytes:
    return MODELS["small_cnn"](seed=seed)


def digits(part: int, *, of: int = 2) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """One part of the shuffled digits: x [n, 1, 8, 8] in 0..1, y [n]."""
    data = load_digits()
    chosen = np.random.default_rng(1).permutation(len(data.target))[part::of]
    return (data.images[chosen] / 16.0).astype(np.float32)[:, None], data.target[chosen].astype(np.int64)


def npz(**arrays: NDArray[np.generic]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def accuracy_by_onnx_runtime(
    model: bytes, weights: bytes, x: NDArray[np.float32], y: NDArray[np.int64]
) -> tuple[float, float]:
    """(mean cross-entropy in float64, accuracy) of the model with those weights in place of its own."""
    proto = onnx.load_from_string(model)
    trained = load(weights)
    for initializer in proto.graph.initializer:
        if initializer.name in trained:
            initializer.CopyFrom(onnx.numpy_helper.from_array(trained[initializer.name], initializer.name))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    logits = np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0], dtype=np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probability = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(-log_probability[np.arange(len(y)), y].mean()), float((logits.argmax(axis=1) == y).mean())
