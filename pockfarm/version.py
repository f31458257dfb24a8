"""Which release of PockFarm this is. The number is written once, in pyproject.toml."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
NUMBER = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
UNKNOWN = "unknown"


def version() -> str:
    """That of the installed package; of a checkout that is not installed, the one in its pyproject.toml."""
    try:
        return metadata.version("pockfarm")
    except metadata.PackageNotFoundError:
        return _of_checkout(CHECKOUT)


def _of_checkout(root: Path) -> str:
    try:
        found = NUMBER.search((root / "pyproject.toml").read_text())
    except OSError:
        found = None
    return found[1] if found else UNKNOWN
