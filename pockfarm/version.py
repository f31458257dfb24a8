"""The version of this PockFarm."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
"""The `pyproject.toml` of a checkout; an installed package has none there."""


def version() -> str:
    """As it is installed; in a checkout that is not, as the checkout says; else `unknown`."""
    for name in ("pockfarm", "pockfarm-client"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return version_in(PROJECT)


def version_in(project: Path) -> str:
    """The version that a `pyproject.toml` states (Python 3.9 has no reader of TOML)."""
    try:
        match = re.search(r'^version = "([^"]+)"$', project.read_text(), re.MULTILINE)
    except OSError:
        return "unknown"
    return match.group(1) if match else "unknown"
