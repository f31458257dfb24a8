"""The commit of PockFarm that this farm runs, for readers who look for what changed."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from service.base.settings import Settings

ROOT = Path(__file__).parents[2]


def commit(settings: Settings) -> str:
    """Returns the setting, or else the commit of the checkout from which the farm runs; empty if neither is known."""
    return settings.commit or _of_checkout()


@functools.cache
def _of_checkout() -> str:
    if not (ROOT / ".git").exists():
        return ""
    try:
        git = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return git.stdout.strip()
