"""Who sends requests in a campaign, and what the farm holds that they may name."""

from __future__ import annotations

import io
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from device_agents import wire
from tests.service.board import Board
from tests.thorough.requests.turns import Turns
from tests.workers.live import LiveFarm

KEPT = 200
"""Names of one kind, the newest."""
KINDS = {
    "run": "run_id",
    "job": "job_id",
    "dev": "device_id",
    "key": "key_id",
    "org": "organisation_id",
    "usr": "user_id",
    "upl": "upload_id",
    "hook": "webhook_id",
    "mnt": "window_id",
    "tok": "token_id",
    "grp": "group_id",
    "rel": "release_id",
}
"""What a path calls the id that begins so."""
OF_REPORTED = 0.6
"""Where a run is named."""
OTHER_TONGUE = "a board that does not say which protocol it speaks"
KEYS: Mapping[str, dict[str, Any]] = {
    "user": {"role": "user"},
    "reader": {"scopes": ["read"]},
    "submitter": {"scopes": ["submit"]},
    "admin": {"scopes": ["admin"]},
}


@dataclass
class Names:
    """What can be named, by the parameter or field that names it. Answers add to it."""

    known: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    needed: set[str] = field(default_factory=set)
    """Whoever is to ask until the end: not to be named, for it could be revoked."""

    files: dict[str, bytes] = field(default_factory=dict)
    """What a form may carry, by field."""
    reported: list[str] = field(default_factory=list)
    """Runs that have a report that counts."""

    def add(self, kind: str, value: object) -> None:
        """One more, unless it is no name."""
        if isinstance(value, str) and value and value not in self.needed and value not in self.known[kind]:
            self.known[kind] = [*self.known[kind][-KEPT:], value]

    def learn(self, body: object) -> None:
        """Ids and digests of an answer, by their form."""
        for key, value in _texts(body):
            if key.endswith("digest") or value.startswith("sha256:"):
                self.add("digest", value)
            kind = KINDS.get(value.partition("_")[0])
            if kind and "_" in value:
                self.add(kind, value)
            if key in ("lease_token", "token", "cursor", "next"):
                self.add("cursor" if key == "next" else key, value)

    def choose(self, kind: str, rng: random.Random) -> str | bytes | list[str] | None:
        """One of that kind; None if there is none."""
        if kind in self.files:
            return self.files[kind]
        if kind == "others":
            return rng.choices(self.known["bundle"], k=rng.randint(1, 3)) if self.known.get("bundle") else None
        if kind in ("run_id", "other_id") and self.reported and rng.random() < OF_REPORTED:
            return rng.choice(self.reported)
        kind = "run_id" if kind == "other_id" else kind
        known = self.known.get(kind, [])
        return rng.choice(known) if known else None


def _texts(body: object, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(body, dict):
        for name, value in body.items():
            yield from _texts(value, str(name))
    elif isinstance(body, list):
        for value in body[:20]:
            yield from _texts(value, key)
    elif isinstance(body, str) and len(body) < 200:
        yield key, body


@dataclass(frozen=True)
class Callers:
    """Headers by role. A board's are for the agents' endpoints."""

    headers: Mapping[str, Mapping[str, str]]

    def choose(self, path: str, rng: random.Random) -> tuple[str, dict[str, str]]:
        """(role, headers): most often one who may ask for this."""
        usual = "board" if path.startswith("/agent/") else "operator"
        role = usual if rng.random() < 0.7 else rng.choice(list(self.headers))
        spoken = {wire.PROTOCOL_HEADER: wire.PROTOCOL} if usual == "board" and role != OTHER_TONGUE else {}
        return role, {**spoken, **self.headers[role]}


def settle(farm: LiveFarm) -> tuple[Callers, Names, Turns]:
    """A farm with one of each thing: bundles, a data set, devices with work, a job, runs that wait and have ended."""
    names = Names()
    bundle, other = (farm.wait_for_job(farm.compile(model)["id"])["bundle_digest"] for model in ("fine", "fine too"))
    farm.kill("worker")  # what is asked for afterwards waits
    data = io.BytesIO()
    np.savez(data, x=np.zeros((16, 1, 8, 8), np.float32), y=np.arange(16) % 10)
    dataset = (
        farm.http.post("/datasets", files={"file": ("x.npz", data.getvalue())}).raise_for_status().json()["digest"]
    )
    board = Board(httpx.Client(base_url=farm.http.base_url, timeout=30, trust_env=False))
    board.enrol(token_of(farm))
    runs = [
        farm.http.post("/runs", json={"bundle": bundle, "mode": "profile"}).raise_for_status().json()["id"]
        for _ in range(3)
    ]
    for _ in range(2):
        work = board.lease()
        assert work is not None
        names.add("lease_token", work.lease_token)
        if not names.needed:
            board.report(work).raise_for_status()
            names.needed.add(board.device_id)
    for digest in (bundle, dataset):
        names.add("digest", digest)
    for run in runs:
        names.add("run_id", run)
    names.add("job_id", farm.compile("a model")["id"])
    for kind, value in (
        ("name", "plan"),
        ("plan", "full"),
        ("plan", "bias-only"),
        ("target", "x86-64-v3"),
        ("spec", "batch: 4"),
        ("mode", "profile"),
        ("mode", "train"),
        ("mode", "compare"),
        ("device_class", "x86-64"),
        ("model", "m"),
        ("external", "{}"),
        ("phase", "run"),
    ):
        names.add(kind, value)
    names.files["file"] = data.getvalue()
    names.add("bundle", bundle)
    names.add("bundle", other)
    names.add("dataset", dataset)
    headers = {"operator": {"Authorization": farm.http.headers["Authorization"]}, **keys(farm, names)}
    spare = Board(board.http, name="spare").enrol(token_of(farm))
    names.add("device_id", spare.device_id)
    board.http.close()
    headers |= {
        "board": bearer(board.credential),
        OTHER_TONGUE: bearer(board.credential),
        "stranger": {},
        "somebody's invention": bearer("0" * 64),
    }
    return Callers(headers), names, turns(farm, names, headers["operator"])


def turns(farm: LiveFarm, names: Names, operator: Mapping[str, str]) -> Turns:
    """A board that takes comparisons, on a connection of its own."""
    http = httpx.Client(base_url=farm.http.base_url, timeout=60, trust_env=False)
    board = Board(http, name="turns", modes=("compare",)).enrol(token_of(farm))
    names.needed.add(board.device_id)
    return Turns(board, operator, list(names.known["bundle"]), names.needed)


def token_of(farm: LiveFarm) -> str:
    return str(farm.http.post("/devices/enrolment-tokens", json={}).raise_for_status().json()["token"])


def keys(farm: LiveFarm, names: Names) -> dict[str, dict[str, str]]:
    """Callers with less than everything, and one of another organisation."""
    secrets = {
        role: farm.http.post("/keys", json={"name": role, **request}).raise_for_status().json()
        for role, request in KEYS.items()
    }
    other = farm.http.post("/organisations", json={"name": "another"}).raise_for_status().json()["id"]
    secrets["another's operator"] = (
        farm.http.post(f"/organisations/{other}/keys", json={"name": "theirs"}).raise_for_status().json()
    )
    names.needed |= {one["id"] for one in farm.http.get("/keys").raise_for_status().json()}
    names.needed |= {one["id"] for one in farm.http.get("/organisations").raise_for_status().json()}
    return {role: bearer(one["secret"]) for role, one in secrets.items()}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
