"""The Keras recipe on the families that it is for: after training, Keras predicts what ONNX Runtime does."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import keras
import numpy as np

from examples.recipes.comparison import Family, shown
from examples.recipes.keras_recipe import fine_tuned

L = keras.layers
CLASSES = 5


def stacked(shape: tuple[int, ...], *layers: object, dtype: str = "float32") -> keras.Model:
    """Layers after each other, and a dense head."""
    return keras.Sequential([L.Input(shape, dtype=dtype), *layers, L.Dense(CLASSES)])


def attention() -> keras.Model:
    x = L.Input((7, 16))
    y = L.LayerNormalization()(x + L.MultiHeadAttention(2, 8)(x, x))
    return keras.Model(x, L.Dense(CLASSES)(L.GlobalAveragePooling1D()(y)))


def convolution() -> keras.Model:
    first = [L.Conv2D(8, 3, padding="same", use_bias=False), L.BatchNormalization(), L.ReLU(), L.MaxPooling2D()]
    return stacked((12, 12, 3), *first, L.Conv2D(8, 3), L.ReLU(6.0), L.GlobalAveragePooling2D())


def separable() -> keras.Model:
    first = L.SeparableConv2D(8, 3, padding="same", activation="relu")
    return stacked((12, 12, 3), first, L.DepthwiseConv2D(3), L.GlobalAveragePooling2D())


FAMILIES = (
    Family("dense", lambda: stacked((16,), L.Dense(32, activation="relu"))),
    Family("convolution and batch norm", convolution),
    Family("separable convolution", separable),
    Family("LSTM", lambda: stacked((7, 6), L.LSTM(8, unroll=True))),
    Family("GRU", lambda: stacked((7, 6), L.GRU(8, unroll=True))),
    Family("multi-head attention", attention),
    Family("embedding", lambda: stacked((7,), L.Embedding(20, 8), L.Flatten(), dtype="int32")),
)


def trained(model: keras.Model, x: np.ndarray, y: np.ndarray, spec: dict[str, object]) -> tuple[object, np.ndarray]:
    """What came back, and what Keras predicts with it."""
    rng = np.random.default_rng(1)
    for variable in model.variables:  # as if it had been trained before
        if variable.dtype == "float32":
            variable.assign(variable + 0.1 * rng.random(variable.shape).astype(np.float32))
    tuned = fine_tuned(model, x, y, spec)
    return tuned, np.asarray(model(x, training=False))


def inputs_of(model: keras.Model) -> tuple[tuple[int, ...], str]:
    return tuple(model.inputs[0].shape[1:]), str(model.inputs[0].dtype)


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    shown("Keras", FAMILIES, inputs_of, trained)
