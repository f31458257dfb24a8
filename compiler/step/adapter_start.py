"""The first elements of adapters: peft's distributions, from a generator of our own.

Elements depend on the plan's seed, the tensor's name and their place, and on nothing else: Philox 4x64 (Salmon et al.,
2011) with the key (seed, first 8 bytes of SHA-256 of the name), whose raw 64-bit numbers are a part of its definition
and the same in every version of NumPy. A uniform number is the upper 53 bits over 2^53; normal ones are Box and
Muller's (1958) of two of them.
"""

from __future__ import annotations

import hashlib
from math import prod

import numpy as np
from numpy.typing import NDArray

from compiler.graph import Array


def uniform(seed: int, name: str, shape: tuple[int, ...], fan_in: int) -> Array:
    """Kaiming's uniform distribution with a = sqrt(5), as torch.nn.Linear and peft begin: within 1 / sqrt(fan_in)."""
    bound = fan_in**-0.5
    return np.asarray((2 * _units(seed, name, prod(shape)) - 1) * bound, np.float32).reshape(shape)


def normal(seed: int, name: str, shape: tuple[int, ...]) -> Array:
    """The standard normal distribution."""
    first, second = np.split(_units(seed, name, 2 * prod(shape)), 2)
    return np.asarray(np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second), np.float32).reshape(shape)


def row_lengths(weight: Array, out_axis: int) -> Array:
    """The Euclidean length of what each output of a weight is a sum of."""
    rows = weight if weight.ndim == 2 else weight.reshape(weight.shape[0], -1)
    along = "ij,ij->i" if out_axis == 0 else "ij,ij->j"
    return np.asarray(np.sqrt(np.einsum(along, rows, rows, dtype=np.float64)), np.float32)


def _units(seed: int, name: str, count: int) -> NDArray[np.float64]:
    """Numbers from 0 up to 1, without 1."""
    key = [seed, int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")]
    raw = np.random.Philox(key=np.asarray(key, np.uint64)).random_raw(count)
    return np.asarray(raw >> np.uint64(11), np.float64) * 2.0**-53
