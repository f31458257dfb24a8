"""Names by which people refer to parts of a model: paths of modules, globs over them, and the names nearest to a
misspelt one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase, translate

from compiler.errors import CompileError

MAX_COMPARISONS = 10_000_000
"""The most comparisons of patterns with names, for all patterns of one document together: about a second."""
LONG = 4096
"""Characters of a name times those of a pattern that count as one comparison more."""
WILD = frozenset("*?[")
_MOST = 200
"""Characters of a name that is looked up among others."""


def module_of(name: str) -> str:
    """The module that a weight belongs to, as `peft` calls it; a name of another kind stands for itself."""
    return name.removesuffix(".weight")


def matches(name: str, target: str) -> bool:
    """Whether a target means a parameter: its name, its module's path, or the end of either after a dot."""
    return any(
        candidate == target or fnmatchcase(candidate, target) or fnmatchcase(candidate, f"*.{target}")
        for candidate in (name, module_of(name))
    )


def near_names(name: str, names: Iterable[str]) -> str:
    """`did you mean a, b?` of the nearest names, each once; empty if none is near."""
    near = difflib.get_close_matches(name[:_MOST], list(dict.fromkeys(names)), n=3, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else ""


def cost(pattern: str, names: Collection[str]) -> int:
    """Returns how many comparisons the pattern's with these names count as: long ones take long."""
    return len(names) + sum(map(len, names)) * len(pattern) // LONG


class Comparisons:
    """The number of times that a document's patterns were compared with a model's names, which is limited: both are a
    stranger's.
    """

    def __init__(self, error: type[CompileError]) -> None:
        self.count, self._error = 0, error

    def matching(self, pattern: str, names: Mapping[str, object], where: str) -> list[str]:
        """The names that a name or glob means, in order. Raises: the document's error above `MAX_COMPARISONS`."""
        if WILD.isdisjoint(pattern):
            return [pattern] if pattern in names else []
        self.add(cost(pattern, names), where)
        matching = re.compile(translate(pattern)).match
        return [name for name in names if name == pattern or matching(name)]

    def any_of(self, patterns: Sequence[str], names: Mapping[str, object], where: str) -> dict[str, None]:
        """The names that any of the patterns means, each once."""
        return dict.fromkeys(
            name for pattern in dict.fromkeys(patterns) for name in self.matching(pattern, names, where)
        )

    def add(self, count: int, where: str) -> None:
        """Counts so many more. Raises: the document's error."""
        self.count += count
        if self.count > MAX_COMPARISONS:
            raise self._error(
                f"more than {MAX_COMPARISONS:,} comparisons of patterns with names of this model, which is the limit",
                where=where,
                hint="write fewer patterns with wildcards: one for a module takes the place of one for each of its "
                "parameters, and names without wildcards cost nothing",
            )
