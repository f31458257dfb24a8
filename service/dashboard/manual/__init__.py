"""The documentation as a site, as the farm serves it: built beside this file by `make docs`, in every release."""

from __future__ import annotations

from pathlib import Path

SITE = Path(__file__).parent / "site"
FRONT = "index.html"


def is_built() -> bool:
    """Whether this installation has it."""
    return (SITE / FRONT).is_file()
