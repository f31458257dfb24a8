"""The farm of `tests/e2e`, which these tests share among themselves."""

from tests.e2e.conftest import live as live
