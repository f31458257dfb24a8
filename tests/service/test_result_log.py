"""The log of results: a tree that only grows, receipts that hold without the farm, and what is no receipt."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from device_agents import wire as p
from device_agents.wire import merkle
from device_agents.wire.ed25519 import verify
from device_agents.wire.receipt import Checkpoint, LogEntry, Receipt, Signed
from pockfarm.cli import main as pockfarm
from pockfarm.verification import NotVerified, verify_file
from service import root
from service.operations.result_log.log import log_results
from service.store import key_list
from service.store.database.models import LoggedResult, Result
from tests.agents.fake_step import bundle
from tests.service.board import leased
from tests.service.bundles import rebuilt
from tests.service.farms import TestFarm, expire_lease

LEAVES = [merkle.leaf_hash(str(number).encode()) for number in range(70)]


def plain_root(leaves: list[str]) -> str:
    """As RFC 6962 defines it, word for word."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return merkle.node_hash(plain_root(leaves[:split]), plain_root(leaves[split:]))


def complete(level: int, position: int) -> str:
    return plain_root(LEAVES[position << level : (position + 1) << level])


def test_roots_are_those_of_the_rfc() -> None:
    assert merkle.root(0, complete) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    for size in range(1, len(LEAVES) + 1):
        assert merkle.root(size, complete) == plain_root(LEAVES[:size])


@given(st.data())
def test_proofs_hold_for_what_they_prove_and_for_nothing_else(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(LEAVES)))
    index = data.draw(st.integers(0, size - 1))
    root_hash, proof = merkle.root(size, complete), merkle.inclusion(index, size, complete)
    assert merkle.includes(root_hash, leaf=LEAVES[index], index=index, size=size, proof=proof)
    other = data.draw(st.integers(0, len(LEAVES) - 1).filter(lambda n: n != index))
    assert not merkle.includes(root_hash, leaf=LEAVES[other], index=index, size=size, proof=proof)
    assert not merkle.includes(root_hash, leaf=LEAVES[index], index=other, size=size, proof=proof)
    assert not merkle.includes(root_hash, leaf=LEAVES[index], index=index, size=size, proof=(*proof, root_hash))
    first = data.draw(st.integers(1, size))
    grown = merkle.consistency(first, size, complete)
    assert merkle.grew((first, plain_root(LEAVES[:first])), (size, root_hash), grown)
    swapped = [LEAVES[first - 1], *LEAVES[: first - 1]] if first > 1 else [LEAVES[-1]]
    if swapped != LEAVES[:first]:
        assert not merkle.grew((first, plain_root(swapped)), (size, root_hash), grown)
    assert not merkle.grew((first, plain_root(LEAVES[:first])), (size, LEAVES[0] if size > 1 else LEAVES[1]), grown)


def test_a_hash_in_other_letters_is_no_hash() -> None:
    root_hash, proof = merkle.root(5, complete), merkle.inclusion(2, 5, complete)
    assert not merkle.includes(root_hash.upper(), leaf=LEAVES[2], index=2, size=5, proof=proof)
    assert not merkle.includes(root_hash, leaf=LEAVES[2], index=2, size=5, proof=(*proof[:-1], proof[-1] + " "))


# ------------------------------------------------------------------------------------------------------- on the farm


def finished(farm: TestFarm, count: int = 1) -> list[str]:
    digest, board = farm.bundle(), farm.board()
    runs = [farm.run(bundle=digest, steps=5 + number)["id"] for number in range(count)]
    for _ in runs:
        assert board.report(leased(board)).status_code == 200
    return [str(run) for run in runs]


def receipt(farm: TestFarm, run_id: str) -> Receipt:
    answer = farm.http.get(f"/runs/{run_id}/receipt")
    assert answer.status_code == 200, answer.text
    return p.loads(Receipt, answer.content)


def checkpoint(farm: TestFarm) -> Checkpoint:
    envelope = p.loads(p.Envelope, farm.http.get("/log/checkpoint").content)
    payload = envelope.payload_bytes()
    [signature] = envelope.signatures
    assert verify(farm.farm.signer.public_key, signature.sig, p.pae(envelope.payloadType, payload))
    return p.loads(Checkpoint, payload)


def test_the_log_only_grows_and_anyone_can_see_that(farm: TestFarm) -> None:
    assert checkpoint(farm).size == 0
    heads = []
    digest, board = farm.bundle(), farm.board()
    for number in range(9):
        farm.run(bundle=digest, steps=5 + number)
        board.report(leased(board))
        farm.sweep()
        heads.append(checkpoint(farm))
    assert [head.size for head in heads] == list(range(1, 10))
    listed = farm.http.get("/log/entries", params={"start": 0, "limit": 100}).json()
    assert listed["size"] == 9
    for head in heads:
        assert plain_root(listed["leaves"][: head.size]) == head.root_hash
        proof = farm.http.get("/log/consistency", params={"first": head.size, "second": 9}).json()["proof"]
        assert merkle.grew((head.size, head.root_hash), (9, heads[-1].root_hash), proof)
    assert farm.http.get("/log/entries", params={"start": 7}).json()["leaves"] == listed["leaves"][7:]


