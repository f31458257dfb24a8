"""Building TIR by hand: operands, loops, accesses, and scalar expressions at any vector width.

A kernel is a `PrimFunc` over flat rank-1 buffers. Code is written into a `Block`, statement by statement; every value
is bound to a variable once, so an expression that is used twice is computed once. A *point* says where an iteration
stands: one scalar index per axis and, if `lanes > 1`, the axis along which `lanes` consecutive indices are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from compiler.codegen.symbols import symbol_of
from compiler.codegen.tir import halves
from compiler.codegen.tir.iteration import FlatAccess
from compiler.element_types import SCRATCH
from compiler.errors import InternalError
from compiler.graph import TensorType
from compiler.kernels.alignment import ALIGNMENT_BYTES
from compiler.kernels.spec import KernelSpec
from compiler.program.operands import operand_types

Value = Any
"""A TIR expression (TVM has no type stubs)."""
Buffer = Any
Stmt = Any
PrimFunc = Any

_MOST_ELEMENTS = 2**31 - 1


# ------------------------------------------------------------------------------------------------------------ typing


def base(value: Value) -> str:
    """Element type of a value: `float32`, `int64`, `int32`, `uint8` or `bool`."""
    return str(value.ty.dtype).split("x")[0]


def lanes_of(value: Value) -> int:
    """Vector width of a value, 1 for a scalar."""
    _, _, lanes = str(value.ty.dtype).partition("x")
    return int(lanes or 1)


def dtype(element: str, lanes: int) -> str:
    """TVM's name of a vector type."""
    return element if lanes == 1 else f"{element}x{lanes}"


def literal(value: float, element: str, lanes: int = 1) -> Value:
    """A constant of an element type, in every lane."""
    is_float = element.startswith("float")
    return broadcast(tirx.FloatImm(element, float(value)) if is_float else tirx.IntImm(element, int(value)), lanes)


def broadcast(value: Value, lanes: int) -> Value:
    """A scalar in every lane; a vector of `lanes` stays as it is."""
    have = lanes_of(value)
    if have == lanes:
        return value
    if have != 1:
        raise InternalError(f"cannot broadcast {have} lanes to {lanes}")
    return tirx.Broadcast(value, lanes)


def index(value: int | Value) -> Value:
    """A Python integer as an int32 constant."""
    return tirx.IntImm("int32", value) if isinstance(value, int) else value


# ------------------------------------------------------------------------------------------------------------ blocks


