"""Figures of where time goes on a machine, whatever its kind: by them equivalent programs are compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MachineCosts:
    """A target's `[costs]`, with all of its `cores` at work. Programs are compared, so the ratios matter most."""

    memory_gb_per_s: float
    """Reads and writes of main memory together."""
    cache_gb_per_s: float
    """Reads and writes of the last cache together."""
    product_gflop_per_s: float
    """Speed of a matrix product or a dense convolution."""
    other_gflop_per_s: float
    """Speed of any other kernel."""
    launch_us: float
    """Start and uneven end of a kernel that all cores share."""
    cache_share: float
    """Part of the last cache that a step can count on."""
    packing_passes: float
    """The number of times that a product moves its weights before it computes: packing reads and writes them."""
    kept_passes: float
    """Memory traffic for each byte of a value that is kept for the backward pass: one read, and a write that partly
    hides behind arithmetic."""

    @property
    def cache_speed(self) -> float:
        """Bytes that the last cache delivers in the time of one from memory."""
        return self.cache_gb_per_s / self.memory_gb_per_s

    @property
    def product_flop_per_byte(self) -> float:
        """FLOP of a product in the time of a byte of memory traffic."""
        return self.product_gflop_per_s / self.memory_gb_per_s

    @property
    def other_flop_per_byte(self) -> float:
        """FLOP of any other kernel in that time."""
        return self.other_gflop_per_s / self.memory_gb_per_s

    @property
    def launch_bytes(self) -> float:
        """Bytes of memory traffic in the time of a launch."""
        return self.launch_us * self.memory_gb_per_s * 1e3
