"""Signing keys under an offline root: listed, prepared, rotated, retired and revoked, with devices that follow."""

from __future__ import annotations

import base64
import dataclasses
import errno
import json
import time
from pathlib import Path

import pytest

from device_agents import wire as p
from device_agents.errors import Untrusted
from device_agents.farm.state import Identity
from device_agents.farm.trust import believed, open_envelope, verify_assignment
from service import root
from service.admin import main as admin
from service.base.settings import Settings
from service.operations.backup.writing import key_files
from service.store import key_list, signing_keys
from service.store.database.models import SigningKey
from service.store.signing import Signer, load_signer
from tests.service.board import Board, description
from tests.service.farms import TestFarm


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of a farm that has started once, as `service.admin` sees it."""
    folder = tmp_path / "state"
    monkeypatch.setenv("POCKFARM_STATE", str(folder))
    folder.mkdir(mode=0o700)
    load_signer(folder / "signing-key.json", release_number=1)
    root.create(tmp_path / "root.json")
    return folder


def listed(state: Path, *more: str) -> int:
    """Ask, have it signed, take it."""
    away = state.parent
    assert admin(["key-request", str(away / "request.json")]) == 0
    command = ["sign", str(away / "request.json"), str(away / "list.json"), "--root", str(away / "root.json"), *more]
    assert root.main(command) == 0
    return admin(["accept-keys", str(away / "list.json")])


def credential(state: Path) -> p.Credential:
    settings, signer = Settings(state=state), load_signer(state / "signing-key.json", release_number=1)
    kept = key_list.rooted(settings.key_list_path)
    assert kept is not None
    return p.Credential("t", 1.0, 1.0, (signer.server_key(),), signer.introduce(kept.root), kept.key_list)


def assignment(state: Path, release: int = 1) -> p.Envelope:
    signer = load_signer(state / "signing-key.json", release_number=1)
    work = p.Assignment(
        "run",
        1,
        "dev",
        "x86-64",
        "x86-64-v3",
        "lease-0001",
        1.0,
        60.0,
        0.0,
        1e12,
        release,
        "",
        "",
        p.Blob("sha256:" + "a" * 64, 10),
        p.RunSettings("profile"),
    )
    return signer.sign(p.ASSIGNMENT_TYPE, p.dumps(work))


def believes(identity: Identity, envelope: p.Envelope) -> str:
    try:
        verify_assignment(envelope, identity, description(), now=time.time())
    except Untrusted as error:
        return error.code
    return "yes"


def test_a_key_is_prepared_rotated_and_retired_and_devices_follow(state: Path) -> None:
    first = load_signer(state / "signing-key.json", release_number=1)
    assert listed(state) == 0
    device = believed(Identity("dev", "http://farm", root=credential(state).root.public_key), credential(state))  # type: ignore[union-attr]
    old = assignment(state)
    assert believes(device, old) == "yes"
    assert admin(["prepare-key"]) == 0
    assert admin(["rotate-key"]) == 1, "the root has not listed it yet"
    assert listed(state) == 0
    assert admin(["rotate-key"]) == 0
    second = load_signer(state / "signing-key.json", release_number=1)
    assert second.key_id != first.key_id
    assert not (state / "next-signing-key.json").exists()
    assert base64.b64encode(first.key.private_bytes_raw()).decode() not in (state / "signing-key.json").read_text()
    assert believes(device, assignment(state)) == "envelope.key", "a device that has not renewed does not know it yet"
    device = believed(device, credential(state))
    assert (believes(device, assignment(state)), believes(device, old)) == ("yes", "yes"), "both, for a while"
    assert listed(state) == 0
    device = believed(device, credential(state))
    assert (believes(device, assignment(state)), believes(device, old)) == ("yes", "envelope.key")
    assert device.key_list is not None
    assert [key.key_id for key in device.key_list.keys] == [second.key_id]


def test_a_challenge_of_the_old_key_is_known_to_processes_with_the_new_one(state: Path) -> None:
    listed(state)
    before = load_signer(state / "signing-key.json", release_number=1)
    admin(["prepare-key"])
    listed(state)
    admin(["rotate-key"])
    after = load_signer(state / "signing-key.json", release_number=1)
    assert after.is_fresh_challenge("dev", before.challenge("dev"))
    assert before.is_fresh_challenge("dev", after.challenge("dev"))
    assert not after.is_fresh_challenge("other", before.challenge("dev"))


def test_a_revoked_key_is_never_good_again(state: Path) -> None:
    first = load_signer(state / "signing-key.json", release_number=1)
    old = assignment(state)
    listed(state)
    admin(["prepare-key"])
    listed(state)
    admin(["rotate-key"])
    assert listed(state, "--revoke", first.key_id) == 0
    device = believed(Identity("dev", "f", root=credential(state).root.public_key), credential(state))  # type: ignore[union-attr]
    assert believes(device, old) == "envelope.key"
    assert listed(state) == 0, "what was revoked stays so without being named again"
    kept = key_list.rooted(state / "key-list.json")
    assert kept is not None
    assert kept.keys.revoked == (first.key_id,)
    both = dataclasses.replace(kept.keys, keys=(*kept.keys.keys, p.ListedKey(first.key_id, first.public_key, 0, 9e9)))
    assert first.key_id not in both.good_at(time.time())


def test_a_device_believes_its_root_and_nobody_else(state: Path, tmp_path: Path) -> None:
    listed(state)
    good = credential(state)
    assert good.root is not None
    device = believed(Identity("dev", "f", root=good.root.public_key), good)
    stranger = Signer(root.create(tmp_path / "stranger.json").key, 0)
    signer = load_signer(state / "signing-key.json", release_number=1)
    asked = p.loads(key_list.KeyRequest, key_list.request(Settings(state=state)))
    forged = key_list.opened(root.sign(asked, stranger, days=9, revoke=(), now=time.time()), "forged")
    for credential_ in (
        dataclasses.replace(good, key_list=forged.key_list),
        dataclasses.replace(good, root=signer.introduce(stranger.public_key), key_list=forged.key_list),
        dataclasses.replace(good, root=None, key_list=None, server_keys=(stranger.server_key(),)),
    ):
        assert believed(device, credential_) == device
    with pytest.raises(Untrusted):
        open_envelope(stranger.sign(p.ASSIGNMENT_TYPE, b"{}"), device.trusted_at(time.time()))


def test_an_older_list_and_an_older_release_are_refused(state: Path) -> None:
    listed(state)
    older = credential(state)
    listed(state)
    assert older.root is not None
    device = believed(Identity("dev", "f", root=older.root.public_key), credential(state))
    assert believed(device, older) == device
    seen = dataclasses.replace(device, highest_release={"an-earlier-key": 5})
    assert believes(seen, assignment(state, release=4)) == "envelope.rollback", "a new key does not start anew"
    assert believes(seen, assignment(state, release=5)) == "yes"


def test_a_device_from_before_takes_the_root_from_a_key_that_it_trusts(state: Path) -> None:
    signer = load_signer(state / "signing-key.json", release_number=1)
    older = Identity("dev", "f", trusted_keys={signer.key_id: signer.public_key})
    listed(state)
    offered = credential(state)
    assert offered.root is not None
    assert believed(older, offered).root == offered.root.public_key
    stranger = Identity("dev", "f", trusted_keys={"other": signer.public_key})
    assert believed(stranger, offered) == stranger
    unsigned = dataclasses.replace(offered, root=dataclasses.replace(offered.root, endorsement=None))
    assert believed(older, unsigned).root is None


def test_keys_are_good_within_their_time(state: Path) -> None:
    listed(state, "--days", "30")
    kept = key_list.rooted(state / "key-list.json")
    assert kept is not None
    now = time.time()
    assert [len(kept.keys.good_at(now + days * 86_400)) for days in (-1, 0, 29, 31)] == [0, 1, 1, 0]


def test_what_the_farm_does_not_take(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed(state)
    first = (tmp_path / "list.json").read_bytes()
    listed(state)
    root.create(tmp_path / "other.json")
    root.main(
        ["sign", str(tmp_path / "request.json"), str(tmp_path / "theirs"), "--root", str(tmp_path / "other.json")]
    )
    changed = json.loads(first)
    changed["root"] = json.loads((tmp_path / "theirs").read_text())["root"]
    (tmp_path / "older").write_bytes(first)
    (tmp_path / "changed").write_text(json.dumps(changed))
    (tmp_path / "nonsense").write_text("{}")
    load_signer(tmp_path / "elsewhere/signing-key.json", release_number=0)
    stolen = key_list.request(Settings(state=tmp_path / "elsewhere"))
    (tmp_path / "stolen").write_bytes(stolen.replace(b'"number":0', b'"number":9'))
    root.main(["sign", str(tmp_path / "stolen"), str(tmp_path / "not-ours"), "--root", str(tmp_path / "root.json")])
    said = {
        "older": "is list 1, this farm has 2",
        "changed": "has not signed it",
        "theirs": "never change their root",
        "nonsense": "holds no signed list",
        "not-ours": "does not list key",
        "missing": "No such file",
    }
    for name, words in said.items():
        capsys.readouterr()
        assert admin(["accept-keys", str(tmp_path / name)]) == 1
        assert words in capsys.readouterr().err
    assert root.main(["sign", str(tmp_path / "request.json"), "x", "--root", str(tmp_path / "nonsense")]) == 1
    assert root.main(["create", str(tmp_path / "root.json")]) == 1, "no root is overwritten"


def test_a_farm_with_a_root_tells_its_devices_and_adopts_the_rotated_key(
    farm: TestFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = farm.farm.settings
    monkeypatch.setenv("POCKFARM_STATE", str(settings.state))
    assert farm.board().credential_sent.root is None
    root.create(settings.state.parent / "root.json")
    assert listed(settings.state) == 0
    board: Board = farm.board(name="second")
    assert board.credential_sent.root is not None
    identity = believed(
        Identity(board.device_id, "f", root=board.credential_sent.root.public_key), board.credential_sent
    )
    assert identity.trusted_at(time.time()) == {farm.farm.signer.key_id: farm.farm.signer.public_key}
    admin(["prepare-key"])
    listed(settings.state)
    admin(["rotate-key"])
    rotated = load_signer(settings.signing_key_path, release_number=1)
    with farm.farm.database.transaction() as session:
        signing_keys.confirm(session, rotated, settings.signing_key_path)
    with farm.farm.database.read() as session:
        keys = {key.key_id: key.retired_at for key in session.query(SigningKey)}
    assert keys[rotated.key_id] is None
    assert keys[farm.farm.signer.key_id] is not None


def test_a_key_file_that_is_mounted_read_only_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys/signing-key.json"
    load_signer(path, release_number=1)
    before = path.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("service.store.signing._write_beside", refuse)
    assert load_signer(path, release_number=7).release_number == 7
    assert path.read_bytes() == before


def test_a_backup_takes_every_key_file_but_the_root(state: Path) -> None:
    """An API key is none: it may be revoked after the backup, and a restored farm makes another."""
    assert {path.name for path in key_files(Settings(state=state))} == {
        "signing-key.json",
        "next-signing-key.json",
        "key-list.json",
    }


def test_a_list_that_is_mounted_is_checked_and_not_written(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys of a secret: read where they are mounted; lists are accepted in a folder of the operator's own."""
    assert listed(state) == 0
    mounted = state.parent / "mounted"
    mounted.mkdir()
    for name in ("signing-key.json", "key-list.json"):
        (state / name).rename(mounted / name)
    settings = Settings(state=state, keys_folder=str(mounted))
    kept = key_list.rooted(settings.key_list_path)
    assert kept is not None
    assert settings.signing_key_path == mounted / "signing-key.json"
    monkeypatch.setenv("POCKFARM_KEYS_FOLDER", str(mounted))
    monkeypatch.setattr(key_list, "replace_file", read_only)
    capsys.readouterr()
    assert listed(state) == 1
    said = capsys.readouterr().err
    assert f"list {kept.keys.number + 1} is good, but {mounted / 'key-list.json'} cannot be written" in said
    assert "Keys on Kubernetes" in said
    assert key_list.rooted(settings.key_list_path) == kept


def read_only(path: Path, _: bytes) -> None:
    """What a mounted secret says."""
    raise OSError(errno.EROFS, "Read-only file system", str(path))
