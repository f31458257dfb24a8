"""MobileNetV2 with BatchNorm folded (or kept), seeded weights.

Source: Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, CVPR 2018, table 2.
"""

from __future__ import annotations

from examples.models.network import Network, image_input

# (expansion, output channels, repeats, stride of the first)
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def mobilenet_v2(
    *, width: float = 1.0, resolution: int = 224, classes: int = 1000, seed: int = 0, batch_norm: bool = False
) -> bytes:
    """MobileNetV2; input `input` [batch, 3, resolution, resolution], output `logits` [batch, classes].

    Parameters: `stem`, `blocks.0` to `blocks.16` with `expand` (not in block 0), `depthwise`, `project`, then `head`
    and `classifier`, each with `.weight` and `.bias`.
    """
    net = Network("mobilenet_v2", seed, batch_norm=batch_norm)
    channels = divisible(32 * width)
    x = net.relu6(net.conv("input", "stem", (3, channels), 3, stride=2), "stem.relu6")
    block = 0
    for expansion, outputs, repeats, first_stride in STAGES:
        for repeat in range(repeats):
            width_out = divisible(outputs * width)
            stride = first_stride if repeat == 0 else 1
            x = inverted_residual(net, x, f"blocks.{block}", (channels, width_out), 3, expansion, stride)
            channels, block = width_out, block + 1
    last = divisible(1280 * max(width, 1.0))
    x = net.relu6(net.conv(x, "head", (channels, last), 1), "head.relu6")
    logits = net.linear(net.pooled(x, "pool"), "classifier", last, classes)
    return net.model(logits, inputs=image_input(3, resolution), classes=classes)


def inverted_residual(
    net: Network, x: str, name: str, channels: tuple[int, int], kernel: int, expansion: int, stride: int
) -> str:
    """Expand 1x1, depth-wise, project 1x1 (linear); the input is added where shapes allow."""
    inputs, outputs = channels
    residual = stride == 1 and inputs == outputs
    hidden = inputs * expansion
    y = x
    if expansion != 1:
        y = net.relu6(net.conv(y, f"{name}.expand", (inputs, hidden), 1), f"{name}.expand.relu6")
    y = net.conv(y, f"{name}.depthwise", (hidden, hidden), kernel, stride=stride, group=hidden)
    y = net.relu6(y, f"{name}.depthwise.relu6")
    # A branch that is added to its input starts small, so that the sums do not grow with depth.
    y = net.conv(y, f"{name}.project", (hidden, outputs), 1, gain=0.5 if residual else 1.0)
    return net.node("Add", x, y, name=f"{name}.add") if residual else y


def divisible(channels: float, divisor: int = 8) -> int:
    """Channels rounded to a multiple of 8, never below 90% of the wish."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded
