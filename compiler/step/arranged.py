"""The plan's channels side by side, before the loss is attached; a plan of ranges alone leaves the graph as it is."""

from __future__ import annotations

from dataclasses import replace

from compiler.channels.arrange import Arrangement, ChannelRequest, arrange
from compiler.channels.slices import UpdateSlice
from compiler.graph import Graph
from compiler.rewriting.passes import Declined, Step, Trace
from compiler.step.plan import UpdatePlan
from compiler.warnings import CompileWarning, few_of


def with_ranges(graph: Graph, plan: UpdatePlan, trace: Trace | None = None) -> tuple[Graph, UpdatePlan]:
    """The graph in an order in which every slice of the plan is one range, and the plan with these."""
    if not any(part.channels for part in plan.values()):
        return graph, plan
    requests = [ChannelRequest(value, part.axis, _channels(part)) for value, part in plan.items() if not part.is_whole]
    arrangement = arrange(graph, requests)
    if trace is not None:
        notes = tuple(
            Declined("channels.order", graph.name_of(separate.value), separate.reason) for separate in arrangement.alone
        )
        trace.steps.append(Step("forward graph", "arrange_channels", arrangement.graph.nodes != graph.nodes, notes))
    arranged = replace(arrangement.graph, warnings=(*arrangement.graph.warnings, *_warnings(graph, arrangement)))
    return arranged, {value: arrangement.windows.get(value, part) for value, part in plan.items()}


def _channels(part: UpdateSlice) -> tuple[int, ...]:
    return part.channels or tuple(range(part.start, part.start + part.size))


def _warnings(graph: Graph, arrangement: Arrangement) -> list[CompileWarning]:
    """Warns about choices that cost more than their channels: a copy of the whole parameter in every step."""
    reasons: dict[str, list[str]] = {}
    for separate in arrangement.alone:
        reasons.setdefault(separate.reason, []).append(graph.name_of(separate.value))
    hint = "choose the same channels in every layer that reads them, or take the first ones; training is the same"
    return [
        CompileWarning(
            "plan.channels_copied",
            "plan.update",
            f"the channels chosen of {few_of(names)} cannot lie side by side, so every step copies the whole "
            f"parameter: {reason}",
            hint,
        )
        for reason, names in reasons.items()
    ]
