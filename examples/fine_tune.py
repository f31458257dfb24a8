"""A PyTorch network meets another world, and learns a part of itself anew: `python -m examples.fine_tune`.

It reads handwritten digits (scikit-learn's). Then its camera is mounted sideways. PockFarm trains the last block, the
head and all biases on 600 digits seen that way, and the same module predicts with what comes back.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import pockfarm

PLAN = {
    "name": "last-block",
    "update": [
        {"parameters": ["*"], "kind": "bias"},
        {"parameters": ["blocks.2.conv1.weight"], "ratio": 0.5},
        {"parameters": ["blocks.2.conv2.weight", "head.weight"]},
    ],
}
SPEC = {"batch": 32, "optimizer": {"kind": "adamw", "learning_rate": 0.003}}


class Block(nn.Module):
    """Two convolutions with norms, and a way around them, as in a ResNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(y)))


class Reader(nn.Module):
    """Which digit an 8x8 image shows."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(channels) for _ in range(3)))
        self.head = nn.Linear(16 * channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(torch.relu(self.stem(x)))
        return self.head(nn.functional.avg_pool2d(y, 2).flatten(1))


def digits() -> tuple[Tensor, Tensor]:
    """All 1,797 in one seeded order: images [n, 1, 8, 8] in 0..1, and labels."""
    known = load_digits()
    order = np.random.default_rng(0).permutation(len(known.target))
    return torch.from_numpy(known.images[order] / 16).float()[:, None], torch.from_numpy(known.target[order])


def trained_by_pytorch(x: Tensor, y: Tensor, epochs: int) -> Reader:
    """A reader that has learned, in evaluation mode."""
    torch.manual_seed(0)
    reader = Reader()
    optimizer = torch.optim.AdamW(reader.parameters(), 0.003)
    for _ in range(epochs):
        for part in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(reader(x[part]), y[part]).backward()
            optimizer.step()
    return reader.eval()


def accuracy(reader: Reader, x: Tensor, y: Tensor) -> float:
    """The share of digits that the module reads right, in PyTorch."""
    with torch.no_grad():
        return float((reader(x).argmax(1) == y).float().mean())


def story(epochs: int) -> tuple[float, float, float]:
    """Accuracy on digits as they are, on digits seen sideways, and on these once the reader has learned."""
    x, y = digits()
    reader = trained_by_pytorch(x[:900], y[:900], epochs=4)
    upright = accuracy(reader, x[1500:], y[1500:])
    sideways = x.rot90(dims=(2, 3))
    before = accuracy(reader, sideways[1500:], y[1500:])
    tuned = pockfarm.fine_tune(
        reader, sideways[:8], (sideways[900:1500], y[900:1500]), plan=PLAN, spec=SPEC, epochs=epochs
    )
    reader.load_state_dict(tuned)
    print(f"{len(tuned.changed)} of {len(tuned)} tensors changed; loss {tuned.losses[0]:.2f} -> {tuned.losses[-1]:.2f}")
    return upright, before, accuracy(reader, sideways[1500:], y[1500:])


def main() -> None:
    """Print what PyTorch says of the module before and after."""
    parser = argparse.ArgumentParser(prog="python -m examples.fine_tune", description=__doc__)
    parser.add_argument("--epochs", type=int, default=10, help="over the 600 digits seen sideways")
    upright, before, after = story(parser.parse_args().epochs)
    print(f"read right: {upright:.0%} upright; sideways {before:.0%} before, {after:.0%} after")


if __name__ == "__main__":
    main()
