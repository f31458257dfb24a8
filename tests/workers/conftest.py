"""Fixtures of the service, for workers too."""

from tests.service.conftest import migrated_sqlite, sqlite_url

__all__ = ["migrated_sqlite", "sqlite_url"]
