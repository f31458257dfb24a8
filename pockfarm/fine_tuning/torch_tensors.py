"""Tensors of PyTorch that stand for arrays."""

from __future__ import annotations

from typing import Any

import torch


def like(tensor: Any, array: Any) -> Any:
    """A tensor with an array's elements, where another one is and of its type."""
    return torch.from_numpy(array).to(tensor)
