"""A net in the manner of MCUNet: inverted residuals with depth-wise kernels of 3, 5 and 7.

Source: Lin et al., MCUNet: Tiny Deep Learning on IoT Devices, NeurIPS 2020 (the block mix, not the searched net).
"""

from __future__ import annotations

from examples.models.mobilenet import inverted_residual
from examples.models.network import Network, image_input

# (expansion, kernel, output channels, stride)
BLOCKS = (
    (1, 3, 8, 1),
    (4, 7, 16, 2),
    (3, 3, 16, 1),
    (5, 5, 24, 2),
    (4, 7, 24, 1),
    (5, 3, 40, 2),
    (4, 5, 40, 1),
    (5, 5, 48, 1),
    (4, 3, 48, 1),
    (6, 7, 96, 2),
    (4, 3, 96, 1),
    (6, 5, 160, 1),
)


def mcunet(*, resolution: int = 128, classes: int = 10, seed: int = 0) -> bytes:
    """A small mixed-kernel net; names as in `mobilenet_v2` (`stem`, `blocks.0` to `blocks.11`, `classifier`)."""
    net = Network("mcunet", seed)
    x = net.relu6(net.conv("input", "stem", (3, 16), 3, stride=2), "stem.relu6")
    channels = 16
    for block, (expansion, kernel, outputs, stride) in enumerate(BLOCKS):
        x = inverted_residual(net, x, f"blocks.{block}", (channels, outputs), kernel, expansion, stride)
        channels = outputs
    logits = net.linear(net.pooled(x, "pool"), "classifier", channels, classes)
    return net.model(logits, inputs=image_input(3, resolution), classes=classes)
