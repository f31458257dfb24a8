"""`make chaos`: faults in flight over every part of a farm, and what became of its work.

`python -m tests.thorough.chaos --faults 300 --minutes 60 --seed 1 --database postgresql --log build/chaos.jsonl`.
A log that is there is gone on with: its faults count, and so does what was found then. Ctrl-C ends a session early,
with a verdict. Ends with 1 if anything was lost, doubled, wrong, stuck, or slow to recover, or if there were fewer
faults or points than asked for (points only without `--only`).
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import threading
import time
from pathlib import Path

from tests.thorough.chaos.play import play
from tests.thorough.chaos.verdict import missing, shown

FEWEST_POINTS = 12


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.thorough.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=300, help="confirmed in flight")
    parser.add_argument("--minutes", type=float, default=60.0, help="end sooner")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="postgresql")
    parser.add_argument("--only", default="", help="points whose name and kind hold this text")
    parser.add_argument("--log", type=Path, help="resumable; none by default")
    parser.add_argument("--keep", type=Path, help="copy the logs of all processes there")
    asked = parser.parse_args()
    stopping = threading.Event()

    def end(*_: object) -> None:
        """The first time, come to rest and judge; then at once."""
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    print(f"seed {asked.seed}, {asked.database}, shipped settings", flush=True)
    records, findings = play(
        asked.database,
        faults=asked.faults,
        seconds=60 * asked.minutes,
        rng=random.Random(asked.seed),
        log=asked.log,
        only=asked.only,
        keep=asked.keep,
        stopping=stopping,
        say=lambda line: print(f"{time.strftime('%H:%M:%S')} {line}", flush=True),
    )
    print(shown(records, findings))
    less = missing(records, asked.faults, fewest_points=0 if asked.only else FEWEST_POINTS)
    print("\n".join(f"less than asked: {one}" for one in less) or "all that was asked")
    return 0 if findings.is_good and not less else 1


if __name__ == "__main__":
    sys.exit(main())
