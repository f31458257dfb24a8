"""The parts of the confinement that each level needs, and whether a device's own facts bear out the level that it says.

For agent and farm; standard library only. What each part is and how an agent tries it: docs/isolation.md.
"""

from collections.abc import Mapping

ISOLATION_LEVELS = (
    "nothing",
    "own session, limits, no privileges",
    "and the list of system calls",
    "and namespaces, an empty root",
    "and kernel limits per job",
)
"""Descriptions of what each isolation level adds to those below it, for people."""
ISOLATION_PARTS = (
    (),
    ("no privileges", "no new privileges"),
    ("system calls", "one process"),
    ("own processes", "no network", "empty root", "read-only folder"),
    ("memory and processes",),
)
"""The parts that each level needs, by the names that `isolation` and `isolation_lacks` have for what was tried."""
IN_FORCE, LACKING = ISOLATION_FACTS = ("isolation", "isolation_lacks")
"""Facts of a description and of a report: the parts in force, `, ` between them; those that are not, each with `: ` and
the reason, `; ` between them."""


def missing_parts(level: int, environment: Mapping[str, str]) -> "dict[str, int]":
    """Parts that the level needs and the facts do not tell of, with the level of each, the lowest first.

    Of an agent that tells no parts nothing is missing.
    """
    parts_in_force = environment.get(IN_FORCE)
    if parts_in_force is None:
        return {}
    lacking = {part.partition(": ")[0] for part in environment.get(LACKING, "").split("; ")}
    in_force = set(parts_in_force.split(", ")) - lacking
    needed = {part: at for at, parts in enumerate(ISOLATION_PARTS[: level + 1]) for part in parts}
    return {part: at for part, at in needed.items() if part not in in_force}


def borne_out(level: int, environment: Mapping[str, str]) -> int:
    """The highest level, up to this one, that the facts do not contradict."""
    missing = missing_parts(level, environment)
    return min((at - 1 for at in missing.values()), default=level)
