"""`python -m tests.load [PART ...] [--seconds S] [--database KIND]`: figures, and whether they keep their limits."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from typing import get_args

from tests.load.farm import Kind, LoadedFarm, loaded_farm
from tests.load.parts import BOARDS, ONLY, PARTS, Figure, Part

FEW = 8


def main(arguments: Sequence[str]) -> int:
    chosen = _parse(arguments)
    kinds: tuple[Kind, ...] = (chosen.database,) if chosen.database else get_args(Kind)
    broken = 0
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before; {chosen.seconds:.0f} s a part")
    for kind in kinds:
        for name in chosen.parts or PARTS:
            if kind not in ONLY.get(name, (kind,)):
                continue
            with loaded_farm(kind, boards=chosen.boards or BOARDS.get(name, FEW)) as farm:
                for figure in _run(PARTS[name], farm, chosen.seconds):
                    _show(kind, figure)
                    broken += not figure.is_kept
    print(f"load {os.getloadavg()[0]:.1f} after; {broken or 'no'} limit{'' if broken == 1 else 's'} broken")
    return 1 if broken else 0


def _run(part: Part, farm: LoadedFarm, seconds: float) -> list[Figure]:
    async def play() -> list[Figure]:
        return await part(farm, seconds)

    return asyncio.run(play())


def _show(kind: Kind, figure: Figure) -> None:
    limit = "" if figure.limit is None else f"(limit {figure.limit:g}{'' if figure.is_kept else ': BROKEN'})"
    print(f"{kind:11} {figure.what:60} {figure.value:10.2f} {figure.unit:8} {limit:22} {figure.note}", flush=True)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.load", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=60.0, help="of each part")
    parser.add_argument("--database", choices=get_args(Kind), help="only this one")
    parser.add_argument("--boards", type=int, default=0, help="agents, in place of each part's own number")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
