"""What comparisons on a GPU found, as Markdown: the goals, and every side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from benchmarks.gpu.compare import Comparison, SideFound
from benchmarks.gpu.sides import OURS, SPARSE
from benchmarks.markdown import ratio, table

FASTER, SPARSE_FASTER, MEMORY = 1.0, 1.5, 0.5
"""Times of the fastest other side over ours, of our full step over our sparse one, at least; and our memory over the
least of any other side's, at most."""
READING = """\
Times of PyTorch over ours, of our full step over our sparse one, with 95% intervals over the turns. Ours is from the
start of a step to its loss on the host, each step by itself; PyTorch's the mean of a window of steps that is waited for
once. Both train one batch that lies on the device. *memory*: all that ours allocates (weights, optimizer, arena); the
most that PyTorch's allocator handed out, of the side that needs least."""


def page(comparisons: Sequence[Comparison], notes: Sequence[str] = ()) -> str:
    """Everything that was measured; `notes` say what was not."""
    parts = [_machine(comparisons[-1]), READING, goals(comparisons)]
    parts += [_details(one) for one in comparisons]
    parts += ["\n".join(f"- {note}" for note in notes)] if notes else []
    return "\n\n".join(parts)


def goals(comparisons: Sequence[Comparison]) -> str:
    """A row for each comparison, and whether each goal is met."""
    head = (
        "",
        "ours ms",
        "fastest other",
        "ms",
        "other / ours",
        f"≥ {FASTER:g}x",
        "full / sparse",
        f"≥ {SPARSE_FASTER:g}x",
        "ours MB",
        "least other MB",
        "ours / other",
        f"≤ {MEMORY:g}",
    )
    return table(head, [_goal_row(one) for one in comparisons])


def _goal_row(one: Comparison) -> Sequence[str]:
    mine, sparse, other = one.side(OURS), one.side(SPARSE), one.fastest_other("full")
    faster, less = one.ratio(other, mine), one.ratio(mine, sparse)
    theirs = one.least_bytes_of_others("full")
    memory = mine.device_bytes / theirs if mine and theirs else None
    return (
        f"{one.model} b{one.batch} {one.precision}",
        f"{mine.median_ms:.3f}" if mine else "-",
        other.name if other else "-",
        f"{other.median_ms:.3f}" if other else "-",
        ratio(faster),
        _verdict(faster and faster[0] >= FASTER),
        ratio(less),
        _verdict(less and less[0] >= SPARSE_FASTER),
        _megabytes(mine.device_bytes if mine else None),
        _megabytes(theirs),
        f"{memory:.2f}" if memory else "-",
        _verdict(memory and memory <= MEMORY),
    )


def _verdict(is_met: object) -> str:
    """Nothing where there is nothing to judge."""
    return "-" if is_met is None else "met" if is_met else "**missed**"


def _details(one: Comparison) -> str:
    mine = one.side(OURS)
    head = ("", "median ms", "quartiles", "/ ours", "memory MB", "losses off", "by the clock ms")
    rows = [_detail_row(one, side, mine) for side in one.sides if side.counts]
    failed = [f"- {side.name} is left out: {side.error}" for side in one.sides if not side.counts]
    parts = [f"## {one.model}, batch {one.batch}, {one.precision}", f"{one.finished_at} at commit {one.commit or '-'}."]
    return "\n\n".join([*parts, table(head, rows), *(["\n".join(failed)] if failed else [])])


def _detail_row(one: Comparison, side: SideFound, mine: SideFound | None) -> Sequence[str]:
    low, high = np.percentile([ms for turn in side.rounds_ms for ms in turn], (25, 75))
    return (
        side.name,
        f"{side.median_ms:.3f}",
        f"{low:.3f} to {high:.3f}",
        ratio(one.ratio(side, mine)) if side is not mine else "",
        _megabytes(side.device_bytes),
        "-" if side.loss_error is None else f"{side.loss_error:.1e}",
        f"{float(np.median(side.wall_ms)):.3f}" if side.is_ours else "",
    )


def _megabytes(count: int | None) -> str:
    return f"{count / 1e6:.1f}" if count else "-"


def _machine(one: Comparison) -> str:
    gpu = one.gpu
    libraries = ", ".join(sorted({words for side in one.sides for words in _versions(side.told)}))
    words = f"{gpu.get('accelerator', '-')}, {gpu.get('accelerator_api', '-')}, {gpu.get('compute_capability', '-')}"
    return f"GPU: {words}{'; ' + libraries if libraries else ''}."


def _versions(told: Mapping[str, object]) -> Iterator[str]:
    if told:
        yield f"PyTorch {told['torch']} (CUDA {told['cuda']}, cuDNN {told['cudnn']})"
