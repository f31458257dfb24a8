"""The way kernels read and write tensors: one affine index per dimension; and the common accesses."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.graph import TensorType


@dataclass(frozen=True, slots=True)
class Affine:
    """`offset + sum(coefficient * axis)` over iteration axes; `terms` holds (axis, coefficient), coefficient != 0."""

    terms: tuple[tuple[int, int], ...] = ()
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Access:
    """The access to an operand at an iteration point, for reading or writing: one `Affine` per dimension of
    `type.shape`.

    `fill`: None means every index is in bounds by construction; a number means that a point outside the tensor reads
    that number (padding, concatenation). Writes are never filled.
    """

    type: TensorType
    index: tuple[Affine, ...]
    fill: float | None = None


ZERO = Affine()


def axis(position: int, *, scale: int = 1, offset: int = 0) -> Affine:
    """`scale * axis + offset`."""
    return Affine(((position, scale),) if scale else (), offset)


def identity(tensor: TensorType) -> Access:
    """Element i of the tensor at point i."""
    return Access(tensor, tuple(axis(i) for i in range(len(tensor.shape))))


def broadcast(tensor: TensorType, shape: tuple[int, ...]) -> Access:
    """Reads `tensor` as if NumPy had broadcast it to `shape`; unit dimensions do not move."""
    lead = len(shape) - len(tensor.shape)
    index = tuple(ZERO if extent == 1 else axis(lead + position) for position, extent in enumerate(tensor.shape))
    return Access(tensor, index)


def per_row(tensor: TensorType) -> Access:
    """A flat tensor of one element per row of a `RowSpec`."""
    return Access(TensorType(tensor.dtype, (tensor.size,)), (axis(0),))


def row_matrix(tensor: TensorType, rows: int, width: int) -> Access:
    """A tensor seen as [rows, width], read over both axes of a `RowSpec`."""
    return Access(TensorType(tensor.dtype, (rows, width)), (axis(0), axis(1)))
