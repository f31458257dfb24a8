"""The one explicit table of which plan and which emitter each kernel family has. Loads no TVM.

A *plan* module says what a kernel does in which tiles, blocks and workspaces, and which schedules are worth measuring:
plain arithmetic that every process may ask. An *emitter* writes the TIR after that plan; it imports TVM, so the table
names it and only worker processes load it (`emit_kernel`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from compiler.codegen.attention import plan as attention
from compiler.codegen.choice import DEFAULT, Choice
from compiler.codegen.conv import plan as conv
from compiler.codegen.depthwise import plan as depthwise
from compiler.codegen.elements import plan as elements
from compiler.codegen.gather import plan as gather
from compiler.codegen.grid import elements_plan as grid_elements
from compiler.codegen.grid import gather_plan as grid_gather
from compiler.codegen.grid import no_scratch
from compiler.codegen.grid import norm_grad_plan as grid_norm_grad
from compiler.codegen.grid import pool_plan as grid_pool
from compiler.codegen.grid import reduce_plan as grid_reduce
from compiler.codegen.grid import resample_plan as grid_resample
from compiler.codegen.grid.attention import plan as grid_attention
from compiler.codegen.grid.contraction import plan as grid_contraction
from compiler.codegen.grid.depthwise import plan as grid_depthwise
from compiler.codegen.grid.recurrence import plan as grid_recurrence
from compiler.codegen.map import plan as maps
from compiler.codegen.matmul import plan as matmul
from compiler.codegen.norm_grad import plan as norm_grad
from compiler.codegen.pool import plan as pool
from compiler.codegen.recurrence import plan as recurrence
from compiler.codegen.reduce import plan as reduce
from compiler.codegen.resample import plan as resample
from compiler.codegen.row import plan as row
from compiler.codegen.scan import plan as scan
from compiler.codegen.select import plan as select
from compiler.element_types import ELEMENT_TYPES, REAL
from compiler.errors import BuildError, InternalError
from compiler.kernels.expressions import Expr
from compiler.kernels.movement import ElementsSpec, ResampleSpec, ScanSpec, SelectSpec
from compiler.kernels.spec import (
    CONTRACTIONS,
    AttentionSpec,
    ConvSpec,
    DepthwiseSpec,
    GatherSpec,
    KernelSpec,
    MapSpec,
    MatmulSpec,
    NormGradSpec,
    PoolSpec,
    RecurrenceSpec,
    ReduceSpec,
    RowSpec,
)
from compiler.targets import CpuTarget, Target


class Plan(Protocol):
    """The interface of every plan module (`spec` is of its own family)."""

    def workspace_bytes(self, spec: Any, target: Any, threads: int) -> int:
        """Bytes of scratch that the kernel takes as its last operand; 0 if it takes none."""


@runtime_checkable
class TunablePlan(Protocol):
    """The interface of a plan module whose kernels can be scheduled in several ways."""

    def choices(self, spec: Any, target: Any, threads: int) -> tuple[Choice, ...]:
        """The ways worth measuring; the first is the default."""

    def workspace_bytes(self, spec: Any, target: Any, threads: int, choice: Choice | None = None) -> int:
        """Bytes of scratch of the kernel scheduled by `choice`."""


@runtime_checkable
class FrugalPlan(Protocol):
    """The interface of a plan module whose kernels can run with less scratch, and slower."""

    def frugal(self, spec: Any, target: Any, threads: int) -> Choice:
        """The schedule of least scratch; the default if no other takes less."""


@runtime_checkable
class TiledPlan(Protocol):
    """The interface of a plan module whose epilogues are unrolled, so that not every expression is worth having
    there.
    """

    def can_hold(self, spec: Any, expr: Expr, target: Any) -> bool:
        """Whether `expr`, applied to what the kernel writes today, may be done in it."""


@runtime_checkable
class UpdatingPlan(Protocol):
    """The interface of a plan module whose kernels, if they make a gradient, can apply an optimizer's update to it."""

    def can_update(self, spec: Any, target: Any) -> bool:
        """Whether the kernel of a gradient may read and write the weight and its state instead."""


class Emitter(Protocol):
    """The interface of every emitting module. `choice` is given where the family's plan offers several."""

    def emit(self, spec: Any, target: Any, threads: int, choice: Choice | None = None) -> object:
        """The kernel as what the target's compiler takes: a TIR `PrimFunc`, or a `Grid` of them."""


@dataclass(frozen=True, slots=True)
class Family:
    """A kernel family: a plan module, and the name of the module that emits."""

    plan: Plan
    emitter: str


VECTORS: Mapping[type, Family] = {
    MapSpec: Family(maps, "compiler.codegen.map.emit"),
    ReduceSpec: Family(reduce, "compiler.codegen.reduce.emit"),
    RowSpec: Family(row, "compiler.codegen.row.emit"),
    MatmulSpec: Family(matmul, "compiler.codegen.matmul.emit"),
    ConvSpec: Family(conv, "compiler.codegen.conv.emit"),
    DepthwiseSpec: Family(depthwise, "compiler.codegen.depthwise.emit"),
    PoolSpec: Family(pool, "compiler.codegen.pool.emit"),
    GatherSpec: Family(gather, "compiler.codegen.gather.emit"),
    AttentionSpec: Family(attention, "compiler.codegen.attention.emit"),
    NormGradSpec: Family(norm_grad, "compiler.codegen.norm_grad.emit"),
    RecurrenceSpec: Family(recurrence, "compiler.codegen.recurrence.emit"),
    ElementsSpec: Family(elements, "compiler.codegen.elements.emit"),
    ResampleSpec: Family(resample, "compiler.codegen.resample.emit"),
    ScanSpec: Family(scan, "compiler.codegen.scan.emit"),
    SelectSpec: Family(select, "compiler.codegen.select.emit"),
}
"""The families for a CPU: TIR over vectors, whose loops threads share."""

