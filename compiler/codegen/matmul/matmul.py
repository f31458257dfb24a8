"""Matrix products: from a `MatmulSpec` to its plan and choices. The schedule is in `gemm_plan`, the TIR in `gemm`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from compiler.codegen.choice import Choice
from compiler.codegen.matmul.gemm_plan import MatmulPlan, Waiting
from compiler.codegen.tile.gemm_cost import (
    Candidate,
    Core,
    candidate_of,
    cost,
    panel_widths,
    ranked,
    row_block,
)
from compiler.codegen.tile.tiling import columns, slots_of, tile_can_hold
from compiler.codegen.tir.iteration import flatten_access, indexed_axes
from compiler.kernels.expressions import Expr, Ref
from compiler.kernels.spec import MatmulSpec
from compiler.targets import Target

if TYPE_CHECKING:
    from compiler.codegen.tir.tir import PrimFunc

WHOLE_STEPS = 512
"""Longest reduction whose sums stay in registers if they cannot wait in C (measured: as fast as in blocks)."""
_STREAM_STEPS = 384
"""Longest reduction whose tiles are so short that memory, not arithmetic, sets their pace."""
_WORTH_STORING = 0.95
"""Cost of a product with stored panels, as a part of its cost without, above which B is left as it is."""


def choices(spec: MatmulSpec, target: Target, threads: int) -> tuple[Choice, ...]:
    """The schedules that are worth measuring; the first is the default."""
    return tuple(candidate.choice for candidate in _ranked(folded(spec), target, threads))


def folded(spec: MatmulSpec) -> MatmulSpec:
    """The spec with a batch over a shared B made rows of A, where layout and epilogue allow it."""
    if spec.batch == 1 or spec.b_batched or not spec.a_batched or spec.a_transposed:
        return spec
    if 0 in indexed_axes(spec.epilogue) or 1 in indexed_axes(spec.epilogue):
        return spec
    for access in spec.epilogue_inputs:
        strides = flatten_access(access, (spec.batch, spec.m, spec.n)).strides
        if strides[0] != strides[1] * spec.m:
            return spec
    return replace(spec, batch=1, m=spec.batch * spec.m)


def _ranked(spec: MatmulSpec, target: Target, threads: int) -> tuple[Candidate, ...]:
    """Candidates depend on the product alone: one search for all its epilogues.

    Sums that cannot wait in C stay in registers where the reduction is short: waiting elsewhere costs memory traffic.
    """
    product = replace(spec, epilogue=Ref(0), epilogue_inputs=(), extra_outputs=(), sums=False)
    found = ranked(product, Core.of(target), threads)
    if spec.k > WHOLE_STEPS or _waiting(spec) == "output":
        return found
    whole = (one if one.strategy == "split" else replace(one, k_block=spec.k) for one in found)
    return tuple(dict.fromkeys(whole))


def plan(spec: MatmulSpec, target: Target, threads: int, choice: Choice | None = None) -> MatmulPlan:
    """The plan for a (folded) spec: the analytic default, or what `choice` says. Raises: ValueError for nonsense."""
    default = _ranked(spec, target, threads)[0]
    chosen = candidate_of(choice, default) if choice else default
    by_rows = chosen.order == "rows"
    vectors = min(chosen.vectors, -(-spec.n // target.lanes))
    one_pass = by_rows or chosen.strategy == "split"
    k_block = spec.k if by_rows else min(chosen.k_block, spec.k)
    short = by_rows and spec.k <= _STREAM_STEPS
    far = target.l2_bytes // 2
    return MatmulPlan(
        batch=spec.batch,
        m=spec.m,
        n=spec.n,
        k=spec.k,
        rows=min(chosen.rows, spec.m),
        columns=columns(spec.n, vectors, target.lanes, padded=chosen.panels != "direct"),
        slots=slots_of(2.0 * spec.batch * spec.m * spec.n * spec.k, threads),
        strategy=chosen.strategy,
        order=chosen.order,
        panels=chosen.panels,
        k_block=k_block,
        m_block=row_block(Core.of(target), chosen, spec.m),
        waiting="registers" if one_pass or k_block == spec.k else _waiting(spec),
        copies_a=chosen.copies_a and not one_pass,
        streams_a=short and not spec.a_transposed and 4 * spec.m * spec.k > target.l2_bytes,
        streams_b=not one_pass and 4 * spec.k * spec.n > far // 2,
        streams_c=(short or not one_pass) and 4 * spec.m * spec.n > far,
    )


def panel_width(spec: MatmulSpec, target: Target, threads: int) -> int:
    """Columns of the panels in which a B that never changes is stored best; 0: as it is."""
    core = Core.of(target)
    product = replace(folded(spec), epilogue=Ref(0), epilogue_inputs=(), extra_outputs=(), sums=False)
    if spec.sums or spec.b_panel or (product.b_batched and product.batch > 1):
        return 0
    slots = slots_of(2.0 * product.batch * product.m * product.n * product.k, threads)
    stored = [
        replace(product, b_transposed=False, b_batched=False, b_panel=width) for width in panel_widths(product.n, core)
    ]
    costs = {one.b_panel: cost(one, core, slots, ranked(one, core, threads)[0]) for one in (product, *stored)}
    best = min(costs, key=lambda width: (costs[width], -width))
    return best if costs[best] < _WORTH_STORING * costs[0] else 0


def _waiting(spec: MatmulSpec) -> Waiting:
    """Sums may wait in C unless the epilogue reads something that may share its storage."""
    own = spec.batch * spec.m * spec.n
    return "workspace" if any(access.type.size >= own for access in spec.epilogue_inputs) else "output"


def workspace_bytes(spec: MatmulSpec, target: Target, threads: int, choice: Choice | None = None) -> int:
    """Scratch for packed panels, copies and partial sums."""
    spec = folded(spec)
    chosen = plan(spec, target, threads, choice)
    shared = chosen.shared_panel_floats * (spec.batch if spec.b_batched else 1)
    return 4 * (shared + chosen.slots * chosen.slot_floats + chosen.waiting_floats)


def can_hold(spec: MatmulSpec, expr: Expr, target: Target) -> bool:
    """Whether the kernel may also apply `expr` to what it writes today."""
    return tile_can_hold(expr)


def can_update(spec: MatmulSpec, target: Target) -> bool:
    """Whether a weight gradient may become the update itself: its sums stay in registers.

    The sums of longer reductions would wait in memory, as the gradient does, and their arithmetic outweighs the update.
    """
    return spec.batch == 1 and spec.a_transposed and not spec.extra_outputs and spec.k <= WHOLE_STEPS


def emit(spec: MatmulSpec, target: Target, threads: int, choice: Choice | None = None) -> PrimFunc:
    """TIR of a matrix product."""
    from compiler.codegen.matmul.gemm import Gemm
    from compiler.codegen.tir import tir

    operands = tir.declare(spec, workspace_bytes(spec, target, threads, choice))
    body = tir.Block()
    shape = folded(spec)
    Gemm(shape, plan(shape, target, threads, choice), operands, target.lanes).emit(body)
    return tir.finish(spec, operands, body)
