"""Who opens what is signed: boards (work, updates, downloads), the farm (enrolments, reports), verifier, root's list.

A door says how it answers to bytes: `accepted`, or the code or first words of its refusal.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from device_agents import wire as p
from device_agents.errors import AttemptError, FarmError
from device_agents.farm.client import FarmClient
from device_agents.farm.gate import admit
from device_agents.farm.state import Identity, StateFolder
from device_agents.farm.trust import open_key_list, verify_offer
from pockfarm.verification import NotVerified, verify_file, verify_files
from service import root
from service.store import key_list
from service.store.database.schema import migrate
from service.store.signing import Signer, load_signer
from tests.agents.fake_farm import FakeFarm
from tests.agents.fake_step import bundle
from tests.mutations.mutate import Change, Mutation, flipped, mutations
from tests.service.board import Board, assignment_of, description
from tests.service.bundles import rebuilt, unpacked
from tests.service.farms import TestFarm, open_test_farm

ACCEPTED = "accepted"


@dataclass(frozen=True)
class Door:
    """`good` is accepted, once or always; no other bytes are."""

    name: str
    good: bytes
    mutations: list[Mutation]
    open: Callable[[bytes], str]


@contextmanager
def doors(folder: Path) -> Iterator[list[Door]]:
    """Every door, with real keys, a real farm on SQLite and a real socket."""
    with ExitStack() as stack:
        signer, anchor = load_signer(folder / "signing-key.json", release_number=1), root.create(folder / "root.json")
        migrate(f"sqlite:///{folder / 'farm.db'}")
        farm = stack.enter_context(open_test_farm(folder / "farm", f"sqlite:///{folder / 'farm.db'}"))
        yield [
            _assignments(folder, signer),
            _enrolments(farm),
            _reports(farm),
            _receipts(folder, farm, anchor),
            _lists(anchor, signer),
            _offers(signer),
            _bundles(folder, stack.enter_context(FakeFarm())),
            _bundle_files(folder, farm, anchor),
        ]


def _assignment(number: int) -> p.Assignment:
    blob = p.Blob(f"sha256:{number:064x}", 10 + number, f"/agent/attempts/lease-{number:04d}/bundle")
    now = time.time()
    return p.Assignment(
        f"run-{number}",
        number,
        "dev",
        "x86-64",
        "x86-64-v3",
        f"lease-{number:04d}",
        now + 60,
        60.0,
        now - 5,
        now + 9999,
        3,
        f"model-{number}",
        f"plan-{number}",
        blob,
        p.RunSettings("train", steps=5 + number, seed=number),
        blob,
        blob,
        p.Limits(run_s=100.0 + number),
        blob,
    )


def _assignments(folder: Path, signer: Signer) -> Door:
    state = StateFolder(folder / "board")
    state.save_identity(Identity("dev", "http://farm", {signer.key_id: signer.public_key}, {signer.key_id: 3}))
    good, other = (p.dumps(signer.sign(p.ASSIGNMENT_TYPE, p.dumps(_assignment(number)))) for number in (1, 2))

    def opens(data: bytes) -> str:
        try:
            envelope = p.loads(p.Envelope, data)
        except p.ProtocolError:
            return "no envelope"
        answer = admit(envelope, state, description())
        return str(answer.code) if isinstance(answer, p.Outcome) else ACCEPTED

    assert opens(other) == ACCEPTED
    return Door("assignment", good, mutations(good, (other,)), opens)


def _enrolments(farm: TestFarm) -> Door:
    """By one token that is good all the while. Nothing in the request is as if it were not there."""
    token = farm.http.post("/devices/enrolment-tokens", json={"uses": 9}).json()["token"]
    array = p.OwnArray("x", "float32", (8, 3))
    whole = {
        "sensors": ("temperature", "power"),
        "runner": "qemu-aarch64-static",
        "environment": {"kernel": "6.1"},
        "own_datasets": (p.OwnDataset("cats", f"sha256:{7:064x}", 96, 8, (array,), (5, 3), weights_stay=True),),
    }
    good, other = (p.dumps(Board(farm.anonymous, name=name, **whole).enrolment(token)) for name in ("one", "other"))
    sender = Board(farm.anonymous)

    def opens(data: bytes) -> str:
        answer = sender.post(p.ENROL_PATH, None, content=data)
        return ACCEPTED if answer.status_code == 201 else str(answer.json()["code"])

    return Door("enrolment", good, mutations(good, (other,)), opens)


def _reports(farm: TestFarm) -> Door:
    digest, board = farm.bundle(), farm.board()
    path, good = _report(farm, board, digest, 3)
    _, other = _report(farm, farm.board(name="other"), digest, 4)

    def opens(data: bytes) -> str:
        answer = board.post(path, None, content=data)
        return ACCEPTED if answer.status_code == 200 else str(answer.json()["code"])

    return Door("report", good, mutations(good, (other,)), opens)


def _report(farm: TestFarm, board: Board, digest: str, steps: int) -> tuple[str, bytes]:
    farm.run(bundle=digest, steps=steps)
    work = assignment_of(board.try_lease())
    return p.attempt_path(p.REPORT_PATH, work.lease_token), p.dumps(board.envelope(board.make_report(work)))


def _receipts(folder: Path, farm: TestFarm, anchor: Signer) -> Door:
    asked = p.loads(key_list.KeyRequest, key_list.request(farm.farm.settings))
    (folder / "list.json").write_bytes(root.sign(asked, anchor, days=9, revoke=(), now=time.time()))
    key_list.accept(farm.farm.settings, folder / "list.json", now=time.time())
    digest, board, runs = farm.bundle(b"another model"), farm.board(name="third"), []
    for steps in range(5, 10):
        runs.append(farm.run(bundle=digest, steps=steps)["id"])
        board.report(assignment_of(board.try_lease()))
    good, other = (farm.http.get(f"/runs/{run}/receipt").content for run in runs[1:3])

    def opens(data: bytes) -> str:
        path = folder / "receipt.json"
        path.write_bytes(data)
        try:
            verify_file(path, trusted=anchor.public_key)
        except NotVerified as error:
            return str(error).partition(" ")[0]
        return ACCEPTED

    return Door("receipt", good, mutations(good, (other,)), opens)


def _lists(anchor: Signer, signer: Signer) -> Door:
    def signed(number: int) -> bytes:
        keys = (p.ListedKey(signer.key_id, signer.public_key, 0.0, 9e9),)
        return p.dumps(anchor.sign(p.KEY_LIST_TYPE, p.dumps(p.KeyList(number, 1.0, keys, ("0" * 16,)))))

    def opens(data: bytes) -> str:
        try:
            open_key_list(p.loads(p.Envelope, data), anchor.public_key)
        except p.ProtocolError:
            return "no envelope"
        except AttemptError as error:
            return error.code
        return ACCEPTED

    return Door("key list", signed(1), mutations(signed(1), (signed(2),)), opens)


def _offers(signer: Signer) -> Door:
    """Of another agent, as a board takes them."""
    identity = Identity("dev", "http://farm", {signer.key_id: signer.public_key}, {signer.key_id: 3})

    def signed(number: int) -> bytes:
        blob, now = p.Blob(f"sha256:{number:064x}", 10 + number, p.release_path(number)), time.time()
        offer = p.AgentOffer(number, f"1.{number}", blob, "dev", "3.9", p.PROTOCOL, now - 5, now + 9999, 3 + number)
        return p.dumps(signer.sign(p.OFFER_TYPE, p.dumps(offer)))

    def opens(data: bytes) -> str:
        try:
            verify_offer(p.loads(p.Envelope, data), identity, now=time.time())
        except p.ProtocolError:
            return "no envelope"
        except AttemptError as error:
            return error.code
        return ACCEPTED

    good = signed(1)
    return Door("offer", good, mutations(good, (signed(2),)), opens)


def _bundles(folder: Path, served: FakeFarm) -> Door:
    """The bytes of a bundle, as a board fetches what was signed."""
    good = bundle()
    blob = served.blob(good, "lease-0001", "bundle")
    state = StateFolder(folder / "fetching")
    client = FarmClient(served.url, state, session="s" * 16, description=replace(description(), name="fetching"))
    served.credentials.add("")
    assert blob.url is not None

    def opens(data: bytes) -> str:
        served.blobs[str(blob.url)] = data
        with tempfile.NamedTemporaryFile(dir=folder) as to:
            try:
                client.download(blob, Path(to.name), should_stop=lambda: None)
            except AttemptError as error:
                return error.code
            except FarmError as error:
                return type(error).__name__
        return ACCEPTED

    another = bundle("crash")
    made = [Mutation("bytes", lambda rng: flipped(good, rng)), Mutation("another's bundle", lambda _: another)]
    return Door("bundle", good, made, opens)


def _bundle_files(folder: Path, farm: TestFarm, anchor: Signer) -> Door:
    """As a user verifies them, with the farm's statement; who changes one writes its manifest anew."""
    digest, another = farm.bundle(b"a model"), farm.bundle(b"yet another")
    good, other = (farm.http.get(f"/bundles/{one}").content for one in (digest, another))
    statement, path = folder / "statement.json", folder / "sent.pfb"
    statement.write_bytes(farm.http.get(f"/bundles/{digest}/statement").content)

    def opens(data: bytes) -> str:
        path.write_bytes(data)
        problem = verify_files([path, statement], trusted=anchor.public_key)[0].problem
        return " ".join(problem.split()[-4:]) if problem else ACCEPTED

    def rebuilds(name: str) -> Change:
        return lambda rng: rebuilt(good, name, flipped(unpacked(good)[name], rng))

    def message(field: str) -> Change:
        return lambda rng: rebuilt(
            good, "report.json", unpacked(good)["report.json"], **{field: rng.choice(("other", 1, None, []))}
        )

    entries = [Mutation("bytes", lambda rng: flipped(good, rng)), Mutation("another's bundle", lambda _: other)]
    entries += [
        Mutation(f"{name}, and a new manifest", rebuilds(name)) for name in unpacked(good) if name != "manifest.json"
    ]
    entries += [
        Mutation(f"manifest: {field}", message(field)) for field in ("target", "digests", "plan", "kernels", "batch")
    ]
    return Door("bundle file", good, entries, opens)
