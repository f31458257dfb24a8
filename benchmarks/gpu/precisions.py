"""In what a step computes: what our spec says of it, what PyTorch is told, and how far it may be from float64.

A row that the target refuses is told and left out when the steps are built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Precision:
    """One way to compute. `spec`: the field `precision` of ours."""

    name: str
    spec: Mapping[str, object] = field(default_factory=dict)
    tf32: bool = False
    """Whether PyTorch's products and convolutions are in TF32."""
    autocast: Literal["", "bfloat16", "float16"] = ""
    """What PyTorch's autocast computes in; nothing: it is off."""
    loss: float = 0.0
    """How far losses may be from float64's, relative."""
    smooth: float = 0.0
    """And the gradients of all parameters as one vector. 0: each is held against what PyTorch's float32 is off."""
    kinked: float = 0.0
    """The same where there are kinks (ReLU): rounding takes some inputs to their other side, and the gradient jumps."""

    @property
    def is_exact(self) -> bool:
        """Whether each gradient is as near to float64 as float32 can be."""
        return not self.smooth


PRECISIONS: Mapping[str, Precision] = {
    one.name: one
    for one in (
        Precision("f32", loss=1e-5),
        Precision("tf32", {"products": "tf32"}, tf32=True, loss=5e-3, smooth=0.005, kinked=0.1),
        Precision("f16", {"compute": "f16"}, tf32=True, autocast="float16", loss=5e-3, smooth=0.005, kinked=0.1),
        Precision("bf16", {"compute": "bf16"}, tf32=True, autocast="bfloat16", loss=0.02, smooth=0.03, kinked=0.3),
    )
}
