"""`make mutations`: 10,000 changes to whatever is signed, from enrolments to bundles; none may be accepted.

Each door gets its share, each field of what it opens as many as any other. Afterwards the good message is accepted, so
that the door was not just shut, and an assignment a second time is not.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutations.doors import ACCEPTED, Door, doors

SHARES = {
    "assignment": 0.25,
    "enrolment": 0.05,
    "report": 0.25,
    "receipt": 0.2,
    "key list": 0.1,
    "offer": 0.05,
    "bundle": 0.05,
    "bundle file": 0.05,
}


@dataclass
class Tally:
    """What came of one door's mutations."""

    name: str
    strata: set[str] = field(default_factory=set)
    answers: Counter[str] = field(default_factory=Counter)
    accepted: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Mutations that really changed something."""
        return sum(self.answers.values())


def is_same(one: bytes, other: bytes) -> bool:
    """Whether two messages say the same, letter by letter and type by type."""
    if one == other:
        return True
    try:
        return repr(json.loads(one)) == repr(json.loads(other)) and one.count(b'":') == other.count(b'":')
    except (ValueError, RecursionError):
        return False


def try_door(door: Door, count: int, seed: int) -> Tally:
    """`count` changed messages, each drawn by the seed and its number."""
    tally, number = Tally(door.name), 0
    while tally.count < count:
        mutation = door.mutations[number % len(door.mutations)]
        data = mutation.make(random.Random(f"{seed} {door.name} {number}"))
        number += 1
        if is_same(data, door.good):
            continue
        answer = door.open(data)
        tally.strata.add(mutation.stratum)
        tally.answers[answer] += 1
        if answer == ACCEPTED:
            tally.accepted.append(f"{mutation.stratum} (number {number - 1})")
    return tally


def is_open(door: Door) -> list[str]:
    """What is wrong with the door itself: the good message is refused, or an assignment is taken twice."""
    wrong = [] if door.open(door.good) == ACCEPTED else [f"{door.name}: the good one is refused"]
    if door.name == "assignment" and door.open(door.good) != "envelope.replayed":
        wrong.append("assignment: it is taken a second time")
    return wrong


def run(count: int, seed: int) -> tuple[list[Tally], list[str]]:
    """The campaign; what was found of each door, and what is wrong."""
    with tempfile.TemporaryDirectory() as folder, doors(Path(folder)) as opened:
        tallies = [try_door(door, max(1, round(count * SHARES[door.name])), seed) for door in opened]
        wrong = [line for door in opened for line in is_open(door)]
    return tallies, wrong + [f"{tally.name}: accepted {one}" for tally in tallies for one in tally.accepted]


def main() -> int:
    """The command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    tallies, wrong = run(options.mutations, options.seed)
    for tally in tallies:
        told = ", ".join(f"{answer} {count:,}" for answer, count in tally.answers.most_common(6))
        print(f"{tally.name:11} {tally.count:6,} mutations of {len(tally.strata):4} kinds and places; refused: {told}")
    print(
        f"{sum(tally.count for tally in tallies):,} mutations, {sum(len(tally.accepted) for tally in tallies)} accepted"
    )
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
