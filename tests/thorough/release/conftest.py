"""One release and one environment for all tests of this folder; building and installing take seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.thorough.release.installed import Installed, Release, build, install


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In place of the documentation's, which tests/thorough/docs builds: a page, and a file that a page needs."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "_static/styles").mkdir(parents=True)
    (folder / "index.html").write_text("<h1>PockFarm</h1>")
    (folder / "_static/styles/theme.css").write_text("h1 {}")
    return folder


@pytest.fixture(scope="session")
def release(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Release:
    return build(tmp_path_factory.mktemp("release") / "dist", site)


@pytest.fixture(scope="session")
def installed(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("release") / "installed", release.client, release.wheel)


@pytest.fixture(scope="session")
def client_alone(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("release") / "client", release.client)
