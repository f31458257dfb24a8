"""PyTorch eager training MobileNetV2 with the weights of an ONNX file: one process of the comparison."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from benchmarks.sides import LEARNING_RATE, MOMENTUM, plan_of
from compiler.frontend.importer import import_model
from compiler.plan import resolve_plan

# Expansion, channels, repeats, first stride. Source: Sandler et al., MobileNetV2, CVPR 2018, table 2.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class Block(nn.Module):
    """An inverted bottleneck with batch norms folded into its convolutions."""

    def __init__(self, channels: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        inner = channels * expansion
        self.expand = nn.Conv2d(channels, inner, 1) if expansion > 1 else None
        self.depthwise = nn.Conv2d(inner, inner, 3, stride, 1, groups=inner)
        self.project = nn.Conv2d(inner, outputs, 1)
        self.act = nn.ReLU6(inplace=True)
        self.residual = stride == 1 and channels == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.expand(x)) if self.expand is not None else x
        y = self.project(self.act(self.depthwise(y)))
        return x + y if self.residual else y


class MobileNetV2(nn.Module):
    """Width 1.0; parameter names as in the example ONNX model."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 2, 1)
        blocks, channels = [], 32
        for expansion, outputs, repeats, first in STAGES:
            for i in range(repeats):
                blocks.append(Block(channels, outputs, expansion, first if i == 0 else 1))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Conv2d(channels, 1280, 1)
        self.act = nn.ReLU6(inplace=True)
        self.classifier = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.head(self.blocks(self.act(self.stem(x)))))
        return self.classifier(x.mean(dim=(2, 3)))


def load(folder: Path, plan: str) -> MobileNetV2:
    """The ONNX file's weights; what the plan freezes needs no gradient."""
    data = (folder / "model.onnx").read_bytes()
    arrays = {item.name: numpy_helper.to_array(item) for item in onnx.load_from_string(data).graph.initializer}
    model = MobileNetV2(arrays["classifier.bias"].shape[0])
    learning = resolve_plan(import_model(data, input_shapes={}, batch=1, batch_norm="fold"), plan_of(plan))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(np.array(arrays[name])).reshape(parameter.shape))
            parameter.requires_grad_(name in learning)
    return model


def main() -> None:
    """Arguments: folder, plan, timed steps, warm-up steps. Prints one JSON line."""
    folder, plan, steps, warmup = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    model = load(folder, plan).to(memory_format=torch.channels_last)
    x = torch.from_numpy(np.load(folder / "x.npy")).to(memory_format=torch.channels_last)
    y = torch.from_numpy(np.load(folder / "y.npy"))
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(learning, LEARNING_RATE, MOMENTUM, fused=True)
    criterion = nn.CrossEntropyLoss()
    step_ms = []
    for _ in range(warmup + steps):
        started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        step_ms.append((time.perf_counter() - started) * 1e3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"step_ms": step_ms[warmup:], "loss": loss.item(), "peak_rss_bytes": peak}))


if __name__ == "__main__":
    main()
