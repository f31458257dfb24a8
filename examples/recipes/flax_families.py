"""The Flax recipe on the families that it is for: after training, Flax predicts what ONNX Runtime does."""

from __future__ import annotations

import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx

from examples.recipes.comparison import Family, shown
from examples.recipes.flax_recipe import fine_tuned

CLASSES = 5


class Perceptron(nnx.Module):
    shape = (16,)

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first, self.last = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, CLASSES, rngs=rngs)

    def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
        return self.last(nnx.relu(self.first(x)))


class Convolution(nnx.Module):
    shape = (12, 12, 3)

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.batch_norm = nnx.BatchNorm(8, use_running_average=True, rngs=rngs)
        self.layer_norm, self.last = nnx.LayerNorm(8, rngs=rngs), nnx.Linear(8, CLASSES, rngs=rngs)

    def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
        y = nnx.relu(self.batch_norm(self.conv(x)))
        return self.last(self.layer_norm(y.mean(axis=(1, 2))))


class Attention(nnx.Module):
    shape = (7, 16)

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm, self.last = nnx.LayerNorm(16, rngs=rngs), nnx.Linear(16, CLASSES, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 16, decode=False, rngs=rngs)

    def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
        return self.last((x + self.attention(self.norm(x))).mean(axis=1))


FAMILIES = (
    Family("perceptron", lambda: Perceptron(nnx.Rngs(0))),
    Family("convolution, batch and layer norm", lambda: Convolution(nnx.Rngs(0))),
    Family("attention", lambda: Attention(nnx.Rngs(0))),
)


def trained(model: nnx.Module, x: np.ndarray, y: np.ndarray, spec: dict[str, object]) -> tuple[object, np.ndarray]:
    """What came back, and what Flax predicts with it."""
    rng = np.random.default_rng(1)
    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))  # as if it had been trained before
    moved = [
        (key, nnx.Param(jnp.asarray(np.asarray(one) + 0.1 * rng.random(one.shape, np.float32)))) for key, one in flat
    ]
    nnx.update(model, nnx.from_flat_state(moved))
    with tempfile.TemporaryDirectory() as folder:
        tuned, absent = fine_tuned(model, x, y, spec, str(Path(folder) / "model.onnx"))
    assert not absent, absent
    return tuned, np.asarray(model(x))


if __name__ == "__main__":
    shown("Flax", FAMILIES, lambda model: (model.shape, "float32"), trained)
