"""What every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("POCKFARM_VERIFY", "each-pass")  # of graphs and programs, in child processes too


@pytest.fixture(scope="session")
def kernel_cache() -> Path:
    """Kernels built by any test, kept between runs: an entry is valid only for the code that made it."""
    folder = Path(os.environ.get("POCKFARM_TEST_CACHE", Path(__file__).parent.parent / ".cache" / "kernels"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
