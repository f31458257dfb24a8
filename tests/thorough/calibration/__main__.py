"""`make calibrate`: `python -m tests.thorough.calibration [PART ...] [--trials N] [--seed S] [--noises chosen|other]`.

`instruments`: what an agent measures beside what is known (times, memory, throttles, energy). `simulated`: rates of
false alarms and of differences found, on noise of known kinds. `changes`: the same of changes in histories of timed
canaries. `here`: the same with real processes of real binaries on
this machine, of which one repeats its work by a measured amount; it goes on with its log. Ends with 1 if something is
not what `docs/measurement.md` promises.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.thorough.calibration import changes, here, instruments, simulated
from tests.thorough.calibration.rates import Rate

PARTS = ("instruments", "simulated", "changes", "here")


def shown(rates: Iterable[Rate]) -> bool:
    """Print each; whether all are kept."""
    are_kept = True
    for rate in rates:
        share = f"{rate.count:,} of {rate.trials:,} ({rate.count / rate.trials:.1%})"
        least, most = rate.promise.least, rate.promise.most
        limit = f"at least {least:.0%}" if least else f"at most {most:.0%}" if most < 1 else ""
        word = ("kept" if rate.is_kept else "BROKEN") if limit else ""
        print(f"{rate.where:22} {rate.promise.what:48} {share:>20} {limit:>13} {word}", flush=True)
        are_kept = are_kept and rate.is_kept
    return are_kept


def main() -> int:
    """Prints; 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.thorough.calibration", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    parser.add_argument(
        "--trials",
        type=int,
        default=None,
        help="of each rate: 1,000 simulated, 200 histories, 100 here; of each synthetic board: 100",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--noises", choices=("chosen", "other"), default="chosen", help="of the simulation")
    parser.add_argument("--log", type=Path, help="of the trials here: build/calibration-SEED.jsonl")
    asked = parser.parse_args()
    log = asked.log or Path(f"build/calibration-{asked.seed}.jsonl")
    parts, are_kept = asked.parts or PARTS, True
    if "instruments" in parts:
        are_kept = instruments.shown(instruments.checks(asked.trials or 100, seed=asked.seed))
    if "simulated" in parts:
        are_kept = shown(simulated.rates(asked.trials or 1000, seed=asked.seed, noises=asked.noises)) and are_kept
    if "changes" in parts:
        are_kept = shown(changes.rates(asked.trials or 200, seed=asked.seed, noises=asked.noises)) and are_kept
    if "here" in parts:
        are_kept = shown(here.rates(asked.trials or 100, seed=asked.seed, log=log)) and are_kept
    return 0 if are_kept else 1


if __name__ == "__main__":
    sys.exit(main())
