"""Philox4x32-10 in NumPy: random bits as a function of a counter and a key, and of nothing else.

A number is drawn by its place, so whoever draws it again, in whatever order, on however many threads, draws the same.
Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 3.2 and table 2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
"""The numbers by which the key's two words grow from round to round: the golden ratio, and the square root of 3
less 1.
"""
ROUNDS = 10
BITS = 24
"""The bits of a word that a real number is made of: what an f32 holds exactly."""

Words = NDArray[np.uint64]
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, Words, Words, Words]:
    """The four 32-bit words (each in a u64) that belong to a counter of four words and a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    first, second = (np.uint64(multiplier) for multiplier in MULTIPLIERS)
    for _ in range(ROUNDS):
        product, other = c0 * first, c2 * second
        c0, c1, c2, c3 = (other >> _HALF) ^ c1 ^ k0, other & _LOW, (product >> _HALF) ^ c3 ^ k1, product & _LOW
        k0, k1 = (k0 + np.uint64(KEY_STEPS[0])) & _LOW, (k1 + np.uint64(KEY_STEPS[1])) & _LOW
    return c0, c1, c2, c3


def drawn(counter: NDArray[np.int64], key: NDArray[np.int64]) -> tuple[Words, Words]:
    """The first two words for a counter of 64 bits (its upper words are 0) and a key of 64 bits."""
    low, high = _halves(counter)
    zero = np.zeros_like(low)
    words = philox((low, high, zero, zero), _halves(key))
    return words[0], words[1]


def _halves(number: NDArray[np.int64]) -> tuple[Words, Words]:
    bits = np.asarray(number, np.int64).astype(np.uint64)
    return bits & _LOW, bits >> _HALF


def bits_of(counter: NDArray[np.int64], key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns both words as one number of 64 bits, the first one the lower half: the operator `philox`."""
    low, high = drawn(counter, key)
    return np.asarray(low | (high << _HALF)).astype(np.int64)


def top_bits(counter: NDArray[np.int64], key: NDArray[np.int64], word: int) -> NDArray[np.int64]:
    """The upper 24 bits of word 0 or 1: the operators `philox0` and `philox1`."""
    return np.asarray(drawn(counter, key)[word] >> np.uint64(32 - BITS)).astype(np.int64)
