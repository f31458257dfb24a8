"""A multi-layer perceptron."""

from __future__ import annotations

from math import sqrt

from onnx import TensorProto

from examples.models.network import Network


def mlp(*, features: int = 64, hidden: int = 128, layers: int = 3, classes: int = 10, seed: int = 0) -> bytes:
    """`layers` fully connected layers (`fc1` ...) with ReLU between; input `input` [batch, features]."""
    net = Network("mlp", seed)
    x, width = "input", features
    for layer in range(1, layers):
        x = net.relu(net.linear(x, f"fc{layer}", width, hidden, gain=sqrt(2)), f"relu{layer}")
        width = hidden
    logits = net.linear(x, f"fc{layers}", width, classes)
    return net.model(logits, inputs={"input": (TensorProto.FLOAT, ("batch", features))}, classes=classes)
