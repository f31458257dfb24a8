"""The place where an operand of a product is read: one affine place each along its batch, its own rows or columns, and
its steps.

Forms are what is computed of an axis' index: the element's number in memory, and a position for each dimension that a
point may leave. Each is a sum of three terms, so that all but the steps' is computed once for a tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.codegen.grid.contraction.product import Product
from compiler.codegen.tir.iteration import FlatAccess, flatten_access
from compiler.kernels.access import Access

Form = tuple[int, ...]
"""A coefficient for each axis."""


@dataclass(frozen=True, slots=True)
class Side:
    """A row-major space of axes, with the forms over it; as few axes as these allow."""

    extents: tuple[int, ...]
    forms: tuple[Form, ...]

    @property
    def step(self) -> int:
        """Returns how far apart in memory neighbours along it are; far if there are none."""
        return abs(self.forms[0][-1]) if self.extents else 1 << 31


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a product. A form's value is its offset and its terms of batch, own side and steps.

    `bounds`: the extents which the forms after the first must stay under (and not under 0), else 0 is read. `never`:
    nothing but 0 is read.
    """

    offsets: tuple[int, ...]
    bounds: tuple[int, ...]
    batch: Side
    free: Side
    steps: Side
    never: bool

    @property
    def is_along_steps(self) -> bool:
        """Whether neighbours in memory are neighbours along the steps."""
        return self.steps.step < self.free.step


def left(product: Product) -> Operand | None:
    """A, whose own side are the rows; None if it is ones."""
    return None if product.a is None else _operand(product, product.a, len(product.batch), len(product.rows))


def right(product: Product) -> Operand:
    """B, whose own side are the columns."""
    return _operand(product, product.b, len(product.batch) + len(product.rows), len(product.columns))


def _operand(product: Product, access: Access, first: int, count: int) -> Operand:
    flat = flatten_access(access, product.axes)
    last = len(product.axes)
    spans = ((0, len(product.batch)), (first, first + count), (last - len(product.steps), last))
    batch, free, steps = (joined(product.axes[start:stop], _forms(flat, start, stop)) for start, stop in spans)
    offsets = (flat.offset, *(guard.offset for guard in flat.guards))
    return Operand(offsets, tuple(guard.extent for guard in flat.guards), batch, free, steps, flat.never)


def _forms(access: FlatAccess, start: int, stop: int) -> list[Form]:
    guards = [dict(guard.terms) for guard in access.guards]
    return [access.strides[start:stop], *(tuple(guard.get(i, 0) for i in range(start, stop)) for guard in guards)]


def joined(extents: Sequence[int], forms: Sequence[Form]) -> Side:
    """The side of these axes: without those of one point, neighbours through which all forms run evenly as one."""
    axes = [i for i, extent in enumerate(extents) if extent != 1]
    sizes = [extents[i] for i in axes]
    terms = [[form[i] for form in forms] for i in axes]
    for inner in range(len(axes) - 1, 0, -1):
        if terms[inner - 1] == [term * sizes[inner] for term in terms[inner]]:
            sizes[inner - 1] *= sizes.pop(inner)
            terms[inner - 1] = terms.pop(inner)
    return Side(tuple(sizes), tuple(zip(*terms, strict=True)) if terms else ((),) * len(forms))


__all__ = ["Form", "Operand", "Side", "joined", "left", "right"]
