"""Attention for a grid: its launches."""

from __future__ import annotations

from compiler.codegen.grid.attention.backward import KeyGradients, launch_deltas, write_d_q, write_deltas
from compiler.codegen.grid.attention.forward import Forward
from compiler.codegen.grid.attention.plan import cut_for, goes_through_scores, workspace_bytes
from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.supported import require_supported
from compiler.kernels.spec import AttentionSpec
from compiler.targets import GridTarget


def emit(spec: AttentionSpec, target: GridTarget, threads: int) -> Grid:
    """Attention or its gradient. Raises: BuildError for scores in sixteen bits."""
    require_supported(spec)
    grid = Grid(spec, workspace_bytes(spec, target, threads))
    if spec.kind == "forward":
        cut = cut_for(target, positions=spec.queries, widths=(spec.value_width,))
        groups = spec.batch * spec.heads * -(-spec.queries // cut.block)
        grid.launch(groups, cut.items, lambda here: Forward(spec, cut, here).write())
        return grid
    if goes_through_scores(spec):
        grid.launch(*launch_deltas(spec), lambda here: write_deltas(spec, here))
    if spec.wanted[0]:
        cut = cut_for(target, positions=spec.queries, widths=(spec.width,))
        groups = spec.batch * spec.heads * -(-spec.queries // cut.block)
        grid.launch(groups, cut.items, lambda here: write_d_q(spec, cut, here, here.operands.outputs[0]))
    if spec.wanted[1] or spec.wanted[2]:
        _launch_of_keys(grid, spec, target)
    return grid


def _launch_of_keys(grid: Grid, spec: AttentionSpec, target: GridTarget) -> None:
    """d_k and d_v, as far as they are wanted."""
    sizes = zip(spec.wanted[1:], (spec.width, spec.value_width), strict=True)
    cut = cut_for(target, positions=spec.keys, widths=tuple(width for wanted, width in sizes if wanted))

    def write(here: Here) -> None:
        outputs = iter(here.operands.outputs)
        _, d_k, d_v = (next(outputs) if wanted else None for wanted in spec.wanted)
        KeyGradients(spec, cut, here, d_k, d_v).write()

    grid.launch(spec.batch * spec.groups * -(-spec.keys // cut.block), cut.items, write)
