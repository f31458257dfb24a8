"""Code of a later release: this code with the migrations of `later_migrations/`. Here (the fixture `newer_code`), or in
a process of its own:

    python -m tests.service.newer_code MODULE ARGUMENTS...
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from service.store.database import schema

TODAY = schema.known_revisions()[1]
"""The newest revision without those."""
LATER = ("9001", "9002")
VERSIONS = (*schema.VERSIONS, Path(__file__).parent / "later_migrations")


def become_newer() -> None:
    """Make this process one of a later release."""
    schema.VERSIONS = VERSIONS


if __name__ == "__main__":
    become_newer()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
