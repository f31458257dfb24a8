"""What one rule of a plan selects: names of parameters, those that cannot learn among them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate
from itertools import islice
from types import MappingProxyType

from compiler.errors import PlanError
from compiler.graph import Graph
from compiler.naming import near_names
from compiler.spec.rules import UpdateRule
from compiler.step.planning.layers import Layer
from compiler.values import Value

_SEPARATORS = re.compile(r"[./]")
_DEEPEST = 32
"""Levels of modules that a plan can speak of."""


def selected_by(graph: Graph, rule: UpdateRule, layers: Sequence[Layer], where: str) -> list[str]:
    """Raises: PlanError for a selector that matches nothing, with near names or the number of layers."""
    given = [(find, getattr(rule, name)) for name, find in SELECTIONS.items() if getattr(rule, name)]
    return [name for find, selector in given for name in find(graph, rule, selector, layers, where)]


def some_names(graph: Graph) -> str:
    """The first parameters of a model, for messages."""
    return ", ".join(list(graph.named_parameters())[:4])


def every_name(graph: Graph) -> dict[str, str]:
    """Every parameter that a plan may name, and its kind; of one that the file does not hold, only its name tells."""
    kinds: dict[str, str] = {name: parameter.kind for name, parameter in graph.named_parameters().items()}
    others = {name: "bias" if name.endswith("bias") else "weight" for name in graph.unlearnable if name not in kinds}
    return kinds | others


def _parameters(
    graph: Graph, rule: UpdateRule, patterns: Sequence[str], layers: Sequence[Layer], where: str
) -> list[str]:
    every, found = every_name(graph), []
    for pattern in patterns:
        matching = _matcher(pattern)
        names = [name for name in every if name == pattern or matching(name)]
        kept = [name for name in names if rule.kind in ("any", every[name])]
        if not kept:
            raise PlanError(_no_match(graph, rule, pattern, names), where=where, hint=near_parameters(graph, pattern))
        found += kept
    return found


def _modules(graph: Graph, rule: UpdateRule, patterns: Sequence[str], layers: Sequence[Layer], where: str) -> list[str]:
    every = every_name(graph)
    below: dict[str, list[str]] = {}
    for name in every:
        for path in module_paths(name):
            below.setdefault(path, []).append(name)
    found = []
    for pattern in patterns:
        matching = _matcher(pattern)
        names = list(dict.fromkeys(n for path in below if path == pattern or matching(path) for n in below[path]))
        kept = [name for name in names if rule.kind in ("any", every[name])]
        if not kept:
            told = f"{len(names)} parameters are below {pattern!r}, none of kind {rule.kind}" if names else ""
            raise PlanError(told or f"no module is called {pattern!r}", where=where, hint=_near_module(below, pattern))
        found += kept
    return found


def module_paths(name: str) -> list[str]:
    """The modules that a parameter lies in, from the outermost: `a`, `a.b` of `a.b.weight`."""
    return [name[: found.start()] for found in islice(_SEPARATORS.finditer(name), _DEEPEST) if found.start()]


def _layers(
    graph: Graph, rule: UpdateRule, spans: Sequence[tuple[int, int]], layers: Sequence[Layer], where: str
) -> list[str]:
    found, count = [], len(layers)
    for first, last in spans:
        if not -count <= first <= last < count:
            shown = str(first) if first == last else f"{first}-{last}"
            hint = f"the model has {count} layers, 0 to {count - 1}" if count else "the model has no layer with weights"
            raise PlanError(f"there is no layer {shown}", where=where, hint=hint)
        span = range(first, last + 1) if first >= 0 else [first]
        found += [name for number in span for name in _of_kind(graph, layers[number].parameters, rule.kind)]
    if not found:
        raise PlanError(f"none of these layers has a parameter of kind {rule.kind}", where=where)
    return found


def _last_biases(graph: Graph, rule: UpdateRule, count: int, layers: Sequence[Layer], where: str) -> list[str]:
    if count > len(layers):
        raise PlanError(f"there are no {count} last layers: the model has {len(layers)}", where=where)
    found = [name for layer in layers[-count:] for name in _of_kind(graph, layer.biases, rule.kind)]
    if not found:
        raise PlanError(f"none of the last {count} layers has a bias", where=where)
    return found


def _of_kind(graph: Graph, values: Iterable[Value], kind: str) -> list[str]:
    known = [graph.parameters[value] for value in values]
    return [parameter.name for parameter in known if kind in ("any", parameter.kind)]


def _matcher(pattern: str) -> Callable[[str], object]:
    return re.compile(translate(pattern)).match


def _no_match(graph: Graph, rule: UpdateRule, pattern: str, names: list[str]) -> str:
    if names:
        return f"{pattern!r} matches {len(names)} parameters, none of kind {rule.kind}"
    matching = _matcher(pattern)
    buffers = [name for name in graph.buffers() if name == pattern or matching(name)]
    if buffers:
        return f"{buffers[0]!r} does not learn: every step updates it, as `batch_norm: train` says"
    return f"no parameter is called {pattern!r}"


def near_parameters(graph: Graph, pattern: str) -> str:
    """A hint for a pattern that matches no parameter."""
    known = graph.named_parameters()
    return near_names(pattern, known) or f"the model has {len(known)} parameters, such as {some_names(graph)}"


def _near_module(modules: Mapping[str, object], pattern: str) -> str:
    some = f"the model has modules such as {', '.join(list(modules)[:4])}" if modules else "no name has a module's path"
    return near_names(pattern, modules) or some


SELECTIONS: Mapping[str, Callable[..., list[str]]] = MappingProxyType(
    {"parameters": _parameters, "modules": _modules, "layers": _layers, "last_biases": _last_biases}
)
"""Selector of a rule (`compiler.spec.rules.SELECTORS`) -> the names that it means."""
