"""Many more stories of `story_machine.py`: `python -m tests.service.story_campaign --examples 500 [--steps 60]`.

On SQLite and PostgreSQL in turn; prints what happened in them. A story that breaks an invariant is printed, as short as
it can be made, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from service.store.database.schema import migrate
from tests.service.farms import TestFarm, open_test_farm
from tests.service.postgres import running_postgres
from tests.service.story_machine import Story

TARGETS = ("x86-64-v3", "raspberry-pi-4")


def play(farm: TestFarm, *, examples: int, steps: int, derandomize: bool = True) -> Counter[str]:
    """Run the machine on a farm; what happened. A failure is raised with the shortest story that fails."""
    seen: Counter[str] = Counter()
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=derandomize,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    run_state_machine_as_test(telling(farm, seen), settings=chosen)
    return seen


def telling(farm: TestFarm, seen: Counter[str]) -> type[Story]:
    """The machine for a farm; it counts what happens."""
    built = {target: farm.bundle(target.encode(), target=target) for target in TARGETS}
    return type("Story", (Story,), {"farm": farm, "built": built, "seen": seen})


@contextlib.contextmanager
def database_of(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty migrated database."""
    if kind == "sqlite":
        url = f"sqlite:///{folder / 'farm.db'}"
        migrate(url)
        yield url
        return
    with running_postgres() as server:
        url = server.make_database()
        migrate(url)
        yield url


def main() -> int:
    """Exit code 1 if a story breaks an invariant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=300)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    for kind in ("sqlite", "postgresql"):
        with tempfile.TemporaryDirectory() as folder, database_of(kind, Path(folder)) as url:
            began = time.monotonic()
            with open_test_farm(Path(folder) / "state", url) as farm:
                seen = play(farm, examples=options.examples, steps=options.steps, derandomize=False)
            took_s = time.monotonic() - began
            print(f"{kind}: {options.examples} stories of at most {options.steps} steps in {took_s:.0f} s, all exact")
            for what, count in sorted(seen.items()):
                print(f"  {count:7,}  {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
