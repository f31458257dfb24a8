"""A drill: a farm is backed up, lets some go, is lost and restored. What it let go stays out, the rest comes back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select

from service.operations.backup.form import BackupError
from service.operations.backup.reading import restore_backup
from service.operations.backup.writing import write_backup
from service.people.access import COOKIE
from service.store.database.models import ApiKey, Base, Device, IdempotencyRecord, Webhook, WebhookDelivery
from tests.service.board import Board
from tests.service.farms import TestFarm, open_test_farm
from tests.service.test_backup import other_url as other_url
from tests.service.test_backup import said, settings_at

ROOT = Path(__file__).resolve().parents[2]


def command(state: Path, url: str, *words: str, warn: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
    """`service.admin`, as an operator starts it."""
    environment = {**os.environ, "POCKFARM_STATE": str(state), "POCKFARM_DATABASE_URL": url}
    flags = ["-W", warn] if warn else []
    line = [sys.executable, *flags, "-m", "service.admin", *words]
    completed = subprocess.run(
        line, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert completed.returncode == code, completed.stderr
    return completed


@dataclass
class Things:
    """What somebody has who was let in: secrets, and a board with its key."""

    key: dict[str, str]
    key_id: str
    link: str
    cookie: str
    token: str
    board: Board
    webhook: str

    def message(self, http: httpx.Client) -> dict[str, int]:
        """What each is answered now."""
        board = self.board.copy(None)
        board.http, board.credential, board.session = http, self.board.credential, self.board.session
        return {
            "key": http.get("/jobs", headers=self.key).status_code,
            "session": http.get("/jobs", headers={"Cookie": f"{COOKIE}={self.cookie}"}).status_code,
            "link": http.get(f"/open/{self.link}", follow_redirects=False).status_code,
            "token": Board(http).try_enrol(self.token).status_code,
            "credential": board.try_lease().status_code,
            "renewal": board.try_renew().status_code,
        }


OUT = {"key": 401, "session": 401, "link": 403, "token": 403, "credential": 401, "renewal": 503}


def things(farm: TestFarm, name: str) -> Things:
    created = farm.http.post("/keys", json={"name": name, "role": "operator"}).json()
    key = {"Authorization": f"Bearer {created['secret']}"}
    first, second = (farm.anonymous.post("/dashboard/links", headers=key).json()["token"] for _ in range(2))
    cookie = farm.anonymous.get(f"/open/{first}", follow_redirects=False).cookies[COOKIE]
    farm.anonymous.cookies.clear()
    token = farm.http.post("/devices/enrolment-tokens", json={"name": f"next-{name}"}).json()["token"]
    body = {"url": f"https://{name}.example/", "events": ["job.ended"]}
    hook = farm.anonymous.post("/webhooks", headers=key, json=body)
    assert hook.status_code == 201, hook.text
    return Things(key, created["id"], second, cookie, token, farm.board(name=name), hook.json()["id"])


@dataclass
class Lost:
    """A farm that was backed up, and the folder of the one that is restored."""

    state: Path
    url: str
    honest: Things
    dropped: Things
    output: str


@pytest.fixture
def lost(tmp_path: Path, sqlite_url: str, other_url: str) -> Lost:
    """Backup; then a key with its session and link, a device and a webhook go; then the farm is lost and restored."""
    with open_test_farm(tmp_path / "old", sqlite_url) as farm:
        honest, dropped = things(farm, "kept-board"), things(farm, "dropped-board")
        assert farm.http.post("/users", json={"name": "Ada"}).status_code == 201
        job = farm.compile(b"model", headers={**honest.key, "Idempotency-Key": "once"}).json()["id"]
        assert farm.http.post(f"/jobs/{job}/cancel").status_code in (200, 202)
        command(tmp_path / "old", sqlite_url, "backup", str(tmp_path / "b"))
        assert farm.http.delete(f"/keys/{dropped.key_id}").status_code == 200
        assert farm.http.delete(f"/devices/{dropped.board.device_id}").status_code == 200
        assert farm.http.delete(f"/webhooks/{dropped.webhook}").status_code == 200
    state = tmp_path / "other"
    completed = command(state, other_url, "restore", str(tmp_path / "b"))
    shutil.copy(tmp_path / "old" / "signing-key.json", state / "signing-key.json")
    return Lost(state, other_url, honest, dropped, completed.stderr)


def counted(farm: TestFarm, kind: type[Base]) -> int:
    with farm.farm.database.read() as session:
        return session.scalar(select(func.count()).select_from(kind)) or 0


def test_nothing_is_let_in_that_nobody_has_confirmed(lost: Lost) -> None:
    for words in (
        lost.honest.key_id,
        lost.dropped.key_id,
        lost.honest.board.device_id,
        lost.dropped.board.device_id,
        lost.honest.webhook,
        lost.dropped.webhook,
        "Ada",
        "2 dashboard sessions",
        "link     by key kept-board",
        "1 answers to repeated requests",
        "2 webhook deliveries that waited",
        "next-dropped-board",
        "does not know what was revoked",
        f"POCKFARM_STATE={lost.state}",
        "admin confirm",
    ):
        assert words in lost.output, f"{words}: {lost.output}"
    with open_test_farm(lost.state, lost.url) as farm:
        assert lost.honest.message(farm.anonymous) == OUT
        assert lost.dropped.message(farm.anonymous) == OUT
        assert counted(farm, WebhookDelivery) == counted(farm, IdempotencyRecord) == 0
        board = lost.honest.board.copy(None)
        board.http = farm.anonymous
        renewal = board.try_renew()
        assert (renewal.json()["code"], int(renewal.headers["retry-after"])) == ("device.unconfirmed", 60)
        assert f"confirm {board.device_id}" in renewal.json()["hint"]
        page = farm.http.get("/dashboard").text
        for words in ("2 devices wait since the restore", "2 webhooks wait since the restore", "service.admin confirm"):
            assert words in page, words
        assert "devices are offline" not in page, "they wait, and nobody need start them"
        unconfirmed = {key["id"]: key["unconfirmed_at"] for key in farm.http.get("/keys").json()}
        assert unconfirmed[lost.honest.key_id] is not None
        (entry,) = [entry for entry in farm.http.get("/audit").json()["items"] if entry["action"] == "restore"]
        assert "keys, devices and webhooks wait" in entry["detail"]


def test_the_honest_come_back_by_a_command_and_by_their_own_key(lost: Lost) -> None:
    honest, dropped = lost.honest, lost.dropped
    listed = command(lost.state, lost.url, "confirm").stdout
    assert honest.board.device_id in listed
    assert "wait since a restore" in listed.splitlines()[-1]
    completed = command(lost.state, lost.url, "confirm", honest.key_id, honest.board.device_id, honest.webhook)
    assert completed.stdout.startswith("3 confirmed")
    with open_test_farm(lost.state, lost.url) as farm:
        assert honest.message(farm.anonymous) == OUT | {"key": 200, "renewal": 200}
        assert dropped.message(farm.anonymous) == OUT
        honest.board.http = farm.anonymous
        honest.board.restart()
        assert honest.board.try_lease().status_code == 204, "it works, and nobody walked to it"
        again = farm.compile(b"model", headers={**honest.key, "Idempotency-Key": "once"})
        assert (again.status_code, "idempotency-replayed" in again.headers) == (202, False)
        assert farm.http.post(f"/webhooks/{dropped.webhook}/test").json()["code"] == "webhook.unconfirmed"
        farm.http.post(f"/jobs/{again.json()['id']}/cancel")
        with farm.farm.database.read() as session:
            assert set(session.scalars(select(WebhookDelivery.webhook_id))) == {honest.webhook}
        assert farm.http.delete(f"/keys/{dropped.key_id}").status_code == 200
        assert farm.http.delete(f"/devices/{dropped.board.device_id}").status_code == 200
        assert farm.http.delete(f"/webhooks/{dropped.webhook}").status_code == 200
        assert dropped.message(farm.anonymous) == OUT | {"renewal": 403}
        assert "dropped-board" not in command(lost.state, lost.url, "confirm").stdout
    refused = command(lost.state, lost.url, "confirm", dropped.board.device_id, code=1)
    assert "does not wait to be confirmed" in refused.stderr


def test_a_board_that_is_enrolled_again_needs_no_other_word(lost: Lost) -> None:
    with open_test_farm(lost.state, lost.url) as farm:
        board, before = lost.honest.board, lost.honest.board.device_id
        board.http = farm.anonymous
        token = farm.http.post("/devices/enrolment-tokens", json={}).json()["token"]
        assert board.enrol(token).device_id == before
        assert board.try_lease().status_code == 204


def test_all_come_back_at_one_word(lost: Lost) -> None:
    command(lost.state, lost.url, "confirm", "--all")
    with open_test_farm(lost.state, lost.url) as farm:
        assert lost.honest.message(farm.anonymous) == OUT | {"key": 200, "renewal": 200}
        assert "since the restore" not in farm.http.get("/dashboard").text
        with farm.farm.database.read() as session:
            for waits in (ApiKey.unconfirmed_at, Device.unconfirmed_at, Webhook.unconfirmed_at):
                assert session.scalar(select(func.count(waits))) == 0


def test_a_restore_that_breaks_at_its_end_leaves_nothing(
    small_farm: TestFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows never lie in a database without the mark that they wait."""
    write_backup(small_farm.farm.settings, tmp_path / "b", passphrase=None, say=said)
    new = settings_at(tmp_path / "new", f"sqlite:///{tmp_path}/new/farm.db")

    def broken(*_: object, **__: object) -> list[str]:
        raise BackupError("the power went")

    with monkeypatch.context() as breaking:
        breaking.setattr("service.operations.backup.reading.revive_nothing", broken)
        with pytest.raises(BackupError, match="the power went"):
            restore_backup(new, tmp_path / "b", passphrase=None, say=said)
    restore_backup(new, tmp_path / "b", passphrase=None, say=said)


@pytest.mark.parametrize("warn", ["", "default"])
def test_the_commands_print_no_warnings_of_libraries(
    small_farm: TestFarm, other_url: str, tmp_path: Path, warn: str
) -> None:
    settings = small_farm.farm.settings
    small_farm.compile()
    completed = command(settings.state, settings.database, "backup", str(tmp_path / "b"), warn=warn)
    again = command(tmp_path / "other", other_url, "restore", str(tmp_path / "b"), warn=warn)
    for text in (completed.stderr, again.stderr):
        assert "arning" not in text, text
