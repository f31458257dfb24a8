"""What people call parts of a model: paths of modules, globs over them, and the names nearest to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from fnmatch import fnmatchcase

WILD = frozenset("*?[")
_MOST = 200
"""Characters of a name that is looked up among others."""


def module_of(name: str) -> str:
    """The module that a weight belongs to, as `peft` calls it; a name of another kind stands for itself."""
    return name.removesuffix(".weight")


def matches(name: str, target: str) -> bool:
    """Whether a target means a parameter: its name, its module's path, or the end of either after a dot."""
    return any(
        one == target or fnmatchcase(one, target) or fnmatchcase(one, f"*.{target}") for one in (name, module_of(name))
    )


def near_names(given: str, known: Iterable[str]) -> str:
    """`did you mean a, b?` of the nearest names, each once; empty if none is near."""
    near = difflib.get_close_matches(given[:_MOST], list(dict.fromkeys(known)), n=3, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else ""