class Block:
    """Statements under construction.

    Loops and branches take a callback that fills their body: `block.loop(n, lambda body, i: ...)`.
    """

    def __init__(self) -> None:
        self._statements: list[Stmt] = []
        self._known: dict[object, tuple[Value, object]] = {}

    def add(self, statement: Stmt) -> None:
        """Appends any TIR statement."""
        self._statements.append(statement)

    def let(self, value: Value, name: str = "v") -> Value:
        """Computes a value once, here, and returns what reads it again; constants and variables are returned as they
        are.

        Scalar integers (indices) become variables. Everything else goes through the stack, of which LLVM makes
        registers: TVM's analyser writes a bound variable out in each of its uses, which is exponential.
        """
        core = value.value if isinstance(value, tirx.Broadcast) else value
        if isinstance(core, tirx.IntImm | tirx.FloatImm) or isinstance(value, tirx.Var):
            return value
        if base(value) == "bool":
            # TVM's analyser fails on bound bool vectors and on casts of them; LLVM folds the detour away.
            as_bytes = self.let(bool_to_byte(value), name)
            return tirx.NE(as_bytes, literal(0, "uint8", lanes_of(value)))
        lanes = lanes_of(value)
        if lanes > 1 or base(value) not in ("int32", "int64"):
            slot = self.local(lanes, base(value), name)
            self.store(slot, 0, value)
            return load(slot, 0, lanes)
        variable = tirx.Var(name, str(value.ty.dtype))
        self.add(tirx.Bind(variable, value))
        return variable

    def bits(self, value: Value, name: str = "bits") -> Value:
        """`let` of a scalar that is to be stored as it is: what looks like half of a real is not widened."""
        slot = self.local(1, base(value), name)
        self.store(slot, 0, value)
        return tirx.BufferLoad(slot, [index(0)])

    def once(self, key: tuple[object, ...], make: Callable[[], Value]) -> Value:
        """`let(make())`, or the variable of an earlier call in this block with an equal key.

        Operands in the key are compared by identity; the block keeps them alive.
        """
        ids = tuple(part if isinstance(part, str | int | float) else id(part) for part in key)
        if ids not in self._known:
            self._known[ids] = (self.let(make()), key)
        return self._known[ids][0]

    def store(self, buffer: Buffer, flat: int | Value, value: Value, stride: int = 1) -> None:
        """Writes a value; a vector goes to `flat, flat + stride, ...`."""
        self.store_at(buffer, _lanes_index(flat, lanes_of(value), stride), value)

    def store_at(self, buffer: Buffer, place: Value, value: Value) -> None:
        """Writes a value, or each element of one at a place of its own, as the buffer stores it."""
        self.add(tirx.BufferStore(buffer, halves.rounded(value, element_of(buffer)), [place]))

    def loop(
        self, extent: int | Value, body: Callable[[Block, Value], None], *, kind: str = "serial", name: str = "i"
    ) -> None:
        """A loop over `[0, extent)`; kind is `serial`, `parallel` or `unrolled`. A loop of one turn is no loop."""
        turns = int(extent.value) if isinstance(extent, tirx.IntImm) else extent
        if isinstance(turns, int) and turns <= 0:
            return
        inner = Block()
        if isinstance(turns, int) and turns == 1:
            body(inner, index(0))
            self.add(inner.statement())
            return
        variable = tirx.Var(name, "int32")
        body(inner, variable)
        kinds = {
            "serial": tirx.ForKind.SERIAL,
            "parallel": tirx.ForKind.PARALLEL,
            "unrolled": tirx.ForKind.UNROLLED,
        }
        self.add(tirx.For(variable, index(0), index(extent), kinds[kind], inner.statement()))

    def when(
        self, condition: Value, then: Callable[[Block], None], otherwise: Callable[[Block], None] | None = None
    ) -> None:
        """A branch on a scalar condition."""
        blocks = [Block()]
        then(blocks[0])
        if otherwise is not None:
            blocks.append(Block())
            otherwise(blocks[1])
        then_case, *else_case = (block.statement() for block in blocks)
        self.add(tirx.IfThenElse(condition, then_case, else_case[0] if else_case else None))

    def local(self, elements: int, element: str = "float32", name: str = "local") -> Buffer:
        """A small array on the stack (LLVM keeps it in registers if every index is constant after unrolling)."""
        buffer = tirx.decl_buffer((elements,), element, name=name, scope="local", data_alignment=ALIGNMENT_BYTES)
        self.add(tirx.AllocBuffer(buffer))
        return buffer

    def in_halves(self, buffer: Buffer, element: str = halves.F16) -> Buffer:
        """A buffer of f32 seen as one of an element of sixteen bits, twice as long."""
        view = tirx.decl_buffer((2 * int(buffer.shape[0]),), element, name="halves", scope=buffer.scope())
        self.add(tirx.DeclBuffer(view, data=tirx.buffer_data(buffer)))
        return view

    def statement(self) -> Stmt:
        """Returns everything appended so far as one statement."""
        if not self._statements:
            return tirx.Evaluate(index(0))
        return self._statements[0] if len(self._statements) == 1 else tirx.SeqStmt(self._statements)


def _lanes_index(flat: int | Value, lanes: int, stride: int) -> Value:
    return index(flat) if lanes == 1 else tirx.Ramp(index(flat), index(stride), lanes)


