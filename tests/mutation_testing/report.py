"""The tables of a mutation run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.mutation_testing.drawing import SHARES, part_of
from tests.mutation_testing.mutant import OPERATORS, Mutant

BY_TEST, BY_TEST_ALL, SURVIVED, NO_TEST = "make test", "make test-all alone", "survived", "no test arrives"


@dataclass(frozen=True)
class Result:
    """What became of a mutant."""

    verdict: str
    killer: str = ""
    seconds: float = 0.0


def tables(mutants: Sequence[Mutant], results: Mapping[int, Result]) -> list[str]:
    """By part, by operator, and each mutant that `make test` does not kill."""
    tried = [(mutants[number], result) for number, result in sorted(results.items())]
    left = [f"{result.verdict:20} {mutant.describe()}" for mutant, result in tried if result.verdict != BY_TEST]
    killed = sum(result.verdict == BY_TEST for _, result in tried)
    all_killed = killed + sum(result.verdict == BY_TEST_ALL for _, result in tried)
    return [
        *_table("part", SHARES, tried, part_of),
        "",
        *_table("operator", OPERATORS, tried, lambda mutant: mutant.operator),
        "",
        *left,
        "",
        f"{len(tried)} of {len(mutants)} mutants tried: make test kills {killed} of the {all_killed} "
        f"that make test-all kills ({100 * killed / max(1, all_killed):.0f}%)",
    ]


def _table(
    title: str,
    rows: Sequence[str] | Mapping[str, int],
    tried: Sequence[tuple[Mutant, Result]],
    key: Callable[[Mutant], str],
) -> list[str]:
    verdicts = (BY_TEST, BY_TEST_ALL, SURVIVED, NO_TEST)
    lines = [f"{title:14} {'mutants':>8}" + "".join(f"{verdict:>21}" for verdict in verdicts)]
    for row in rows:
        here = [result.verdict for mutant, result in tried if key(mutant) == row]
        lines.append(f"{row:14} {len(here):8}" + "".join(f"{here.count(verdict):21}" for verdict in verdicts))
    return lines
