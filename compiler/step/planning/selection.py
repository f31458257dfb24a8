"""Selects by one rule of a plan: names of parameters, those that cannot learn among them.

Choices of the rules with `channels` among the parameters that they let learn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType

from compiler.channels.blocks import Units
from compiler.channels.choose import Chosen, choose
from compiler.channels.coupling import Coupling
from compiler.errors import PlanError
from compiler.graph import Graph
from compiler.naming import near_names
from compiler.spec.channels import Channels
from compiler.spec.rules import UpdateRule
from compiler.step.planning.layers import Layer
from compiler.step.planning.names import Named
from compiler.values import Value
from compiler.warnings import CompileWarning, few_of


@dataclass(frozen=True, slots=True)
class ByChannel:
    """Parameter -> the channels of it that learn, and what was guessed."""

    chosen: Chosen
    warnings: tuple[CompileWarning, ...] = ()


def chosen_by(graph: Graph, rules: Sequence[UpdateRule], deciding: Mapping[str, UpdateRule]) -> ByChannel:
    """Returns the channels that the rules choose of the parameters that they decide; `deciding` is the rule of each
    that learns, by name.

    Raises: PlanError naming the rule whose channels there are not.
    """
    chosen: dict[Value, tuple[int, tuple[int, ...]]] = {}
    warnings: list[CompileWarning] = []
    choosing = [(position, rule) for position, rule in enumerate(rules) if rule.channels is not None]
    units = Units(Coupling(graph)) if choosing else None
    by_rule: dict[int, list[Value]] = {}
    for value, parameter in graph.parameters.items():
        by_rule.setdefault(id(deciding.get(parameter.name)), []).append(value)
    for position, rule in choosing:
        values = by_rule.get(id(rule))
        if values and units is not None and rule.channels is not None:
            where = f"plan.update[{position}]"
            picked = choose(units, rule.channels, values, where)
            chosen |= picked
            if rule.channels.along == "heads" and not units.attentions:
                warnings.append(_heads_assumed(graph, rule.channels, list(picked), where))
    return ByChannel(chosen, tuple(warnings))


def _heads_assumed(graph: Graph, channels: Channels, values: Sequence[Value], where: str) -> CompileWarning:
    names = few_of([graph.name_of(value) for value in values])
    message = f"no attention is known in this model; what has {channels.heads} parts is taken for its heads, in {names}"
    hint = "if these are no heads, say along: output or along: input"
    return CompileWarning("plan.heads_assumed", f"{where}.channels.heads", message, hint)


def selected_by(model: Named, rule: UpdateRule, layers: Sequence[Layer], where: str) -> list[str]:
    """Returns the parameters that a rule selects, each name once.

    Raises: PlanError for a selector that matches nothing, with near names or the number of layers, and above the limit
    on comparisons of all rules together.
    """
    selectors = [(find, getattr(rule, name)) for name, find in SELECTIONS.items() if getattr(rule, name)]
    names = dict.fromkeys(name for find, selector in selectors for name in find(model, rule, selector, layers, where))
    model.compared.add(len(names), where)
    return list(names)


def some_names(graph: Graph) -> str:
    """The first parameters of a model, for messages."""
    return ", ".join(list(graph.named_parameters())[:4])


def _parameters(
    model: Named, rule: UpdateRule, patterns: Sequence[str], layers: Sequence[Layer], where: str
) -> Iterator[str]:
    for pattern in dict.fromkeys(patterns):
        names = model.compared.matching(pattern, model.kinds, where)
        selected = model.of_kind(names, rule.kind)
        if not selected:
            message = _no_match(model.graph, rule, pattern, names)
            raise PlanError(message, where=where, hint=near_parameters(model.graph, pattern))
        yield from selected


def _modules(
    model: Named, rule: UpdateRule, patterns: Sequence[str], layers: Sequence[Layer], where: str
) -> Iterator[str]:
    for pattern in dict.fromkeys(patterns):
        paths = model.compared.matching(pattern, model.below, where)
        names = list(dict.fromkeys(name for path in paths for name in model.below[path]))
        selected = model.of_kind(names, rule.kind)
        if not selected:
            message = f"{len(names)} parameters are below {pattern!r}, none of kind {rule.kind}" if names else ""
            message = message or f"no module is called {pattern!r}"
            raise PlanError(message, where=where, hint=_near_module(model.below, pattern))
        yield from selected


def _layers(
    model: Named, rule: UpdateRule, spans: Sequence[tuple[int, int]], layers: Sequence[Layer], where: str
) -> Iterator[str]:
    count = len(layers)
    numbers: dict[int, None] = {}
    for first, last in dict.fromkeys(spans):
        if not -count <= first <= last < count:
            numbers_text = str(first) if first == last else f"{first}-{last}"
            hint = f"the model has {count} layers, 0 to {count - 1}" if count else "the model has no layer with weights"
            raise PlanError(f"there is no layer {numbers_text}", where=where, hint=hint)
        span = range(first, last + 1) if first >= 0 else [first % count]
        model.compared.add(len(span), where)
        numbers.update(dict.fromkeys(span))
    selected = [name for number in numbers for name in _of_kind(model.graph, layers[number].parameters, rule.kind)]
    if not selected:
        raise PlanError(f"none of these layers has a parameter of kind {rule.kind}", where=where)
    yield from selected


def _last_biases(model: Named, rule: UpdateRule, count: int, layers: Sequence[Layer], where: str) -> Iterator[str]:
    if count > len(layers):
        raise PlanError(f"there are no {count} last layers: the model has {len(layers)}", where=where)
    selected = [name for layer in layers[-count:] for name in _of_kind(model.graph, layer.biases, rule.kind)]
    if not selected:
        raise PlanError(f"none of the last {count} layers has a bias", where=where)
    yield from selected


def _of_kind(graph: Graph, values: Iterable[Value], kind: str) -> list[str]:
    parameters = [graph.parameters[value] for value in values]
    return [parameter.name for parameter in parameters if kind in ("any", parameter.kind)]


def _no_match(graph: Graph, rule: UpdateRule, pattern: str, names: list[str]) -> str:
    if names:
        return f"{pattern!r} matches {len(names)} parameters, none of kind {rule.kind}"
    buffers = [name for name in graph.buffers() if name == pattern or fnmatchcase(name, pattern)]
    if buffers:
        return f"{buffers[0]!r} does not learn: every step updates it, as `batch_norm: train` says"
    return f"no parameter is called {pattern!r}"


def near_parameters(graph: Graph, pattern: str) -> str:
    """A hint for a pattern that matches no parameter."""
    parameters = graph.named_parameters()
    return near_names(pattern, parameters) or f"the model has {len(parameters)} parameters, such as {some_names(graph)}"


def _near_module(modules: Mapping[str, object], pattern: str) -> str:
    some = f"the model has modules such as {', '.join(list(modules)[:4])}" if modules else "no name has a module's path"
    return near_names(pattern, modules) or some


SELECTIONS: Mapping[str, Callable[..., Iterator[str]]] = MappingProxyType(
    {"parameters": _parameters, "modules": _modules, "layers": _layers, "last_biases": _last_biases}
)
"""Selector of a rule (`compiler.spec.rules.SELECTORS`) -> the names that it means."""
