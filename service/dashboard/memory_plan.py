"""The memory plan's picture out of a bundle's manifest and compile report (`docs/contracts.md`)."""

from __future__ import annotations

from collections.abc import Mapping

from service.dashboard.charts.arena import ArenaPlan, ArenaValue
from service.dashboard.charts.ways import WayPoint
from service.dashboard.facts import BundleFacts


def arena_plan(bundle: BundleFacts) -> ArenaPlan | None:
    """Returns the plan, or None when the bundle has no arena (built by another compiler version)."""
    arena = bundle.compile_report.get("arena")
    if not isinstance(arena, Mapping):
        return None
    entries = arena.get("values")
    values = tuple(filter(None, map(_value, entries))) if isinstance(entries, list) else ()
    if not values:
        return None
    phases = kernel_phases(bundle)[: _training_calls(bundle)]
    calls = max(len(phases), max(value.last for value in values) + 1)
    return ArenaPlan(
        arena_bytes=_count(arena.get("arena_bytes")) or max(v.offset_bytes + v.size_bytes for v in values),
        values=values,
        phases=phases + ("update",) * (calls - len(phases)),
    )


def kernel_phases(bundle: BundleFacts) -> tuple[str, ...]:
    """Returns the phase of each kernel call of a step: of the training program, then of what other micro-batches
    run.
    """
    kernels = bundle.manifest.get("kernels")
    if not isinstance(kernels, list):
        return ()
    return tuple(str(kernel.get("phase", "forward")) for kernel in kernels if isinstance(kernel, Mapping))


def _training_calls(bundle: BundleFacts) -> int | None:
    """Returns how many of the calls belong to the training program, whose arena the plan shows; None if the report does
    not say.
    """
    return dict(graph_counts(bundle)).get("kernel calls")


def micro_batches(bundle: BundleFacts) -> int:
    """Returns the number of micro-batches of a step."""
    return _count(bundle.manifest.get("micro_batches")) or 1


def planned_bytes(bundle: BundleFacts, name: str) -> int | None:
    """Returns a figure of the manifest's memory summary: `arena_bytes`, `weights_bytes`, `optimizer_bytes`,
    `peak_bytes`.
    """
    memory = bundle.manifest.get("memory")
    return _count(memory.get(name)) if isinstance(memory, Mapping) else None


def ways(bundle: BundleFacts) -> tuple[WayPoint, ...]:
    """Returns the ways to run the step that the compiler considered, by falling memory."""
    entries = bundle.compile_report.get("memory_curve")
    points = tuple(filter(None, map(_way, entries))) if isinstance(entries, list) else ()
    return tuple(sorted(points, key=lambda way: (-way.needed_bytes, way.flops_ratio)))


def _way(entry: object) -> WayPoint | None:
    if not isinstance(entry, Mapping):
        return None
    needed, ratio = _count(entry.get("needed_bytes")), entry.get("flops_ratio")
    if needed is None or isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 1 <= ratio < 1000:
        return None
    return WayPoint(str(entry.get("name", "")), needed, float(ratio), entry.get("taken") is True)


def learning(bundle: BundleFacts) -> tuple[int, int] | None:
    """Returns (parameters that learn, all parameters), counted by element."""
    counts = bundle.manifest.get("parameters")
    if not isinstance(counts, Mapping):
        return None
    trained, total = _count(counts.get("trained")), _count(counts.get("total"))
    return (trained, total) if trained is not None and total else None


def manifest_text(bundle: BundleFacts, name: str) -> str:
    """Returns a plain entry of the manifest (`batch`, `threads`, `loss`, `optimizer`) as text; empty when it has
    none.
    """
    value = bundle.manifest.get(name)
    return str(value) if isinstance(value, str | int | float) else ""


def notes(bundle: BundleFacts) -> tuple[str, ...]:
    """Returns the compiler's notes."""
    entries = bundle.compile_report.get("notes")
    return tuple(str(note) for note in entries) if isinstance(entries, list) else ()


def warnings(bundle: BundleFacts) -> tuple[Mapping[str, object], ...]:
    """Returns the compiler's warnings: `code`, `where`, `message` and `hint` of each."""
    entries = bundle.compile_report.get("warnings")
    return tuple(warning for warning in entries if isinstance(warning, Mapping)) if isinstance(entries, list) else ()


def graph_counts(bundle: BundleFacts) -> tuple[tuple[str, int], ...]:
    """Returns the graph statistics, name and count, as the compiler ordered them."""
    graph = bundle.compile_report.get("graph")
    if not isinstance(graph, Mapping):
        return ()
    return tuple((str(name), value) for name, value in graph.items() if isinstance(value, int))


def _value(entry: object) -> ArenaValue | None:
    if not isinstance(entry, Mapping):
        return None
    fields = [_count(entry.get(name)) for name in ("offset_bytes", "size_bytes", "first", "last")]
    if any(field is None for field in fields):
        return None
    offset, size, first, last = (field or 0 for field in fields)
    return ArenaValue(str(entry.get("name", "")), offset, size, first, max(first, last))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
