"""`make fuzz-api`: requests drawn from the API's description, on a real API process.

`python -m tests.thorough.requests --cases 20000 --seed 1 --database sqlite`. Ends with 1 for any 5xx, an answer that
the description does not have, fewer requests than were asked for, a 99th percentile over 2 s, or 64 MiB more memory.
"""

from __future__ import annotations

import argparse
import contextlib
import sys

from tests.service.postgres import running_postgres
from tests.thorough.requests.campaign import shown
from tests.thorough.requests.play import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.thorough.requests", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    asked = parser.parse_args()
    print(f"seed {asked.seed}, {asked.database}", flush=True)
    with contextlib.ExitStack() as stack:
        url = None
        if asked.database == "postgresql":
            url = stack.enter_context(running_postgres()).make_database()
        findings = play(asked.cases, asked.seed, url)
    print(shown(findings))
    return 0 if findings.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