def divide(block: Block, number: Value, by: int) -> tuple[Value, Value]:
    """(number // by, number % by) of a non-negative int32, both bound."""
    if by == 1:
        return number, index(0)
    quotient = block.let(tirx.truncdiv(number, index(by)), "q")
    return quotient, block.let(number - quotient * by, "m")


def load(buffer: Buffer, flat: int | Value, lanes: int = 1, stride: int = 1) -> Value:
    """Reads `lanes` elements `flat, flat + stride, ...`; stride 0 reads one and puts it in every lane."""
    if stride == 0:
        return broadcast(load_at(buffer, index(flat)), lanes)
    return load_at(buffer, _lanes_index(flat, lanes, stride))


def load_at(buffer: Buffer, place: Value) -> Value:
    """Reads the element at a place, or at each of several, to compute with."""
    return halves.widened(tirx.BufferLoad(buffer, [place]))


def element_of(buffer: Buffer) -> str:
    """TIR's name of what a buffer holds."""
    return str(getattr(buffer.dtype, "dtype", buffer.dtype))


# ---------------------------------------------------------------------------------------------------------- operands


@dataclass(frozen=True)
class Operands:
    """The buffers of a kernel; all flat."""

    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    workspace: Buffer | None

    @property
    def all(self) -> tuple[Buffer, ...]:
        """Returns all buffers in argument order."""
        return self.inputs + self.outputs + (() if self.workspace is None else (self.workspace,))


