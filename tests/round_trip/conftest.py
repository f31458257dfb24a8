"""What all round trips share."""

from __future__ import annotations

import pytest

from tests.models import prepare_exporter_once


@pytest.fixture(scope="session", autouse=True)
def _exporter() -> None:
    """Most tests here export a small module."""
    prepare_exporter_once()
