"""A farm with seeded rows, opened as a browser with a session and as a stranger."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fastapi import FastAPI
from playwright.sync_api import Browser, expect
from sqlalchemy import update

from service.app import create_app
from service.base.settings import Settings
from service.people.keys.service import Role, create_key, create_link
from service.store.database.models import Base, Device
from service.store.farm import Farm
from tests.dashboard.seed import Seeded, seed
from tests.service.client import Client
from tests.waiting import HANG_S

PATIENCE_MS = HANG_S * 1000
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@dataclass(frozen=True)
class SeededFarm:
    """The application, its rows' ids, and a fresh one-time link."""

    app: FastAPI
    farm: Farm
    ids: Seeded
    seen_at: list[float] = field(default_factory=lambda: [time.time()])
    """When the devices were last made to have been seen as lately as in the beginning."""

    def link(self, role: Role = "operator") -> str:
        """The path of a one-time link."""
        with self.farm.database.transaction() as session:
            key, _ = create_key(session, name="test", role=role)
            token, _ = create_link(session, key_id=key.id, lifetime_s=3600)
        return f"/open/{token}"

    def see_devices(self) -> None:
        """Let them be as long ago as in the beginning, however long the tests before took."""
        before, self.seen_at[0] = self.seen_at[0], time.time()
        with self.farm.database.transaction() as session:
            session.execute(update(Device).values(last_seen_at=Device.last_seen_at + self.seen_at[0] - before))

    def browser(self) -> Client:
        """A client with a session cookie, that asks for pages."""
        client = Client(self.app, headers=BROWSER)
        assert client.get(self.link()).status_code == 200
        return client

    def stranger(self) -> Client:
        """A client without a session, that asks for pages."""
        return Client(self.app, headers=BROWSER)


def make_app(folder: Path) -> FastAPI:
    """An application with an empty database of its own."""
    app = create_app(Settings(state=folder, sweep_s=0))
    Base.metadata.create_all(app.state.farm.database.engine)
    return app


def make_farm(folder: Path) -> SeededFarm:
    """The same with the seeded rows."""
    app = make_app(folder)
    farm: Farm = app.state.farm
    with farm.database.transaction() as session:
        ids = seed(session)
    return SeededFarm(app, farm, ids)


@pytest.fixture(scope="package")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeededFarm]:
    """The seeded farm; tests only read it."""
    made = make_farm(tmp_path_factory.mktemp("farm"))
    yield made
    made.farm.close()


@pytest.fixture(autouse=True)
def _see_devices(request: pytest.FixtureRequest) -> None:
    if "seeded" in request.fixturenames:
        request.getfixturevalue("seeded").see_devices()


@pytest.fixture(scope="package")
def browser(seeded: SeededFarm) -> Client:
    """A signed-in browser on the seeded farm."""
    return seeded.browser()


@pytest.fixture(scope="package")
def web() -> Iterator[Browser]:
    """Headless Chromium, which is waited for as long as a busy machine needs."""
    expect.set_options(timeout=PATIENCE_MS)
    from tests.dashboard.screenshots import chromium  # which makes its farm with what is above

    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SeededFarm, str]]:
    """A farm that the tests of a module change, and its address."""
    from tests.dashboard.screenshots import serving

    made = make_farm(tmp_path_factory.mktemp("farm"))
    with serving(made) as address:
        yield made, address
    made.farm.close()


@pytest.fixture(scope="package")
def address(seeded: SeededFarm) -> Iterator[str]:
    """The seeded farm on a loopback port."""
    from tests.dashboard.screenshots import serving

    with serving(seeded) as found:
        yield found
