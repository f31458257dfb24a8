"""A small convolutional net for 8x8 grey images, such as scikit-learn's digits."""

from __future__ import annotations

from math import sqrt

from examples.models.network import Network, image_input


def small_cnn(*, resolution: int = 8, classes: int = 10, width: int = 16, seed: int = 0) -> bytes:
    """conv 3x3, depth-wise 3x3 (stride 2), point-wise, fully connected; input `input` [batch, 1, 8, 8]."""
    net = Network("small_cnn", seed)
    x = net.relu(net.conv("input", "conv", (1, width), 3), "conv.relu")
    x = net.relu(net.conv(x, "depthwise", (width, width), 3, stride=2, group=width), "depthwise.relu")
    x = net.relu(net.conv(x, "pointwise", (width, 2 * width), 1), "pointwise.relu")
    side = (resolution + 1) // 2
    features = 2 * width * side * side
    logits = net.linear(net.node("Flatten", x, name="flatten", axis=1), "classifier", features, classes, gain=sqrt(0.5))
    return net.model(logits, inputs=image_input(1, resolution), classes=classes)
