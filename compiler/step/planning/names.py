"""The names of a model that plans and specs speak of, and which of them a pattern means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice

from compiler.errors import CompileError
from compiler.graph import Graph
from compiler.naming import Comparisons

_SEPARATORS = re.compile(r"[./]")
_DEEPEST = 32
"""Levels of modules that a plan can speak of."""


class Named:
    """A model as the rules of one plan speak of it; `compared` counts for all of them."""

    def __init__(self, graph: Graph, error: type[CompileError]) -> None:
        self.graph, self.compared = graph, Comparisons(error)

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """Returns every parameter that a plan may name, and its kind."""
        return every_name(self.graph)

    @cached_property
    def below(self) -> Mapping[str, Sequence[str]]:
        """Module -> the parameters below it."""
        parameters: dict[str, list[str]] = {}
        for name in self.kinds:
            for path in module_paths(name):
                parameters.setdefault(path, []).append(name)
        return parameters

    def of_kind(self, names: Iterable[str], kind: str) -> list[str]:
        """Returns those names that a rule of this kind means."""
        return [name for name in names if kind in ("any", self.kinds[name])]


def every_name(graph: Graph) -> dict[str, str]:
    """Returns every parameter that a plan may name, and its kind; of one that the file does not hold, only its name
    tells.
    """
    kinds: dict[str, str] = {name: parameter.kind for name, parameter in graph.named_parameters().items()}
    others = {name: "bias" if name.endswith("bias") else "weight" for name in graph.unlearnable if name not in kinds}
    return kinds | others


def module_paths(name: str) -> list[str]:
    """The modules that a parameter lies in, from the outermost: `a`, `a.b` of `a.b.weight`."""
    return [name[: match.start()] for match in islice(_SEPARATORS.finditer(name), _DEEPEST) if match.start()]
