"""Checkpoints: named tensors as safetensors bytes, the same bytes for the same tensors."""

from __future__ import annotations

from collections.abc import Mapping

from safetensors.numpy import save

from compiler.graph import Array


def write_checkpoint(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """Serialize contiguous tensors with text metadata. Source: the safetensors format, version 0.4."""
    return bytes(save(dict(sorted(tensors.items())), dict(metadata)))
