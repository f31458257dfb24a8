"""The slopes of a module's own PyTorch on the bounds of `clamp`: up to 2.13 those inside, from 2.14 on 0.

An exported program names the operator and not its derivative, so that its file is told which of the two it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

SLOPE_INSIDE = "pockfarm.slope_inside"
"""Metadata of an exported graph: the operators whose slope on a bound that is a number is that inside."""
_BOUNDED: Mapping[str, Callable[[Any], Any]] = {
    "aten.clamp": lambda x: torch.clamp(x, 0.0, 1.0) + torch.clamp(x, -1.0, 0.0),
    "aten.clamp_max": lambda x: torch.clamp_max(x, 0.0),
    "aten.clamp_min": lambda x: torch.clamp_min(x, 0.0),
}
"""Functions whose slope at 0 shows the slope that each operator has on its bounds."""


def slopes_inside() -> tuple[str, ...]:
    """Those whose slope on a bound is that inside."""
    return tuple(name for name, bounded in _BOUNDED.items() if _slope_at_zero(bounded) != 0)


def _slope_at_zero(bounded: Callable[[Any], Any]) -> float:
    with torch.enable_grad():
        x = torch.zeros((), requires_grad=True)
        (slope,) = torch.autograd.grad(bounded(x), x)
    return float(slope)
