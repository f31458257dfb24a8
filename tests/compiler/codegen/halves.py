"""Specs of products in sixteen bits, or in eight."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from compiler.kernels.spec import MatmulSpec
from compiler.program.halves import Held, holding


def multiplied(products: Literal["bf16", "f16", "i8"], spec: MatmulSpec, held: Held) -> MatmulSpec:
    """The spec with operands held as given, multiplied in sixteen bits, or in eight."""
    changed = holding(spec, held)
    assert isinstance(changed, MatmulSpec)
    return replace(changed, products=products)
