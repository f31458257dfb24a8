"""Weights and data that are made where they are needed: the same bits on every machine, from a seed and their names.

NumPy keeps the raw numbers of a bit generator the same in all its versions, but not those of its distributions: what is
made of raw numbers here is made by exact arithmetic alone.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEED = 20_261
LEAST_DEVIATION = 0.01
"""Of a weight: exporters merge equal vectors, such as scales that all are 1."""
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Drawn:
    """One sample of an input, or of labels: whole numbers from `low` to `below`, or real ones of deviation 1."""

    shape: tuple[int, ...]
    below: int = 0
    """0: real numbers."""
    low: int = 0

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Drawn:
        """The inverse of `asdict`."""
        return cls(tuple(body["shape"]), body["below"], body["low"])

    def batch(self, name: str, count: int) -> NDArray[Any]:
        """`count` samples."""
        shape = (count, *self.shape)
        if not self.below:
            return scaled(f"data {name}", shape, 0.0, 1.0)
        found = raw(f"data {name}", prod(shape)) % np.uint64(self.below - self.low)
        return found.astype(np.int64).reshape(shape) + self.low


@dataclass(frozen=True)
class Weight:
    """A parameter without its elements: they are spread evenly about `mean`."""

    shape: tuple[int, ...]
    mean: float
    deviation: float

    @classmethod
    def like(cls, array: NDArray[Any]) -> Weight:
        """Of the same shape, mean and (at least a little) deviation."""
        wide = array.astype(np.float64)
        return cls(array.shape, float(wide.mean()), max(float(wide.std()), LEAST_DEVIATION))

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Weight:
        """The inverse of `asdict`."""
        return cls(tuple(body["shape"]), body["mean"], body["deviation"])

    def made(self, name: str) -> NDArray[np.float32]:
        """Its elements."""
        return scaled(f"weight {name}", self.shape, self.mean, self.deviation)


def raw(name: str, count: int) -> NDArray[np.uint64]:
    """Sixty-four random bits each."""
    found: NDArray[np.uint64] = np.random.PCG64([SEED, zlib.crc32(name.encode())]).random_raw(count)
    return found


def scaled(name: str, shape: tuple[int, ...], mean: float, deviation: float) -> NDArray[np.float32]:
    """Spread evenly over an interval: twelve is its width squared over its variance."""
    even = (raw(name, prod(shape)) >> np.uint64(11)) * 2.0**-53
    found: NDArray[np.float32] = ((even - 0.5) * (deviation * 12.0**0.5) + mean).astype(np.float32).reshape(shape)
    return found


def weights_of(described: Mapping[str, Weight]) -> dict[str, NDArray[np.float32]]:
    """Every parameter of a model."""
    return {name: one.made(name) for name, one in described.items()}


def digest_of(arrays: Arrays) -> str:
    """Hex SHA-256 of names and elements."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
