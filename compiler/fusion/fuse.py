"""Fuses element-wise work into its neighbours, so that intermediate tensors are never written.

Rewrites: a map is merged into the maps, reductions and row kernels that read it; then what is left of it becomes the
epilogue of the contraction, reduction or row kernel that feeds it. Requires: calls in dependency order.
Ensures: the same values; calls stay in dependency order. Why: traffic; the machine's balance is about 12 FLOP a byte.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from compiler.fusion.epilogues import fuse_epilogue
from compiler.fusion.maps import SMALL_ELEMENTS, fuse_into_reader
from compiler.fusion.sums import merge_sums
from compiler.fusion.updates import fuse_updates
from compiler.kernels.affine import is_identity
from compiler.kernels.spec import MapSpec, ReduceSpec, Ref, RowSpec
from compiler.kernels.substitution import compared_with_stats, work
from compiler.program.lowering import Lowered
from compiler.program.program import KernelCall
from compiler.values import Value

MAX_RECOMPUTED_WORK = 40
MAX_READERS_RECOMPUTED = 4
MAX_ROW_WORK = 8


@dataclass(slots=True)
class CallGraph:
    """Calls with who makes and who reads each root value; rebuilt after a sweep of fusions."""

    lowered: Lowered
    kept: frozenset[Value]
    calls: list[KernelCall | None]
    makers: dict[Value, int]
    readers: dict[Value, list[int]]

    @classmethod
    def of(cls, lowered: Lowered, kept: Collection[Value]) -> CallGraph:
        """Index the calls; values in `kept` must stay in memory."""
        roots = frozenset(lowered.root(value) for value in kept)
        graph = cls(lowered, roots, list(lowered.calls), {}, {})
        for position, call in enumerate(lowered.calls):
            for name in call.outputs:
                if lowered.root(name) == name:
                    graph.makers[name] = position
            for root in dict.fromkeys(lowered.root(name) for name in call.inputs):
                graph.readers.setdefault(root, []).append(position)
        return graph

    def reads_of(self, call: KernelCall, root: Value) -> frozenset[int]:
        """Operand positions of a call that read a root value."""
        return frozenset(i for i, name in enumerate(call.inputs) if self.lowered.root(name) == root)

    def is_private(self, root: Value) -> bool:
        """True if nothing outside the calls needs the value."""
        return root not in self.kept


def fuse(lowered: Lowered, kept: Collection[Value]) -> Lowered:
    """The calls after all fusions; `kept` are values that something outside reads (outputs, state)."""
    for fusion in (_fuse_readers, _fuse_epilogues, _fuse_readers, _fuse_epilogues):
        while True:
            calls = _drop_dead(fusion(CallGraph.of(lowered, kept)), lowered, kept)
            if calls == lowered.calls:
                break
            lowered = replace(lowered, calls=calls)
    return fuse_updates(merge_sums(lowered), kept)


def _drop_dead(calls: tuple[KernelCall, ...], lowered: Lowered, kept: Collection[Value]) -> tuple[KernelCall, ...]:
    needed = {lowered.root(value) for value in kept}
    alive = []
    for call in reversed(calls):
        if any(lowered.root(name) in needed for name in call.outputs):
            alive.append(call)
            needed.update(lowered.root(name) for name in call.inputs)
    return tuple(reversed(alive))


# ----------------------------------------------------------------------------------------------- producer into reader


def _fuse_readers(graph: CallGraph) -> tuple[KernelCall, ...]:
    for position, call in enumerate(graph.calls):
        if call is None or not isinstance(call.spec, MapSpec | ReduceSpec | RowSpec):
            continue
        for root in dict.fromkeys(graph.lowered.root(name) for name in call.inputs):
            producer = _mergeable_producer(graph, root)
            if producer is None or not _worthwhile(producer, call):
                continue
            fused = fuse_into_reader(producer, call, graph.reads_of(call, root))
            if fused is not None and not _reads_own_update(graph, producer, call):
                call = graph.calls[position] = fused
    return tuple(call for call in graph.calls if call is not None)


def _mergeable_producer(graph: CallGraph, root: Value) -> KernelCall | None:
    """The map that makes a value, if all its readers may recompute it instead of reading it."""
    producer = graph.calls[graph.makers[root]] if root in graph.makers else None
    if producer is None or not graph.is_private(root) or not isinstance(producer.spec, MapSpec):
        return None
    spec = producer.spec
    if len(spec.outputs) != 1 or not is_identity(spec.outputs[0], spec.extents):
        return None
    readers = [graph.calls[i] for i in graph.readers.get(root, [])]
    if not isinstance(spec.exprs[0], Ref) and any(_compares(graph, reader, root) for reader in readers):
        return None
    if len(readers) == 1:
        return producer
    fusible = all(reader is not None and isinstance(reader.spec, MapSpec | ReduceSpec | RowSpec) for reader in readers)
    big = [access for access in spec.inputs if access.type.size > SMALL_ELEMENTS]
    cheap = work(spec.exprs[0]) <= MAX_RECOMPUTED_WORK and len(big) <= 1
    return producer if fusible and cheap and len(readers) <= MAX_READERS_RECOMPUTED else None


def _compares(graph: CallGraph, reader: KernelCall | None, root: Value) -> bool:
    """Whether a reader compares the value with a statistic of it: computed twice, the two may differ by a rounding."""
    if reader is None or not isinstance(reader.spec, RowSpec):
        return False
    return not compared_with_stats(reader.spec).isdisjoint(graph.reads_of(reader, root))


def _worthwhile(producer: KernelCall, reader: KernelCall) -> bool:
    """A row kernel evaluates its inputs once per stage, and a broadcast read once per point."""
    assert isinstance(producer.spec, MapSpec)
    effort = work(producer.spec.exprs[0])
    if isinstance(reader.spec, RowSpec):
        return effort <= MAX_ROW_WORK
    points = reader.spec.extents if isinstance(reader.spec, MapSpec | ReduceSpec) else ()
    return effort <= MAX_ROW_WORK or _size(points) <= _size(producer.spec.extents)


def _size(extents: tuple[int, ...]) -> int:
    total = 1
    for extent in extents:
        total *= extent
    return total


def _reads_own_update(graph: CallGraph, producer: KernelCall, reader: KernelCall) -> bool:
    """An in-place update may read what it overwrites only at the very point it writes."""
    written = {graph.lowered.root(name) for name in reader.outputs if graph.lowered.root(name) != name}
    return any(graph.lowered.root(name) in written for name in producer.inputs)


# -------------------------------------------------------------------------------------------- consumer into epilogue


def _fuse_epilogues(graph: CallGraph) -> tuple[KernelCall, ...]:
    taken: set[int] = set()
    for position, call in enumerate(graph.calls):
        if call is None or not isinstance(call.spec, MapSpec) or position in taken:
            continue
        if any(graph.lowered.root(name) != name for name in call.outputs):
            continue
        roots = {graph.lowered.root(name) for name in call.inputs}
        makers = sorted((graph.makers[root], root) for root in roots if root in graph.makers)
        for maker, root in reversed(makers):
            producer = graph.calls[maker]
            if producer is None or maker in taken or not _feeds_only(graph, root, position, producer):
                continue
            fused = fuse_epilogue(producer, call, graph.reads_of(call, root))
            if fused is not None:
                graph.calls[position], graph.calls[maker] = fused, None
                taken |= {position, maker}
                break
    return tuple(call for call in graph.calls if call is not None)


def _feeds_only(graph: CallGraph, root: Value, position: int, producer: KernelCall) -> bool:
    """True if the call at `position` alone reads `root`, and the producer (with all it makes) may move there."""
    if graph.readers.get(root, []) != [position] or not graph.is_private(root) or producer.outputs[0] != root:
        return False
    others = (graph.lowered.root(name) for name in producer.outputs[1:])
    return all(reader > position for name in others for reader in graph.readers.get(name, []))