GRID: Mapping[type, Family] = {
    MapSpec: Family(no_scratch, "compiler.codegen.grid.map"),
    MatmulSpec: Family(grid_contraction, "compiler.codegen.grid.contraction.emit"),
    ConvSpec: Family(grid_contraction, "compiler.codegen.grid.contraction.emit"),
    GatherSpec: Family(grid_gather, "compiler.codegen.grid.gather"),
    ElementsSpec: Family(grid_elements, "compiler.codegen.grid.elements"),
    ResampleSpec: Family(grid_resample, "compiler.codegen.grid.resample"),
    ScanSpec: Family(no_scratch, "compiler.codegen.grid.scan"),
    SelectSpec: Family(no_scratch, "compiler.codegen.grid.select"),
    AttentionSpec: Family(grid_attention, "compiler.codegen.grid.attention.emit"),
    RecurrenceSpec: Family(grid_recurrence, "compiler.codegen.grid.recurrence.emit"),
    ReduceSpec: Family(grid_reduce, "compiler.codegen.grid.reduce"),
    RowSpec: Family(no_scratch, "compiler.codegen.grid.row"),
    NormGradSpec: Family(grid_norm_grad, "compiler.codegen.grid.norm_grad"),
    DepthwiseSpec: Family(grid_depthwise, "compiler.codegen.grid.depthwise.emit"),
    PoolSpec: Family(grid_pool, "compiler.codegen.grid.pool"),
}
"""The families for devices that run groups of items: TIR of one item."""

FAMILIES: Mapping[str, Mapping[type, Family]] = {"cpu": VECTORS, "opencl": GRID, "cuda": GRID}
"""The kernel families by the kind of the target."""


def choices_of(spec: KernelSpec, target: Target, threads: int) -> tuple[Choice, ...]:
    """The ways to schedule `spec` that are worth measuring, `DEFAULT` first, each once."""
    plan = _family(spec, target).plan
    if not isinstance(plan, TunablePlan):
        return (DEFAULT,)
    return tuple(dict.fromkeys((DEFAULT, *plan.choices(spec, target, threads)[1:])))


def frugal_choice(spec: KernelSpec, target: Target, threads: int) -> Choice:
    """The schedule of `spec` that takes least scratch; `DEFAULT` if no other takes less."""
    plan = _family(spec, target).plan
    return plan.frugal(spec, target, threads) if isinstance(plan, FrugalPlan) else DEFAULT


def workspace_bytes_of(spec: KernelSpec, target: Target, threads: int, choice: Choice) -> int:
    """Scratch bytes of `spec` scheduled by `choice`. Raises: InternalError if its family offers no choice."""
    plan = _family(spec, target).plan
    if choice == DEFAULT:
        return plan.workspace_bytes(spec, target, threads)
    return _tunable(spec, plan).workspace_bytes(spec, target, threads, choice)


def stored_panel_width(spec: MatmulSpec, target: Target, threads: int) -> int:
    """Columns of the panels in which a B that never changes is stored best; 0: as it is."""
    return matmul.panel_width(spec, target, threads) if isinstance(target, CpuTarget) else 0


def can_hold(spec: KernelSpec, expr: Expr, target: Target) -> bool:
    """Whether a kernel that takes epilogues may also apply `expr` to what it writes today, without being slower."""
    plan = _family(spec, target).plan
    return plan.can_hold(spec, expr, target) if isinstance(plan, TiledPlan) else True


def can_update(spec: KernelSpec, target: Target) -> bool:
    """Whether the kernel that makes a gradient may apply an optimizer's update to it and write the weight instead."""
    plan = _family(spec, target).plan
    return plan.can_update(spec, target) if isinstance(plan, UpdatingPlan) else False


def emit_kernel(spec: KernelSpec, target: Target, threads: int, choice: Choice) -> object:
    """The TIR of `spec` scheduled by `choice` (see `Emitter`); the one place that loads TVM.

    Raises: InternalError if its family offers no choice; BuildError if it would compute in a type that no kernel
    computes in, or multiply in one that the target does not.
    """
    family = _family(spec, target)
    dtype = getattr(spec, "dtype", None)
    if dtype is not None and (ELEMENT_TYPES[dtype].is_half or (isinstance(spec, CONTRACTIONS) and dtype not in REAL)):
        raise BuildError(f"{type(spec).__name__} computes in {', '.join(REAL)}, not in {dtype}", where=str(spec))
    products = getattr(spec, "products", "")
    if products and not target.multiplies(products):
        raise BuildError(
            f"{type(spec).__name__} multiplies in {products}, which {target.name} does not", where=str(spec)
        )
    emitter = cast(Emitter, importlib.import_module(family.emitter))
    if choice == DEFAULT:
        return emitter.emit(spec, target, threads)
    _tunable(spec, family.plan)
    return emitter.emit(spec, target, threads, choice)


def _tunable(spec: KernelSpec, plan: Plan) -> TunablePlan:
    if not isinstance(plan, TunablePlan):
        raise InternalError(f"{type(spec).__name__} kernels are scheduled in one way only")
    return plan


def _family(spec: KernelSpec, target: Target) -> Family:
    """The row of a spec. Raises: InternalError for an unknown family."""
    family = FAMILIES[target.kind].get(type(spec))
    if family is None:
        raise InternalError(f"no kernel family for {type(spec).__name__} on a target of kind {target.kind}")
    return family
