"""Optional features: a farm without their line in the list starts, does its work, and knows nothing of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from service.feature_list import FEATURES, PERMISSIONS
from service.people.permissions import RULES
from service.store.announcements import EVENTS

WITHOUT = """
import sys
from pathlib import Path
import tests.service.without_features
from service.store.database.schema import migrate
from tests.service.farms import open_test_farm

folder = Path(sys.argv[1])
url = f"sqlite:///{folder / 'farm.db'}"
migrate(url)
with open_test_farm(folder / "state", url) as farm:
    board = farm.board()
    run = farm.run(bundle=farm.bundle(), device=board.device_id)
    assert farm.http.post(f"/runs/{run['id']}/cancel").status_code == 202
    assert farm.show(run["id"])["state"] == "cancelled"
    assert farm.http.get("/webhooks").status_code == 404
    assert "/webhooks" not in farm.http.get("/openapi.json").json()["paths"]
    admin = farm.http.get("/dashboard/admin")
    assert admin.status_code == 200
    assert "webhook" not in admin.text.lower()
    assert farm.http.get("/dashboard").status_code == 200
"""


def test_a_farm_without_features_does_its_work(tmp_path: Path) -> None:
    finished = subprocess.run([sys.executable, "-c", WITHOUT, str(tmp_path)], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def test_each_address_has_one_rule() -> None:
    addresses = [address for feature in FEATURES for address in feature.permissions]
    assert len(set(addresses)) == len(addresses)
    assert not set(addresses) & RULES.keys()
    assert RULES.keys() | set(addresses) == PERMISSIONS.keys()


def test_features_have_names_of_their_own() -> None:
    names = [feature.name for feature in FEATURES]
    assert len(set(names)) == len(names)


def test_each_event_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/fleet.md").read_text()
    events = [*EVENTS, *(event for feature in FEATURES for event in feature.events)]
    assert [event for event in events if f"`{event}`" not in page] == []
