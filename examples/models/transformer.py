"""A small transformer encoder that classifies sequences: LayerNorm, attention by MatMul and Softmax, Gelu."""

from __future__ import annotations

from math import sqrt

import numpy as np
from onnx import TensorProto

from examples.models.network import Network


def transformer_encoder(
    *,
    tokens: int = 1000,
    features: int = 0,
    positions: int = 32,
    width: int = 64,
    heads: int = 4,
    layers: int = 2,
    classes: int = 2,
    seed: int = 0,
) -> bytes:
    """Pre-norm encoder, mean over positions, linear classifier.

    Input `tokens` [batch, positions] (int64 ids below `tokens`); with `features` > 0 instead `input`
    [batch, positions, features]. Parameters: `embed`, `position`, `layers.<i>.<attention|norm|mlp> ...`, `classifier`.
    """
    net = Network("transformer_encoder", seed)
    inputs: dict[str, tuple[int, tuple[str | int, ...]]]
    if features:
        x = net.project("input", "embed", features, width)
        inputs = {"input": (TensorProto.FLOAT, ("batch", positions, features))}
    else:
        x = net.node("Gather", net.normal("embed.weight", (tokens, width), 1.0), "tokens", name="embed", axis=0)
        inputs = {"tokens": (TensorProto.INT64, ("batch", positions))}
    x = net.node("Add", x, net.normal("position.weight", (1, positions, width), 0.5), name="position")
    for layer in range(layers):
        name = f"layers.{layer}"
        x = _residual(net, x, f"{name}.attention", _attention(net, x, name, positions, width, heads))
        x = _residual(net, x, f"{name}.mlp", _feed_forward(net, x, name, width))
    x = net.layer_norm(x, "norm", width)
    axes = net.constant("pool.axes", np.asarray([1], np.int64))
    logits = net.linear(net.node("ReduceMean", x, axes, name="pool", keepdims=0), "classifier", width, classes)
    return net.model(logits, inputs=inputs, classes=classes)


def _residual(net: Network, x: str, name: str, branch: str) -> str:
    return net.node("Add", x, branch, name=f"{name}.residual")


def _attention(net: Network, x: str, name: str, positions: int, width: int, heads: int) -> str:
    """softmax(Q K' / sqrt(d)) V per head, then the output projection."""
    x = net.layer_norm(x, f"{name}.norm1", width)
    split = net.constant("heads.split", np.asarray([0, positions, heads, width // heads], np.int64))
    joined = net.constant("heads.joined", np.asarray([0, positions, width], np.int64))
    scale = net.constant("attention.scale", np.asarray(1 / sqrt(width // heads), np.float32))
    turned: list[str] = []
    for part, perm in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3))):
        layer = f"{name}.attention.{part}"
        rows = net.node("Reshape", net.project(x, layer, width, width), split, name=f"{layer}.heads")
        turned.append(net.node("Transpose", rows, name=f"{layer}.turned", perm=list(perm)))
    scores = net.node("MatMul", turned[0], turned[1], name=f"{name}.attention.scores")
    scores = net.node("Mul", scores, scale, name=f"{name}.attention.scaled")
    weights = net.node("Softmax", scores, name=f"{name}.attention.softmax", axis=-1)
    mixed = net.node("MatMul", weights, turned[2], name=f"{name}.attention.mixed")
    mixed = net.node("Transpose", mixed, name=f"{name}.attention.back", perm=[0, 2, 1, 3])
    flat = net.node("Reshape", mixed, joined, name=f"{name}.attention.joined")
    return net.project(flat, f"{name}.attention.output", width, width, gain=0.5)


def _feed_forward(net: Network, x: str, name: str, width: int) -> str:
    """Linear to four times the width, Gelu, linear back."""
    x = net.layer_norm(x, f"{name}.norm2", width)
    x = net.gelu(net.project(x, f"{name}.mlp.up", width, 4 * width, gain=sqrt(2)), f"{name}.mlp.gelu")
    return net.project(x, f"{name}.mlp.down", 4 * width, width, gain=0.5)
