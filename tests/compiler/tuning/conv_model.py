"""A model whose kernels can be scheduled in several ways, small enough to be tuned in a test."""

from __future__ import annotations

from examples.models.network import Network, image_input


def two_convolutions() -> bytes:
    """Two 3x3 convolutions of 16 channels on 16x16 images, then a classifier of 10."""
    net = Network("two_convolutions", 0)
    x = net.relu(net.conv("input", "conv1", (3, 16), 3), "conv1.relu")
    x = net.relu(net.conv(x, "conv2", (16, 16), 3), "conv2.relu")
    logits = net.linear(net.node("Flatten", x, name="flatten", axis=1), "classifier", 16 * 16 * 16, 10, gain=0.5)
    return net.model(logits, inputs=image_input(3, 16), classes=10)
