"""`python -m tests.load [PART ...] [--database KIND] [--resume]`: figures, their limits, and which are kept."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from tests.load.farm import Kind, loaded_farm
from tests.load.parts import BOARDS, ONLY, PARTS, SECONDS, Figure

FEW = 8
KEPT = Path("build/load.jsonl")
"""A line for each part that has run: `--resume` goes by it."""
TABLE = Path("build/load.md")
FRESH_S = 86400.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a part gave."""

    kind: Kind
    part: str
    figures: list[Figure]
    load: float
    """Of the machine, a minute's mean as the part ended."""
    at: float


def main(arguments: Sequence[str]) -> int:
    """Run the parts; 1 if a limit is broken."""
    chosen, began = _parse(arguments), time.monotonic()
    KEPT.parent.mkdir(exist_ok=True)
    before = {(one.kind, one.part): one for one in _kept()} if chosen.resume else {}
    outcomes = []
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before", flush=True)
    for kind, part in _wanted(chosen):
        outcome = before.get((kind, part)) or _run(kind, part, chosen)
        outcomes.append(outcome)
        for figure in outcome.figures:
            print(_line(outcome, figure), flush=True)
    TABLE.write_text(_table(outcomes))
    broken = sum(not figure.is_kept for one in outcomes for figure in one.figures)
    minutes = (time.monotonic() - began) / 60
    print(f"{broken or 'no'} limit{'' if broken == 1 else 's'} broken, in {minutes:.1f} minutes; the table: {TABLE}")
    return 1 if broken else 0


def _wanted(chosen: argparse.Namespace) -> Iterator[tuple[Kind, str]]:
    kinds: tuple[Kind, ...] = (chosen.database,) if chosen.database else get_args(Kind)
    for kind in reversed(kinds):
        for part in chosen.parts or PARTS:
            if kind in ONLY.get(part, (kind,)):
                yield kind, part


def _run(kind: Kind, part: str, chosen: argparse.Namespace) -> Outcome:
    seconds = chosen.seconds or SECONDS[part]
    try:
        with loaded_farm(kind, boards=chosen.boards or BOARDS.get(part, FEW)) as farm:
            figures = asyncio.run(PARTS[part](farm, seconds, chosen.results))
    except Exception as error:  # a part that cannot be played is told of, and the others are played
        figures = [Figure(f"{part} could not be played", 1, "", 0, f"{error!r:.500}")]
    outcome = Outcome(kind, part, figures, os.getloadavg()[0], time.time())
    with KEPT.open("a") as file:
        file.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
    return outcome


def _kept() -> Iterator[Outcome]:
    """Parts of the last day, later ones last."""
    for line in KEPT.read_text().splitlines() if KEPT.exists() else ():
        said = json.loads(line)
        if time.time() - said["at"] < FRESH_S:
            yield Outcome(**said | {"figures": [Figure(**figure) for figure in said["figures"]]})


def _limit(figure: Figure) -> str:
    return "" if figure.limit is None else f"{figure.limit:g}"


def _verdict(figure: Figure) -> str:
    return "" if figure.limit is None else "kept" if figure.is_kept else "BROKEN"


def _line(outcome: Outcome, figure: Figure) -> str:
    return (
        f"{outcome.kind:10} {figure.what:58} {figure.value:10.2f} {figure.unit:7} {_limit(figure):>5} "
        f"{_verdict(figure):6} {figure.note}; load {outcome.load:.1f}"
    )


def _table(outcomes: Sequence[Outcome]) -> str:
    head = "| database | figure | value | limit | | how | load |\n|---|---|---|---|---|---|---|\n"
    return head + "".join(
        f"| {one.kind} | {figure.what} | {figure.value:,.2f} {figure.unit} | {_limit(figure)} | {_verdict(figure)} | "
        f"{figure.note} | {one.load:.1f} |\n"
        for one in outcomes
        for figure in one.figures
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.load", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=0.0, help="of each part, in place of its own")
    parser.add_argument("--database", choices=get_args(Kind), help="only this one")
    parser.add_argument("--boards", type=int, default=0, help="agents, in place of each part's own number")
    parser.add_argument("--results", type=int, default=1_000_000, help="of the part `million`")
    parser.add_argument("--resume", action="store_true", help="leave out what was played within a day")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
