"""What all round trips share."""

from __future__ import annotations

import pytest

from tests.exporting import read_once


@pytest.fixture(scope="session", autouse=True)
def _exporter() -> None:
    """Most tests here export a small module."""
    read_once()
