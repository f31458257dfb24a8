"""ResNet-18 and ResNet-50 with BatchNorm folded (or kept), seeded weights.

Source: He et al., Deep Residual Learning for Image Recognition, CVPR 2016, table 1; stride on the 3x3 of a
bottleneck, as torchvision has it.
"""

from __future__ import annotations

from examples.models.network import Network, image_input


def resnet18(
    *, width: int = 64, resolution: int = 224, classes: int = 1000, seed: int = 0, batch_norm: bool = False
) -> bytes:
    """ResNet-18; names as in torchvision (`conv1`, `layer1.0.conv1`, `layer2.0.downsample`, `fc`)."""
    net = Network("resnet18", seed, batch_norm=batch_norm)
    return _resnet(net, (2, 2, 2, 2), width, resolution, classes, bottleneck=False)


def resnet50(
    *, width: int = 64, resolution: int = 224, classes: int = 1000, seed: int = 0, batch_norm: bool = False
) -> bytes:
    """ResNet-50; names as in torchvision (`conv1`, `layer1.0.conv1`, `layer2.0.downsample`, `fc`)."""
    net = Network("resnet50", seed, batch_norm=batch_norm)
    return _resnet(net, (3, 4, 6, 3), width, resolution, classes, bottleneck=True)


def _resnet(
    net: Network, repeats: tuple[int, ...], width: int, resolution: int, classes: int, *, bottleneck: bool
) -> bytes:
    x = net.relu(net.conv("input", "conv1", (3, width), 7, stride=2), "relu1")
    x = net.node("MaxPool", x, name="maxpool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = width
    for stage, count in enumerate(repeats):
        inner = width << stage
        outputs = 4 * inner if bottleneck else inner
        for block in range(count):
            stride = 2 if stage and not block else 1
            x = _block(net, x, f"layer{stage + 1}.{block}", (channels, inner, outputs), stride)
            channels = outputs
    logits = net.linear(net.pooled(x, "avgpool"), "fc", channels, classes)
    return net.model(logits, inputs=image_input(3, resolution), classes=classes)


def _block(net: Network, x: str, name: str, channels: tuple[int, int, int], stride: int) -> str:
    """Basic (two 3x3) or bottleneck (1x1, 3x3, 1x1) block; the last convolution starts small, so sums do not grow."""
    inputs, inner, outputs = channels
    if outputs == inner:
        y = net.relu(net.conv(x, f"{name}.conv1", (inputs, inner), 3, stride=stride), f"{name}.relu1")
        y = net.conv(y, f"{name}.conv2", (inner, outputs), 3, gain=0.5)
    else:
        y = net.relu(net.conv(x, f"{name}.conv1", (inputs, inner), 1), f"{name}.relu1")
        y = net.relu(net.conv(y, f"{name}.conv2", (inner, inner), 3, stride=stride), f"{name}.relu2")
        y = net.conv(y, f"{name}.conv3", (inner, outputs), 1, gain=0.5)
    if stride != 1 or inputs != outputs:
        x = net.conv(x, f"{name}.downsample", (inputs, outputs), 1, stride=stride, gain=1.0)
    return net.relu(net.node("Add", x, y, name=f"{name}.add"), f"{name}.relu")
