"""One release and one environment for all tests of this folder; building and installing take seconds."""

from __future__ import annotations

import pytest

from tests.release.installed import Installed, Release, build, install


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return build(tmp_path_factory.mktemp("release") / "dist")


@pytest.fixture(scope="session")
def installed(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(release.wheel, tmp_path_factory.mktemp("release") / "installed")
