"""Names of tensors that several modules share: the first one, as `module.named_parameters()` has it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from compiler.frontend.source import SourceModel
from compiler.frontend.torch_record import TorchRecord


def with_first_names(source: SourceModel, record: TorchRecord) -> tuple[SourceModel, TorchRecord]:
    """Shared tensors under the first of their names, as `module.named_parameters()` has them.

    The exporter calls them by the last. The first shows where a layer of PyTorch's own reads a tensor of another
    module, while no call names the one that the layer must have itself.
    """
    called = {record.targets[name] for node in source.nodes for name in node.call.arguments if name in record.targets}
    uncalled = record.parameters - called
    order = {target: position for position, target in enumerate(record.targets.values())}
    first: dict[str, str] = {}
    for node in source.nodes:
        for name in node.call.arguments if node.module_class.startswith("torch.nn.modules.") else ():
            target = record.targets.get(name, "")
            own = f"{node.module}.{target.rpartition('.')[2]}"
            if own in uncalled and target in record.parameters:
                first[target] = min(own, first.get(target, target), key=order.__getitem__)
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
