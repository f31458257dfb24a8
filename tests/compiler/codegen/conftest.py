"""Kernels of a family share their code, and their tests range over shapes, layouts and targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sample import thin_folder

CASES = 5
NOT_THINNED = ("test_operators.py",)
"""Each case is another operator."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test's cases `make test` runs five."""
    thin_folder(items, Path(__file__).parent, CASES, except_files=NOT_THINNED)