def declare(spec: KernelSpec, workspace_bytes: int = 0) -> Operands:
    """Buffers for the operands of `spec`, and a workspace of `SCRATCH` elements if `workspace_bytes` is positive.

    Raises: InternalError if a tensor has more elements than a 32-bit index reaches.
    """
    types = operand_types(spec)
    workspace = None
    if workspace_bytes:
        workspace = _argument("ws", TensorType(SCRATCH.name, (-(-workspace_bytes // SCRATCH.item_bytes),)))
    return Operands(
        tuple(_argument(f"in{i}", tensor) for i, tensor in enumerate(types.inputs)),
        tuple(_argument(f"out{i}", tensor) for i, tensor in enumerate(types.outputs)),
        workspace,
    )


def _argument(name: str, tensor: TensorType) -> Buffer:
    if tensor.size > _MOST_ELEMENTS:
        raise InternalError(f"operand {name} {tensor} has more than {_MOST_ELEMENTS} elements")
    return tirx.decl_buffer((max(tensor.size, 1),), tensor.element.tir, name=name, data_alignment=ALIGNMENT_BYTES)


def finish(spec: KernelSpec, operands: Operands, body: Block) -> PrimFunc:
    """The complete function of a kernel. Operands may share storage: nothing is declared free of aliases."""
    function = tirx.PrimFunc(list(operands.all), body.statement()).with_attr("global_symbol", symbol_of(spec))
    is_helped = any(element_of(buffer) in (halves.BF16, halves.F16) for buffer in operands.all)
    is_helped |= getattr(spec, "products", "") == "i8"
    return function.with_attr(halves.HELPED, 1) if is_helped else function


# ---------------------------------------------------------------------------------------------------------- accesses


@dataclass(frozen=True)
class Point:
    """The place where an iteration stands: an index per axis; `lanes` consecutive ones along `vector_axis`."""

    axes: tuple[Value, ...]
    lanes: int = 1
    vector_axis: int = -1

    def at(self, axis: int, value: int | Value) -> Point:
        """Returns the same point with another index along one axis."""
        return replace(self, axes=(*self.axes[:axis], index(value), *self.axes[axis + 1 :]))

    def vector(self, axis: int, lanes: int) -> Point:
        """Returns the same point taken `lanes` wide along `axis`."""
        return replace(self, lanes=lanes, vector_axis=axis)


def linear(offset: int, strides: Sequence[int], axes: Sequence[Value]) -> Value:
    """`offset + sum(stride * axis)` as an int32 scalar."""
    total: Value = None
    for axis, stride in zip(axes, strides, strict=True):
        if stride == 0 or (isinstance(axis, tirx.IntImm) and int(axis.value) == 0):
            continue
        term = axis if stride == 1 else axis * index(stride)
        total = term if total is None else total + term
    if total is None:
        return index(offset)
    return total + index(offset) if offset else total


def read(block: Block, buffer: Buffer, access: FlatAccess, point: Point) -> Value:
    """The elements that an access reads at a point (bool as `bool`), bound in `block`; `fill` where it is outside."""
    if access.never:
        return _fill(access, point.lanes)
    start = linear(access.offset, access.strides, point.axes)
    stride = access.strides[point.vector_axis] if point.lanes > 1 else 1
    if not access.guards:
        return block.let(from_storage(load(buffer, start, point.lanes, stride), access.type), "r")
    scalar, vector = _guard_conditions(access, point)
    if vector is not None:
        lanes = _lanes_index(start, point.lanes, stride) if stride else broadcast(start, point.lanes)
        safe = block.let(tirx.Select(vector, lanes, literal(0, "int32", point.lanes)), "safe")
        inside = tirx.Select(vector, from_storage(load_at(buffer, safe), access.type), _fill(access, point.lanes))
    else:
        inside = from_storage(load(buffer, start, point.lanes, stride), access.type)
    if scalar is not None:
        inside = tirx.if_then_else(scalar, inside, _fill(access, point.lanes))
    return block.let(inside, "r")


def _fill(access: FlatAccess, lanes: int) -> Value:
    return literal(access.fill or 0, access.type.element.tir_value, lanes)


def _guard_conditions(access: FlatAccess, point: Point) -> tuple[Value | None, Value | None]:
    """The guards as one scalar condition and one per lane; None where there is nothing to check."""
    scalar: Value = None
    vector: Value = None
    for guard in access.guards:
        strides = [0] * len(point.axes)
        for axis, coefficient in guard.terms:
            strides[axis] += coefficient
        place = linear(guard.offset, strides, point.axes)
        step = strides[point.vector_axis] if point.lanes > 1 else 0
        if step:
            place = tirx.Ramp(place, index(step), point.lanes)
        lanes = point.lanes if step else 1
        holds = tirx.And(
            tirx.LE(literal(0, "int32", lanes), place), tirx.LT(place, literal(guard.extent, "int32", lanes))
        )
        if step:
            vector = holds if vector is None else tirx.And(vector, holds)
        else:
            scalar = holds if scalar is None else tirx.And(scalar, holds)
    return scalar, vector


def from_storage(raw: Value, tensor: TensorType) -> Value:
    """A loaded element as a value to compute with."""
    return tirx.NE(raw, literal(0, "uint8", lanes_of(raw))) if tensor.dtype == "bool" else raw


def bool_to_byte(value: Value) -> Value:
    """A bool as the byte 0 or 1."""
    lanes = lanes_of(value)
    return tirx.Select(value, literal(1, "uint8", lanes), literal(0, "uint8", lanes))


def to_storage(value: Value, tensor: TensorType) -> Value:
    """A computed value as it is stored (`Block.store` rounds). Raises: InternalError if the types differ."""
    want, have = tensor.element.tir_value, base(value)
    if tensor.dtype == "bool":
        if have != "bool":
            raise InternalError(f"an expression of type {have} is stored to a bool tensor")
        return bool_to_byte(value)
    if want != have:
        raise InternalError(f"an expression of type {have} is stored to a {tensor.dtype} tensor")
    return value


def write(block: Block, buffer: Buffer, access: FlatAccess, point: Point, value: Value) -> None:
    """Stores a value at a point; along the vector axis the access must move (else updates would be lost)."""
    stride = access.strides[point.vector_axis] if point.lanes > 1 else 1
    stored = broadcast(to_storage(value, access.type), point.lanes)
    block.store(buffer, linear(access.offset, access.strides, point.axes), stored, stride)


__all__ = ["Block", "Buffer", "Operands", "Point", "PrimFunc", "Value"]
