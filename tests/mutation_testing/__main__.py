"""`python -m tests.mutation_testing`: which of 60 small faults do the tests find? It goes on where it stopped.

A checkout in build/mutation is set up, each mutant's line is probed and `make test-all` runs once, so that it is known
which tests arrive there. Then each mutant is tried alone, first by tests of `make test` that arrive at it, then by the
others, those that took least time first, until one fails. A test counts only if it passes without the mutant.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.kernel_harness.cache import kernel_cache_folder
from tests.mutation_testing.checkout import Checkout
from tests.mutation_testing.drawing import draw
from tests.mutation_testing.mutant import Mutant
from tests.mutation_testing.probes import arriving_tests, place_probes
from tests.mutation_testing.report import BY_TEST, BY_TEST_ALL, NO_TEST, SURVIVED, Result, tables

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "mutation"
MOST_DISMISSED = 5
"""Tests that fail without the mutant too, before a mutant is taken to have survived."""


class Run:
    """A seed's mutants, what is known of the tests, and the results so far, in a folder."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.folder = folder / f"seed-{seed}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.checkout = Checkout.make(ROOT, folder / "checkout")
        self.mutants = self._mutants(seed)
        self._quick = set(self._listed("test"))
        self._results = self.folder / "results.jsonl"

    def record(self) -> None:
        """Once: run everything with probes in the sources. It goes on where it was stopped."""
        if not self._is_recorded.exists():
            self._record()
            self._is_recorded.touch()

    def _record(self) -> None:
        self._arrivals.mkdir(exist_ok=True)
        self.checkout.restore()
        place_probes(self.checkout.root, self.checkout.site_packages, self._arrivals, self.mutants)
        try:
            self.checkout.run_everything(self._outcomes, kernel_cache_folder())
        finally:
            self.checkout.restore()

    def try_all(self, hours: float) -> Iterator[str]:
        """A line for each mutant; stops between two when the time is over."""
        ends_at = time.monotonic() + hours * 3600
        for number, mutant in enumerate(self.mutants):
            if number in self.results() or time.monotonic() > ends_at:
                continue
            begun = time.monotonic()
            verdict, killer = self._verdict(number, mutant)
            result = Result(verdict, killer, round(time.monotonic() - begun, 1))
            with self._results.open("a") as file:
                file.write(json.dumps([number, asdict(result)]) + "\n")
            yield f"{number:3} {result.seconds:7.1f} s  {verdict:20} {mutant.describe()}  {killer}"

    def results(self) -> dict[int, Result]:
        lines = self._results.read_text().splitlines() if self._results.exists() else []
        return {number: Result(**fields) for number, fields in map(json.loads, lines)}

    def _verdict(self, number: int, mutant: Mutant) -> tuple[str, str]:
        seconds = self._seconds()
        arriving = sorted(arriving_tests(self._arrivals, number) & set(seconds), key=lambda test: seconds[test])
        quick = [test for test in arriving if test in self._quick]
        slow = [test for test in arriving if test not in self._quick]
        if killer := self._killer(mutant, quick):
            return BY_TEST, killer
        if killer := self._killer(mutant, slow):
            return BY_TEST_ALL, killer
        return (SURVIVED if arriving else NO_TEST), ""

    def _killer(self, mutant: Mutant, tests: Sequence[str]) -> str:
        """The first of them that fails with the mutant and passes without it; empty if there is none."""
        remaining = list(tests)
        for _ in range(MOST_DISMISSED):
            with self.checkout.changed(mutant):
                if not remaining or self._passes(remaining):
                    return ""
            failed = self._failed()
            if not failed:
                return "no test could be collected"
            if self._passes(failed[:1]):
                return failed[0]
            remaining = [test for test in remaining if test != failed[0]]
        return ""

    def _passes(self, tests: Sequence[str]) -> bool:
        return self.checkout.passes(tests, self.folder / "tests.txt", self.folder / "tried.jsonl")

    def _failed(self) -> list[str]:
        file = self.folder / "tried.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [test for test, outcome, _ in map(json.loads, lines) if outcome == "failed"]

    def _seconds(self) -> dict[str, float]:
        """Of each test that passed with the probes in place."""
        outcomes = [json.loads(line) for line in self._outcomes.read_text().splitlines()]
        failed = {test for test, outcome, _ in outcomes if outcome == "failed"}
        return {test: seconds for test, outcome, seconds in outcomes if outcome == "passed" and test not in failed}

    def _mutants(self, seed: int) -> list[Mutant]:
        file = self.folder / "mutants.json"
        if not file.exists():
            self.checkout.restore()
            file.write_text(json.dumps([asdict(mutant) for mutant in draw(self.checkout.root, seed)], indent=1))
        fields = json.loads(file.read_text())
        return [Mutant(**{**row, "probed_lines": tuple(row["probed_lines"])}) for row in fields]

    def _listed(self, name: str) -> list[str]:
        file = self.folder / f"{name}.txt"
        if not file.exists():
            file.write_text("\n".join(self.checkout.collected()))
        return file.read_text().splitlines()

    @property
    def _is_recorded(self) -> Path:
        """A file that is there once everything has run."""
        return self.folder / "recorded"

    @property
    def _arrivals(self) -> Path:
        return self.folder / "arrivals"

    @property
    def _outcomes(self) -> Path:
        return self.folder / "outcomes.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation_testing")
    parser.add_argument("--seed", type=int, default=37)
    parser.add_argument("--hours", type=float, default=3.0, help="stop after this time, between two mutants")
    parser.add_argument("--only", choices=["record", "tables"], help="one part of it")
    arguments = parser.parse_args()
    run = Run(arguments.seed, FOLDER)
    if arguments.only != "tables":
        run.record()
    if not arguments.only:
        for line in run.try_all(arguments.hours):
            print(line, flush=True)
    print(*tables(run.mutants, run.results()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
