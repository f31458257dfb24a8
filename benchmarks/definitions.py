"""What a bench model and a workload are, and the data that models are fed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

Feeds = dict[str, NDArray[np.float32] | NDArray[np.int64]]
Rules = Sequence[tuple[tuple[str, ...], str]]
"""(globs of parameter names, kind), as in a plan's rules."""
CLASSES = 1000
IMAGE_RATE, DEEP_RATE = 1e-5, 3e-7
"""Learning rates of image nets. Fresh deep ones have gradients so large that rounding grows in every step: at 1e-5, the
losses of two layouts of PyTorch's ResNet-50 are 1e-3 apart after five steps, and could not show that work is the same.
"""
LAST_HALF_OF_12 = ("6", "7", "8", "9", "10", "11")
TEXT = ("input_ids", "attention_mask")


@dataclass(frozen=True)
class Model:
    """A bench model: its module, a batch of inputs and labels, and what its sparse plan trains.

    `sparse`: for a convolutional net the biases and the first point-wise convolution of the last blocks, for a
    transformer the attention and first feed-forward layers of the last half of the blocks; and the classifier.
    """

    build: Callable[[], nn.Module]
    draw: Callable[[np.random.Generator, int], Feeds]
    label_shape: tuple[int, ...]
    labels_below: int
    sparse: Rules
    is_image: bool = False
    learning_rate: float = 1e-3


@dataclass(frozen=True)
class Workload:
    """A model at a batch size. `held_out`: nothing was tuned on it."""

    model: str
    batch: int
    held_out: bool = False


def images(size: int, name: str = "input") -> Callable[[np.random.Generator, int], Feeds]:
    """Draws batches of square images in three channels."""
    return lambda rng, batch: {name: rng.standard_normal((batch, 3, size, size)).astype(np.float32)}


def tokens(positions: int, below: int) -> Callable[[np.random.Generator, int], Feeds]:
    """Draws batches of texts without padding."""

    def draw(rng: np.random.Generator, batch: int) -> Feeds:
        shape = (batch, positions)
        return {"input_ids": rng.integers(0, below, shape), "attention_mask": np.ones(shape, np.int64)}

    return draw


def layers(stem: str, numbers: Sequence[str], parts: Sequence[str]) -> tuple[str, ...]:
    """Globs of some parts of some layers."""
    return tuple(f"{stem}.{number}.{part}.*" for number in numbers for part in parts)


def image_net(
    build_module: Callable[[], nn.Module],
    size: int,
    blocks: Sequence[str],
    first: str,
    classifier: str = "classifier",
    learning_rate: float = IMAGE_RATE,
) -> Model:
    """`blocks`: globs of the trained ones; `first`: the weight in each that trains, of a point-wise convolution."""
    biases, weights = tuple(f"{one}.*" for one in blocks), tuple(f"{one}.{first}.weight" for one in blocks)
    sparse = ((biases, "bias"), (weights, "weight"), ((f"{classifier}.*",), "any"))
    return Model(build_module, images(size), (), CLASSES, sparse, is_image=True, learning_rate=learning_rate)


def image_transformer(build_module: Callable[[], nn.Module], stem: str) -> Model:
    """Of 12 layers at 224 px; `stem`: where they are."""
    sparse = ((layers(stem, LAST_HALF_OF_12, ("attention", "mlp.fc1")), "any"), (("model.classifier.*",), "any"))
    draw = images(224, "pixel_values")
    return Model(build_module, draw, (), CLASSES, sparse, is_image=True, learning_rate=IMAGE_RATE)


def text_model(
    build_module: Callable[[], nn.Module],
    below: int,
    trained: Sequence[str],
    *,
    positions: int = 128,
    classes: int = 0,
    heads: Sequence[str] = ("model.classifier.*",),
) -> Model:
    """Of tokens `below` a number. `classes`: 0 if it says the next token at each position; `heads`: globs beside the
    trained layers'."""
    sparse = ((tuple(trained), "any"), *(((tuple(heads), "any"),) if heads else ()))
    label_shape = () if classes else (positions,)
    return Model(build_module, tokens(positions, below), label_shape, classes or below, sparse)