@pytest.mark.parametrize("sizes", [(0, 1), (2, 1), (1, 99)])
def test_a_proof_of_what_is_not_there_is_refused(farm: TestFarm, sizes: tuple[int, int]) -> None:
    finished(farm)
    farm.sweep()
    answer = farm.http.get("/log/consistency", params={"first": sizes[0], "second": sizes[1]})
    assert (answer.status_code, answer.json()["code"]) == (422, "log.sizes")


def test_processes_that_append_at_once_log_each_result_once(farm: TestFarm) -> None:
    finished(farm, 6)
    start = threading.Barrier(4)

    def append() -> None:
        start.wait()
        log_results(farm.farm)

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log_results(farm.farm)
    with farm.farm.database.read() as session:
        entries = [p.loads(LogEntry, row.entry) for row in session.scalars(select(LoggedResult))]
        assert sorted(entry.index for entry in entries) == list(range(6))
        assert {entry.report_digest for entry in entries} == set(session.scalars(select(Result.digest)))


def test_a_superseded_result_is_in_the_log_too(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    slow, quick = farm.board(name="slow"), farm.board(name="quick")
    late = leased(slow)
    expire_lease(farm, run["id"])
    assert quick.report(leased(quick)).status_code == 200
    assert slow.report(late).status_code == 200
    farm.sweep()
    with farm.farm.database.read() as session:
        states = sorted(p.loads(LogEntry, row.entry).state for row in session.scalars(select(LoggedResult)))
    assert states == ["recorded", "superseded"]
    assert receipt(farm, run["id"]).entry.state == "recorded"


def test_who_has_no_result_has_no_receipt(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    assert farm.http.get(f"/runs/{run['id']}/receipt").json()["code"] == "run.open"
    assert farm.http.get("/runs/run_none/receipt").status_code == 404
    assert farm.anonymous.get("/log/checkpoint").status_code == 401


# ------------------------------------------------------------------------------------------------------- without it


Saved = tuple[Path, str]
"""A receipt's file, and the root that is trusted."""


@pytest.fixture
def saved(farm: TestFarm, tmp_path: Path) -> Saved:
    """A receipt of a farm with a root."""
    settings = farm.farm.settings
    anchor = root.create(tmp_path / "root.json")
    asked = p.loads(key_list.KeyRequest, key_list.request(settings))
    (tmp_path / "list.json").write_bytes(root.sign(asked, anchor, days=9, revoke=(), now=time.time()))
    key_list.accept(settings, tmp_path / "list.json", now=time.time())
    run_id = finished(farm, 3)[1]
    (tmp_path / "receipt.json").write_bytes(farm.http.get(f"/runs/{run_id}/receipt").content)
    return tmp_path / "receipt.json", anchor.public_key


def test_a_receipt_holds_without_the_farm(saved: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, trusted = saved
    assert pockfarm(["verify", str(path), "--trust", trusted]) == 0
    said = capsys.readouterr().out
    assert f"{path}: verified" in said
    assert "in list 1 of the root that you named" in said
    (tmp_path / "root.pub").write_text(f"0123456789abcdef {trusted}\n")
    assert pockfarm(["verify", str(path), "--trust", str(tmp_path / "root.pub")]) == 0
    key = p.loads(Receipt, path.read_bytes()).signing_key.public_key
    assert pockfarm(["verify", str(path), "--trust", key]) == 0
    capsys.readouterr()
    assert pockfarm(["verify", str(path)]) == 0
    assert "UNANCHORED" in capsys.readouterr().out


def test_without_a_root_the_signing_key_is_the_anchor(farm: TestFarm, tmp_path: Path) -> None:
    [run_id] = finished(farm)
    (tmp_path / "receipt").write_bytes(farm.http.get(f"/runs/{run_id}/receipt").content)
    findings = verify_file(tmp_path / "receipt", trusted=farm.farm.signer.public_key)
    assert findings[0].how == f"run {run_id}, attempt 1: succeeded"
    with pytest.raises(NotVerified, match="nothing leads from there"):
        verify_file(tmp_path / "receipt", trusted="A" * 43 + "=")


def test_a_receipt_of_another_farm_is_not_verified(
    saved: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = root.create(tmp_path / "other.json").public_key
    assert pockfarm(["verify", str(saved[0]), "--trust", other]) == 4
    assert "NOT VERIFIED" in capsys.readouterr().out
    assert pockfarm(["verify", str(tmp_path / "none")]) == 2


def test_a_key_that_was_revoked_or_ran_out_verifies_nothing(saved: Saved, tmp_path: Path) -> None:
    path, trusted = saved
    found = p.loads(Receipt, path.read_bytes())
    anchor = root.load(tmp_path / "root.json")
    assert found.key_list is not None
    listed = p.loads(p.KeyList, found.key_list.payload_bytes())
    for other in (
        dataclasses.replace(listed, revoked=(found.signing_key.key_id,)),
        dataclasses.replace(listed, keys=(dataclasses.replace(listed.keys[0], expires_at=time.time() - 60),)),
    ):
        changed = dataclasses.replace(found, key_list=anchor.sign(p.KEY_LIST_TYPE, p.dumps(other)))
        (tmp_path / "changed").write_bytes(p.dumps(changed))
        with pytest.raises(NotVerified, match="does not hold key"):
            verify_file(tmp_path / "changed", trusted=trusted)


def test_a_root_that_is_no_key_verifies_nothing(saved: Saved, tmp_path: Path) -> None:
    found = p.loads(Receipt, saved[0].read_bytes())
    for root_key in ("AA==", "no base64!", ""):
        (tmp_path / "changed").write_bytes(p.dumps(dataclasses.replace(found, root=root_key)))
        with pytest.raises(NotVerified):
            verify_file(tmp_path / "changed", trusted=saved[1])


@pytest.fixture
def origin(saved: Saved, farm: TestFarm, tmp_path: Path) -> dict[str, Path]:
    """A bundle of the farm, its statement, the receipt of a run of it, and the receipt of another bundle's."""
    said = {one.what: one.how for one in verify_file(saved[0], trusted=saved[1])}
    digest, other = said["bundle"], farm.bundle(b"another")
    paths = {name: tmp_path / name for name in ("bundle", "statement", "receipt", "other")}
    paths["bundle"].write_bytes(farm.http.get(f"/bundles/{digest}").content)
    paths["statement"].write_bytes(farm.http.get(f"/bundles/{digest}/statement").content)
    paths["receipt"].write_bytes(saved[0].read_bytes())
    paths["other"].write_bytes(farm.http.get(f"/bundles/{other}/statement").content)
    return paths


def test_a_bundle_is_from_where_its_paper_is(
    saved: Saved, origin: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, trust = str(origin["bundle"]), ["--trust", saved[1]]
    for paper in ("statement", "receipt"):
        assert pockfarm(["verify", bundle, str(origin[paper]), *trust]) == 0
        assert f"{origin[paper]} names it" in capsys.readouterr().out
    assert pockfarm(["verify", bundle, str(origin["other"]), *trust]) == 4
    assert "no receipt or statement" in capsys.readouterr().out
    assert pockfarm(["verify", bundle, str(origin["other"])]) == 4
    assert pockfarm(["verify", bundle, *trust]) == 4, "nothing of it was signed by whom we trust"
    assert "nothing shows that sha256:" in capsys.readouterr().out
    assert pockfarm(["verify", bundle]) == 0
    assert "intact, origin not shown" in (output := capsys.readouterr().out)
    assert "UNANCHORED" in output


def test_a_bundle_with_a_new_manifest_is_no_bundle_of_the_farm(saved: Saved, origin: dict[str, Path]) -> None:
    changed = rebuilt(origin["bundle"].read_bytes(), "bin/step", b"\x7fELF, of somebody else")
    origin["bundle"].write_bytes(changed)
    assert pockfarm(["verify", str(origin["bundle"])]) == 0, "it agrees with itself"
    for paper in ("statement", "receipt"):
        files = [str(origin["bundle"]), str(origin[paper])]
        assert pockfarm(["verify", *files]) == 4
        assert pockfarm(["verify", *files, "--trust", saved[1]]) == 4


def test_a_statement_says_what_the_farm_knows_of_a_bundle(
    farm: TestFarm, saved: Saved, origin: dict[str, Path], tmp_path: Path
) -> None:
    digest = "sha256:" + hashlib.sha256(origin["bundle"].read_bytes()).hexdigest()
    said = {one.what: one.how for one in verify_file(origin["statement"], trusted=saved[1])}
    info = farm.http.get(f"/bundles/{digest}/info").json()
    assert said["bundle"] == digest
    assert said["compiler"] == "test"
    for name in ("model", "plan", "spec"):
        assert said[name] == info[f"{name}_digest"]
    paper = p.loads(Signed, origin["statement"].read_bytes())
    for other in (
        dataclasses.replace(paper, signing_key=root.load(tmp_path / "root.json").server_key()),
        dataclasses.replace(paper, signed=p.loads(Signed, origin["other"].read_bytes()).signed),
    ):
        (tmp_path / "changed").write_bytes(p.dumps(other))
        changed = tmp_path / "changed"
        assert pockfarm(["verify", str(origin["bundle"]), str(changed), "--trust", saved[1]]) == 4
    assert farm.tenant("other").http.get(f"/bundles/{digest}/statement").status_code == 404


def test_a_bundle_is_verified_by_its_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "b.pfb"
    path.write_bytes(bundle())
    assert pockfarm(["verify", str(path)]) == 0
    assert f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" in capsys.readouterr().out
    data = path.read_bytes()
    place = data.index(b"weights") + 512
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    assert pockfarm(["verify", str(path)]) == 4
