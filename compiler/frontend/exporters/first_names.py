"""Names of tensors that several modules share: the first one, as `module.named_parameters()` has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from compiler.frontend.file.source import SourceModel
from compiler.frontend.file.torch_record import TorchRecord


def with_first_names(source: SourceModel, record: TorchRecord) -> tuple[SourceModel, TorchRecord]:
    """Shared tensors under the first of their names, as `module.named_parameters()` has them.

    The exporter calls them by the last, and writes no tensor for the first, of which no call tells. It shows where the
    file has no tensor for a name that a module must have itself: a layer that reads a tensor of another module, or a
    module whose own layer has one of that name.
    """
    called = {record.targets[name] for node in source.nodes for name in node.call.arguments if name in record.targets}
    folded = {origin for origins in record.folded_from.values() for origin in origins}
    absent = record.parameters - called - folded - source.initializers.keys()
    order = {target: position for position, target in enumerate(record.targets.values())}
    first: dict[str, str] = {}
    for node in source.nodes:
        for name in node.call.arguments:
            target = record.targets.get(name, "")
            layer, _, leaf = target.rpartition(".")
            candidates = [f"{module}.{leaf}".lstrip(".") for module in (node.module, layer.rpartition(".")[0])]
            if target in record.parameters:
                missing = (name for name in candidates if name in absent)
                first[target] = min(*missing, first.get(target, target), target, key=order.__getitem__)
    claims = Counter(first.values())
    first = {target: name for target, name in first.items() if name != target and claims[name] == 1}
    if not first:
        return source, record

    def renamed(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(first.get(name, name) for name in names)

    record = replace(
        record,
        targets={argument: first.get(target, target) for argument, target in record.targets.items()},
        parameters=record.parameters - first.keys() | set(first.values()),
        folded_from={name: renamed(origins) for name, origins in record.folded_from.items()},
    )
    nodes = tuple(replace(node, inputs=renamed(node.inputs)) for node in source.nodes)
    initializers = {first.get(name, name): array for name, array in source.initializers.items()}
    return replace(source, nodes=nodes, initializers=initializers, record=record), record
