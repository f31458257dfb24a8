"""`python -m tests.onnx_standard.table [PATTERN]`: what became of the standard's cases, by operator."""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from tests.onnx_standard.cases import standard_cases
from tests.onnx_standard.run import Outcome, run

COLUMNS = ("pass", "refused", "wrong", "crashed")


def main() -> int:
    options = _options()
    pattern = re.compile(options.pattern)
    chosen = [case for case in standard_cases() if pattern.search(case.op_type) or pattern.search(case.name)]
    started = time.monotonic()
    outcomes = [run(case) for case in chosen]
    if options.pattern or options.failing:
        _tell(outcomes, failing=options.failing)
    _by_operator(outcomes)
    _totals(outcomes)
    print(f"{len(outcomes)} cases in {time.monotonic() - started:.0f} s")
    return int(any(outcome.kind in ("wrong", "crashed") for outcome in outcomes))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="a regular expression over operators and names of cases")
    parser.add_argument("--failing", action="store_true", help="tell every case that does not pass")
    return parser.parse_args()


def _tell(outcomes: Sequence[Outcome], *, failing: bool) -> None:
    for outcome in outcomes:
        if outcome.kind != "pass" or not failing:
            print(f"{outcome.kind:8} {outcome.case.name}: {outcome.message}")


def _by_operator(outcomes: Sequence[Outcome]) -> None:
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        table[outcome.case.op_type][outcome.kind] += 1
    print(f"{'operator':28}" + "".join(f"{column:>9}" for column in COLUMNS))
    for name, counts in sorted(table.items()):
        print(f"{name:28}" + "".join(f"{counts[column] or '':>9}" for column in COLUMNS))


def _totals(outcomes: Sequence[Outcome]) -> None:
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        group = outcome.case.group or ("counted, function bodies" if outcome.case.is_expanded else "counted")
        table[group][outcome.kind] += 1
    print(f"\n{'group':34}" + "".join(f"{column:>9}" for column in COLUMNS) + "     rate")
    for name, counts in sorted(table.items()):
        rate = counts["pass"] / counts.total()
        print(f"{name:34}" + "".join(f"{counts[column]:>9}" for column in COLUMNS) + f"{rate:>9.1%}")


if __name__ == "__main__":
    raise SystemExit(main())
