"""Additional needs of pooling on a grid beside its operands: the gradient of a maximum, the places of all maxima."""

from __future__ import annotations

from compiler.element_types import SCRATCH
from compiler.kernels.spec import PoolSpec
from compiler.targets import GridTarget


def workspace_bytes(spec: PoolSpec, target: GridTarget, threads: int) -> int:
    """A place for each element of y, as a number."""
    return SCRATCH.item_bytes * spec.n * spec.oh * spec.ow * spec.c if spec.kind == "max_grad" else 0
