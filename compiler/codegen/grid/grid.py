"""Writing kernels for a grid: launches, their operands, shared memory and barriers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm.ir import PointerType, PrimType

from compiler.codegen.grid.halves import in_bits
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Buffer, Operands, PrimFunc, Value, element_of
from compiler.errors import InternalError
from compiler.kernels.spec import KernelSpec

GLOBAL, SHARED = "global", "shared"
_DEVICE_KERNEL = 2
"""TVM's calling convention of what a device runs."""


@dataclass(frozen=True)
class Function:
    """The function that every item of a launch runs, as TIR; it takes all operands of the kernel, in order."""

    body: PrimFunc
    parameters: tuple[str, ...]
    """Names of the operands as the text has them."""
    groups: int
    items: int
    shared_bytes: int


@dataclass
class Here:
    """The block that the statements of one launch go to, and the items and groups that run them."""

    block: Block
    """The function's outermost block: every item runs what is written there."""
    operands: Operands
    group: Value
    """Number of the group, from 0; int32."""
    item: Value
    """Number of the item in its group, from 0; int32."""
    items: int
    """Items of a group."""
    shared_bytes: int = 0
    _reserved: list[Any] = field(default_factory=list)

    def shared(self, elements: int, element: str = "float32", name: str = "shared") -> Buffer:
        """An array that the group's items share; its elements start as anything."""
        buffer = tirx.decl_buffer((elements,), element, name=name, scope=SHARED)
        self._reserved.append(tirx.AllocBuffer(buffer))
        self.shared_bytes += elements * tirx_bytes(element)
        return buffer

    def barrier(self, block: Block) -> None:
        """Waits for the group's other items, so that the item sees what they wrote to shared memory.

        Every item must come by here equally often: never inside a branch or loop that items take differently.
        """
        block.add(tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", SHARED)))

    @property
    def number(self) -> Value:
        """Number of the item among all of the launch; int32."""
        return self.group * tir.index(self.items) + self.item


def tirx_bytes(element: str) -> int:
    """Size of a TIR element type."""
    return 1 if element in ("bool", "uint8", "int8") else int(element.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8


class Grid:
    """The launches of one kernel, written one after the other."""

    def __init__(self, spec: KernelSpec, workspace_bytes: int = 0) -> None:
        self.spec, self.workspace_bytes = spec, workspace_bytes
        self.functions: list[Function] = []

    def launch(self, groups: int, items: int, write: Callable[[Here], None]) -> None:
        """Adds a launch of `groups` groups of `items` items, whose function `write` writes.

        Raises: InternalError if there is nothing to launch.
        """
        if groups < 1 or items < 1:
            raise InternalError(f"a launch of {groups} groups of {items} items")
        operands = in_bits(tir.declare(self.spec, self.workspace_bytes))
        group, item = _number("blockIdx.x"), _number("threadIdx.x")
        here = Here(Block(), operands, group.var, item.var, items)
        write(here)
        buffers = operands.all
        pointers = [
            tirx.Var(f"p_{buffer.name}", PointerType(PrimType(element_of(buffer)), GLOBAL)) for buffer in buffers
        ]
        statements = [*here._reserved, here.block.statement()]
        statement = statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)
        for number, extent in ((item, items), (group, groups)):
            statement = tirx.AttrStmt(number, "thread_extent", tir.index(extent), statement)
        declared = [tirx.DeclBuffer(buffer, data=pointer) for buffer, pointer in zip(buffers, pointers, strict=True)]
        body = tirx.PrimFunc(pointers, tirx.SeqStmt([*declared, statement]))
        names = tuple(str(pointer.name) for pointer in pointers)
        self.functions.append(Function(body, names, groups, items, here.shared_bytes))

    def each(self, count: int, items: int, write: Callable[[Here, Block, Value], None]) -> None:
        """A launch in which each of `count` items has its own number, from 0: `write(here, block, number)`."""

        def all_items(here: Here) -> None:
            number = here.block.let(here.number, "number")
            if count % items == 0:
                write(here, here.block, number)
            else:
                here.block.when(tirx.LT(number, tir.index(count)), lambda inner: write(here, inner, number))

        self.launch(-(-count // items), items, all_items)


def _number(tag: str) -> Any:
    return tirx.IterVar(None, tirx.Var(tag, "int32"), tirx.IterVar.ThreadIndex, tag)


def device_function(function: Function, name: str, device: Any) -> PrimFunc:
    """A launch's function under its own name, marked for TVM's code generator of a device."""
    marks = {"global_symbol": name, "calling_conv": _DEVICE_KERNEL, "tirx.is_global_func": True, "target": device}
    return function.body.with_attr(marks)
