"""The names of a model that plans and specs speak of, and which of them a pattern means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from functools import cached_property
from itertools import islice

from compiler.errors import CompileError
from compiler.graph import Graph

MAX_COMPARISONS = 10_000_000
"""Of patterns with names, for all patterns of one document together: about a second."""
_SEPARATORS = re.compile(r"[./]")
_WILD = re.compile(r"[*?\[]")
_DEEPEST = 32
"""Levels of modules that a plan can speak of."""


class Comparisons:
    """How often a document's patterns were compared with a model's names, which is limited: both are a stranger's."""

    def __init__(self, error: type[CompileError]) -> None:
        self.count, self._error = 0, error

    def matching(self, pattern: str, names: Mapping[str, object], where: str) -> list[str]:
        """The names that a name or glob means, in order. Raises: the document's error above `MAX_COMPARISONS`."""
        if not _WILD.search(pattern):
            return [pattern] if pattern in names else []
        self.add(len(names), where)
        matching = re.compile(translate(pattern)).match
        return [name for name in names if name == pattern or matching(name)]

    def any_of(self, patterns: Sequence[str], names: Mapping[str, object], where: str) -> dict[str, None]:
        """The names that any of the patterns means, each once."""
        return dict.fromkeys(name for one in dict.fromkeys(patterns) for name in self.matching(one, names, where))

    def add(self, count: int, where: str) -> None:
        """Count so many more. Raises: the document's error."""
        self.count += count
        if self.count > MAX_COMPARISONS:
            raise self._error(
                f"more than {MAX_COMPARISONS:,} comparisons of patterns with names of this model, which is the limit",
                where=where,
                hint="write fewer patterns with wildcards: one for a module takes the place of one for each of its "
                "parameters, and names without wildcards cost nothing",
            )


class Named:
    """A model as the rules of one plan speak of it; `compared` counts for all of them."""

    def __init__(self, graph: Graph, error: type[CompileError]) -> None:
        self.graph, self.compared = graph, Comparisons(error)

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """Every parameter that a plan may name, and its kind."""
        return every_name(self.graph)

    @cached_property
    def below(self) -> Mapping[str, Sequence[str]]:
        """Module -> the parameters below it."""
        found: dict[str, list[str]] = {}
        for name in self.kinds:
            for path in module_paths(name):
                found.setdefault(path, []).append(name)
        return found

    def of_kind(self, names: Iterable[str], kind: str) -> list[str]:
        """Those that a rule of this kind means."""
        return [name for name in names if kind in ("any", self.kinds[name])]


def every_name(graph: Graph) -> dict[str, str]:
    """Every parameter that a plan may name, and its kind; of one that the file does not hold, only its name tells."""
    kinds: dict[str, str] = {name: parameter.kind for name, parameter in graph.named_parameters().items()}
    others = {name: "bias" if name.endswith("bias") else "weight" for name in graph.unlearnable if name not in kinds}
    return kinds | others


def module_paths(name: str) -> list[str]:
    """The modules that a parameter lies in, from the outermost: `a`, `a.b` of `a.b.weight`."""
    return [name[: found.start()] for found in islice(_SEPARATORS.finditer(name), _DEEPEST) if found.start()]
