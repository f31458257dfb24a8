"""Fuses element-wise work into its neighbours, so that intermediate tensors are never written.

Rewrites: a map is merged into the maps, reductions and row kernels that read it; then what is left of it becomes the
epilogue of the contraction, reduction or row kernel that feeds it. Requires: calls in dependency order.
Ensures: the same values; calls stay in dependency order. Why: traffic; the machine's balance is about 12 FLOP a byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from compiler.fusion.epilogues import NO_EPILOGUE, CanHold, fuse_epilogue, output_extents
from compiler.fusion.maps import SMALL_ELEMENTS, fuse_into_reader
from compiler.kernels.affine import is_identity
from compiler.kernels.expressions import Ref, work
from compiler.kernels.spec import MapSpec, ReduceSpec, RowSpec, compared_with_stats
from compiler.program.program import KernelCall, Program
from compiler.rewriting.passes import Declined, PassResult, Reason
from compiler.values import Value

MAX_RECOMPUTED_WORK = 40
MAX_READERS_RECOMPUTED = 4
MAX_ROW_WORK = 8

KEPT = Reason("reader.kept", "a value that nothing outside the program needs")
NOT_WHOLE = Reason("reader.not_whole", "one result, written whole and in order")
COMPARED = Reason("reader.compared", "a value that its reader does not compare with a statistic of it")
RECOMPUTED = Reason(
    "reader.recomputed", f"one reader; or few that all can compute it anew, in {MAX_RECOMPUTED_WORK} operations at most"
)
TOO_MUCH_WORK = Reason("reader.work", "less arithmetic than computing it anew at each point of a larger reader")
OVERWRITTEN = Reason("reader.overwrites", "a reader that does not overwrite what the value is computed from")
SHARED = Reason(
    "epilogue.shared", "a first result that this call alone reads, before anything else that is made with it"
)


@dataclass(slots=True)
class CallGraph:
    """Calls with who makes and who reads each root value; rebuilt after a sweep of fusions."""

    program: Program
    retained: frozenset[Value]
    """Root values that must stay in memory."""
    calls: list[KernelCall | None]
    makers: dict[Value, int] = field(default_factory=dict)
    readers: dict[Value, list[int]] = field(default_factory=dict)
    overwriters: dict[Value, int] = field(default_factory=dict)
    """Root value -> the call that overwrites it in place."""
    declined: list[Declined] = field(default_factory=list)
    apart: dict[Value, tuple[KernelCall, Reason | None]] = field(default_factory=dict)
    """Root value -> who makes it, and what `_kept_apart` said of that, for as long as its readers stay as they are."""
    efforts: dict[int, tuple[KernelCall, int]] = field(default_factory=dict)
    """Position -> the map that was there, and its operations."""

    @classmethod
    def of(cls, program: Program) -> CallGraph:
        """Indexes the calls."""
        graph = cls(program, program.retained, list(program.calls))
        for position, call in enumerate(program.calls):
            for name in call.outputs:
                if program.root(name) == name:
                    graph.makers[name] = position
                else:
                    graph.overwriters[program.root(name)] = position
            for root in dict.fromkeys(program.root(name) for name in call.inputs):
                graph.readers.setdefault(root, []).append(position)
        return graph

    def reads_of(self, call: KernelCall, root: Value) -> frozenset[int]:
        """Operand positions of a call that read a root value."""
        return frozenset(i for i, name in enumerate(call.inputs) if self.program.root(name) == root)

    def fuse(self, position: int, fused: KernelCall) -> None:
        """The call there is another now."""
        for name in self.program.calls[position].inputs:
            self.apart.pop(self.program.root(name), None)
        self.calls[position] = fused

    def effort(self, root: Value, producer: KernelCall) -> int:
        """Operations of each point of the map that makes a value."""
        position = self.makers[root]
        cached = self.efforts.get(position)
        if cached is None or cached[0] is not producer:
            assert isinstance(producer.spec, MapSpec)
            cached = self.efforts[position] = (producer, work(producer.spec.exprs[0]))
        return cached[1]

    def is_private(self, root: Value) -> bool:
        """Whether nothing outside the calls needs the value."""
        return root not in self.retained

    def result(self) -> PassResult[Program]:
        """The program of the calls as they are now, less those whose results nothing needs any more."""
        program = _without_dead(replace(self.program, calls=tuple(call for call in self.calls if call is not None)))
        return PassResult(program, program.calls != self.program.calls, tuple(self.declined))


def _without_dead(program: Program) -> Program:
    needed = set(program.retained)
    alive = []
    for call in reversed(program.calls):
        if any(program.root(name) in needed for name in call.outputs):
            alive.append(call)
            needed.update(program.root(name) for name in call.inputs)
    return replace(program, calls=tuple(reversed(alive))).trimmed()


# ----------------------------------------------------------------------------------------------- producer into reader


def fuse_readers(program: Program) -> PassResult[Program]:
    """Runs one sweep that merges each map into the maps, reductions and row kernels that read it."""
    graph = CallGraph.of(program)
    for position, call in enumerate(graph.calls):
        if call is None or not isinstance(call.spec, MapSpec | ReduceSpec | RowSpec):
            continue
        for root in dict.fromkeys(graph.program.root(name) for name in call.inputs):
            producer = graph.calls[graph.makers[root]] if root in graph.makers else None
            if producer is None or not isinstance(producer.spec, MapSpec):
                continue
            fused = _merged(graph, producer, call, root)
            if isinstance(fused, Reason):
                graph.declined.append(fused.at(call.layer))
            else:
                call = fused
                graph.fuse(position, fused)
    return graph.result()


def _merged(graph: CallGraph, producer: KernelCall, call: KernelCall, root: Value) -> KernelCall | Reason:
    """The call with the map that makes `root` inside."""
    cached = graph.apart.get(root)
    if cached is None or cached[0] is not producer:
        cached = graph.apart[root] = (producer, _kept_apart(graph, producer, root))
    reason = cached[1]
    if reason is None and not _worthwhile(graph.effort(root, producer), producer, call):
        reason = TOO_MUCH_WORK
    if reason is None and (_reads_own_update(graph, producer, call) or _closes_circle(graph, producer, call)):
        reason = OVERWRITTEN
    return reason or fuse_into_reader(producer, call, graph.reads_of(call, root))


def _kept_apart(graph: CallGraph, producer: KernelCall, root: Value) -> Reason | None:
    """Why the readers of a value may not recompute it instead of reading it."""
    spec = producer.spec
    assert isinstance(spec, MapSpec)
    if not graph.is_private(root):
        return KEPT
    if len(spec.outputs) != 1 or not is_identity(spec.outputs[0], spec.extents):
        return NOT_WHOLE
    readers = [graph.calls[i] for i in graph.readers.get(root, [])]
    if not isinstance(spec.exprs[0], Ref) and any(_compares(graph, reader, root) for reader in readers):
        return COMPARED
    if len(readers) == 1:
        return None
    fusible = all(reader is not None and isinstance(reader.spec, MapSpec | ReduceSpec | RowSpec) for reader in readers)
    big = [access for access in spec.inputs if access.type.size > SMALL_ELEMENTS]
    cheap = graph.effort(root, producer) <= MAX_RECOMPUTED_WORK and len(big) <= 1
    return None if fusible and cheap and len(readers) <= MAX_READERS_RECOMPUTED else RECOMPUTED


def _compares(graph: CallGraph, reader: KernelCall | None, root: Value) -> bool:
    """Whether a reader compares the value with a statistic of it: computed twice, the two may differ by a rounding."""
    if reader is None or not isinstance(reader.spec, RowSpec):
        return False
    return not compared_with_stats(reader.spec).isdisjoint(graph.reads_of(reader, root))


def _worthwhile(effort: int, producer: KernelCall, reader: KernelCall) -> bool:
    """A row kernel evaluates its inputs once per stage, and a broadcast read once per point."""
    assert isinstance(producer.spec, MapSpec)
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
    overwritten = {graph.program.root(name) for name in reader.outputs if graph.program.root(name) != name}
    return any(graph.program.root(name) in overwritten for name in producer.inputs)


def _closes_circle(graph: CallGraph, producer: KernelCall, reader: KernelCall) -> bool:
    """Two updates that each read what the other overwrites have no order: of w = a b, d_a reads b and d_b reads a."""
    root = graph.program.root
    overwritten = {root(name) for name in reader.outputs if root(name) != name}
    pending = (
        [graph.overwriters[operand] for operand in map(root, producer.inputs) if operand in graph.overwriters]
        if overwritten
        else []
    )
    visited: set[int] = set()
    while pending:
        position = pending.pop()
        later = graph.calls[position]
        if later is None or later is reader or position in visited:
            continue
        visited.add(position)
        read = {root(name) for name in later.inputs}
        if read & overwritten:
            return True
        pending += [graph.overwriters[operand] for operand in read if operand in graph.overwriters]
    return False


# -------------------------------------------------------------------------------------------- consumer into epilogue


def fuse_epilogues(program: Program, *, can_hold: CanHold) -> PassResult[Program]:
    """Runs one sweep that makes what is left of element-wise work the epilogue of the kernel that makes its operand."""
    graph = CallGraph.of(program)
    used_positions: set[int] = set()
    for position, call in enumerate(graph.calls):
        if call is None or not isinstance(call.spec, MapSpec) or position in used_positions:
            continue
        if any(graph.program.root(name) != name for name in call.outputs):
            continue
        roots = {graph.program.root(name) for name in call.inputs}
        makers = sorted((graph.makers[root], root) for root in roots if root in graph.makers)
        for maker, root in reversed(makers):
            producer = graph.calls[maker]
            if producer is None or maker in used_positions:
                continue
            alone = _feeds_only(graph, root, position, producer)
            fused = fuse_epilogue(producer, call, graph.reads_of(call, root), can_hold) if alone else SHARED
            if isinstance(fused, KernelCall):
                graph.calls[position], graph.calls[maker] = fused, None
                used_positions |= {position, maker}
                break
            if fused != NO_EPILOGUE and output_extents(producer.spec) is not None:
                graph.declined.append(fused.at(call.layer))
    return graph.result()


def _feeds_only(graph: CallGraph, root: Value, position: int, producer: KernelCall) -> bool:
    """Whether the call at `position` alone reads `root`, and the producer (with all it makes) may move there."""
    if graph.readers.get(root, []) != [position] or not graph.is_private(root) or producer.outputs[0] != root:
        return False
    others = (graph.program.root(name) for name in producer.outputs[1:])
    return all(reader > position for name in others for reader in graph.readers.get(name, []))
