"""Where a module cuts gradients off by `detach()`: PyTorch's exporter writes an Identity, which its optimizer drops.

The call that reads what was cut off still names it, so the cut is put back in front of that call's node.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from compiler.frontend.exporters.restoration import Restoration, fresh
from compiler.frontend.file.source import SourceNode
from compiler.frontend.file.torch_record import DETACH, UNOPTIMIZED
from compiler.warnings import CompileWarning

_CUT = re.compile(r"detach(_\d+)?")


def restore_cuts(work: Restoration, calls: Sequence[Sequence[int]]) -> None:
    """Put a cut in front of each call that reads one that the file has no node for."""
    produced = {name for node in work.source.nodes for name in (*node.outputs, node.call.result)}
    produced |= work.record.inputs | work.record.targets.keys()
    for positions in calls:
        missing = [name for name in work.source.nodes[positions[0]].call.arguments if name not in produced]
        if missing and all(_CUT.fullmatch(name) for name in missing):
            _restore(work, positions, missing)


def _restore(work: Restoration, positions: Sequence[int], missing: Sequence[str]) -> None:
    nodes = [work.source.nodes[position] for position in positions]
    inner = {name for node in nodes for name in node.outputs}
    provided = {*nodes[0].call.arguments, *inner, *work.source.initializers}
    external = {name for node in nodes for name in node.inputs if name and name not in provided}
    if len(external) != 1 or len(set(missing)) != 1:
        work.warnings.append(
            CompileWarning(
                "model.detached",
                f"node {nodes[0].name!r}",
                f"reads {missing[0]!r}, a detach() that PyTorch's exporter dropped: gradients pass there",
                UNOPTIMIZED,
            )
        )
        return
    (source,) = external
    cut = fresh(work, f"{source}:detach")
    work.cuts.setdefault(positions[0], []).append(
        SourceNode(f"{nodes[0].name} detach", "Identity", (source,), (cut,), {}, nodes[0].module, DETACH)
    )
    for position in positions:
        work.inputs[position] = [cut if name == source else name for name in work.inputs[position]]
