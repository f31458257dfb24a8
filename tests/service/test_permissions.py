"""Every address x every role x own, other's and nobody's: nothing of another organisation is read, written or betrayed.

Addresses come from the application itself (those of its OpenAPI document, and its pages), what they ask for from
`service/people/permissions.py`: an address that is new is in the matrix, or keeps the farm from starting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event

from device_agents import wire as p
from service.app import addresses
from service.base.identifiers import digest_of, new_id
from service.feature_list import PERMISSIONS
from service.people.permissions import ROLES, SCOPES, Gaps, Permissions, Rule
from tests.sample import sample, thinned
from tests.service.farms import TestFarm, npz, open_test_farm
from tests.service.tenants import BYTE, PIECE, Tenant, begin_upload, everything, make_tenant

ACME, OTHER = "acmemarker", "othermarker"
ROLE_SCOPES: Mapping[str, tuple[str, ...]] = {**{scope: (scope,) for scope in SCOPES}, **ROLES}
CALLERS = ("stranger", *ROLE_SCOPES, "home")
NOBODYS = {"digest": "sha256:" + "ab" * 32}
PATHS = {"{ending}": "csv", "{token}": "x", "{lease_token}": "x"}
NAMES = {
    "/schemas/{name}": "plan",
    "/dashboard/static/{name}": "pockfarm.css",
    "/dashboard/jobs/{job_id}/{name}.{ending}": "runs",
    "/dashboard/runs/{run_id}/{name}.{ending}": "losses",
    "/dashboard/devices/{device_id}/{name}.{ending}": "history",
}
QUERIES = {"/tunings": "?target=x86-64-v3", "PUT /uploads/{upload_id}": f"?digest={digest_of(BYTE)}"}
HOOK = "http://127.0.0.1:9/"
"""Where nobody listens."""
STORAGE_CALLS = ("put", "size", "read", "local", "delete", "append", "adopt", "discard")
"""What takes time by what is stored."""
LAST = ("DELETE", "close", "/remove", "/revoke")
"""What ends things is asked for after everything else."""


IDS = {
    "device": "dev",
    "user": "usr",
    "enrolment_token": "tok",
    "window": "mnt",
    "webhook": "hook",
    "group": "grp",
    "upload": "upl",
}
"""Beginnings of ids that are not the kind itself."""


class Matrix:
    """Two organisations on one farm, and keys of every role of the first."""

    def __init__(self, farm: TestFarm, *, asks_everybody: bool) -> None:
        """`asks_everybody`: each address is asked for in every role (`callers`)."""
        self.farm, self.asks_everybody = farm, asks_everybody
        self.acme, self.other = (make_tenant(farm, marker, hook=HOOK) for marker in (ACME, OTHER))
        self.third = farm.http.post("/organisations", json={"name": "a third"}).json()["id"]
        self.keys = {role: self.acme.farm.key(scopes=scopes) for role, scopes in ROLE_SCOPES.items()}
        self.keys |= {"stranger": {}, "home": farm.key("operator")}
        self.plan = self.acme.farm.http.get(f"/bundles/{self.acme.bundle}/info").json()["plan_digest"]
        self.untouched = everything(self.other)
        self.statements: list[str] = []
        event.listen(farm.farm.database.engine, "before_cursor_execute", self._note)
        storage = farm.farm.storage
        for name in STORAGE_CALLS:
            setattr(storage, name, self._noted(f"storage.{name}", getattr(storage, name)))

    def callers(self, address: str) -> tuple[str, ...]:
        """Who asks for the address: everybody; or a stranger, one who may, one who may not, and home, where these
        are others from address to address."""
        if self.asks_everybody:
            return CALLERS
        rule, turn = PERMISSIONS[address], ordered().index(address)
        groups = [[role for role in ROLE_SCOPES if (allowed(rule, role) is None) is may] for may in (True, False)]
        return ("stranger", *(group[turn % len(group)] for group in groups if group), "home")

    def _noted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*words: Any, **named: Any) -> Any:
            self.statements.append(name)
            return call(*words, **named)

        return noted

    def _note(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        self.statements.append(statement)

    def ask(self, address: str, role: str, whose: Tenant | None) -> httpx.Response:
        """`whose` None: of nobody, an id or digest that never was."""
        method, path = address.split(" ")
        for word, value in PATHS.items():
            path = path.replace(word, value)
        path = path.replace("{name}", NAMES.get(address.split(" ")[1], ""))
        path = path.replace("{organisation_id}", self.third)
        path = path.replace("{plan_digest}", self.plan)
        path = path.replace("{change_id}", whose.change if whose is not None else new_id("chg"))
        owned = PERMISSIONS[address].owned
        if owned == "upload" and whose is self.acme:  # each is finished, or ended, once
            named = begin_upload(self.acme.farm, BYTE if method == "PUT" else b"")
        elif owned == "window" and whose is self.acme and address.endswith("/remove"):
            named = self.acme.farm.http.post("/maintenance", **self.body("POST /maintenance")).json()["id"]
        else:
            named = self.thing(owned, whose) if owned else "x"
        path = re.sub(r"\{\w+\}", named, path)
        headers = {p.PROTOCOL_HEADER: p.PROTOCOL, "Accept": "application/json"} | PIECE | self.keys[role]
        self.statements.clear()
        client = self.farm.anonymous
        query = QUERIES.get(address, QUERIES.get(path, ""))
        return client.request(method, path + query, headers=headers, follow_redirects=False, **self.body(address))

    def thing(self, owned: str, whose: Tenant | None) -> str:
        if whose is not None:
            return whose.owned(owned)
        if owned in ("bundle", "dataset", "file"):
            return NOBODYS["digest"]
        return new_id(IDS.get(owned, owned))

    def body(self, address: str) -> dict[str, Any]:
        """A body that the address takes, of the caller's own things."""
        mine = self.acme
        bodies: dict[str, dict[str, Any]] = {
            "POST /compile": {"files": {"model": ("n.onnx", b"m")}, "data": {"plan": "full", "target": "x86-64-v3"}},
            "POST /datasets": {"files": {"file": ("d.npz", npz(x=[[1.0]], y=[1]))}},
            "POST /tune": {"json": {"bundle": mine.bundle}},
            "POST /runs": {"json": {"bundle": mine.bundle}},
            "PATCH /runs/{run_id}": {"json": {"name": "n"}},
            "POST /keys": {"json": {"name": "k"}},
            "POST /users": {"json": {"name": new_id("person")}},
            "POST /organisations": {"json": {"name": new_id("name")}},
            "POST /organisations/{organisation_id}/keys": {"json": {"name": "k"}},
            "PATCH /organisations/{organisation_id}": {"json": {}},
            "POST /devices/enrolment-tokens": {"json": {}},
            "PATCH /devices/{device_id}": {"json": {"name": new_id("name")}},
            "POST /dashboard/devices/{device_id}/rename": {"data": {"name": new_id("name")}},
            "POST /devices/{device_id}/quarantine": {"json": {"reason": "r"}},
            "POST /devices/{device_id}/release": {"json": {"reason": "r"}},
            "POST /devices/{device_id}/drain": {"json": {"reason": "r"}},
            "POST /devices/{device_id}/tags": {"json": {"set": {"a": ""}}},
            "POST /run-groups": {"json": {"bundle": mine.bundle}},
            "POST /maintenance": {"json": {"starts_at": "2400-01-01T00:00:00Z", "ends_at": "2400-01-02T00:00:00Z"}},
            "POST /webhooks": {"json": {"url": "https://hook.example/"}},
            "POST /uploads": {"json": {"kind": "model", "size_bytes": 1}},
            "PATCH /uploads/{upload_id}": {"content": BYTE},
            "POST /dashboard/admin/enrolment": {"data": {"name": "shelf"}},
            "POST /dashboard/admin/people": {"data": {"name": new_id("person")}},
            "POST /dashboard/admin/organisations": {"data": {"name": new_id("name")}},
            "POST /dashboard/admin/windows": {"data": {"starts_at": "2400-01-01T00:00", "ends_at": "2400-01-02T00:00"}},
            "POST /dashboard/admin/webhooks": {"data": {"url": "https://hook.example/", "events": "run.ended"}},
            "POST /dashboard/admin/keys": {"data": {"name": "k", "may": "read"}},
            "POST /devices/{device_id}/canary": {"json": {"enabled": True}},
            "POST /devices/{device_id}/canaries/{change_id}/acknowledge": {"json": {"reason": "r"}},
        }
        return bodies.get(address, {})


@pytest.fixture(scope="module", params=sample(["four", "everybody"], {"four"}))
def matrix(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path, loopback: None
) -> Iterator[Matrix]:
    folder = tmp_path_factory.mktemp("matrix")
    url = f"sqlite:///{folder / 'farm.db'}"
    (folder / "farm.db").write_bytes(migrated_sqlite.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "service.store.database.memory.KEPT_S", 0.0
        )  # of two requests the second would be spared statements
        with open_test_farm(folder / "state", url, webhook_networks="127.0.0.0/8") as farm:
            yield Matrix(farm, asks_everybody=request.param == "everybody")


def ordered() -> list[str]:
    return sorted(PERMISSIONS, key=lambda address: (any(word in address for word in LAST), address))


def allowed(rule: Rule, role: str) -> tuple[int, str] | None:
    """The refusal that a role gets whatever it asks for; None: it may use the address."""
    if rule.is_devices:
        return (401, "agent.credential")
    if rule.scope is None:
        return None
    if role == "stranger":
        return (401, "auth.missing")
    if rule.scope not in (SCOPES if role == "home" else ROLE_SCOPES[role]):
        return (403, "auth.scope")
    return (403, "auth.farm") if rule.is_farms and role != "home" else None


def test_every_address_has_a_line_and_every_line_an_address(matrix: Matrix) -> None:
    app = matrix.farm.anonymous.app
    described = {f"{method.upper()} {path}" for path, methods in app.openapi()["paths"].items() for method in methods}
    assert described <= set(PERMISSIONS)
    assert set(addresses(app)) == set(PERMISSIONS)
    with pytest.raises(Gaps, match="GET /new"):
        Permissions(PERMISSIONS).refuse_gaps([*PERMISSIONS, "GET /new"])
    with pytest.raises(Gaps, match="about no address: GET /jobs"):
        Permissions(PERMISSIONS).refuse_gaps(set(PERMISSIONS) - {"GET /jobs"})


@pytest.mark.parametrize("address", thinned(ordered(), 33))
def test_the_matrix(matrix: Matrix, address: str) -> None:
    rule = PERMISSIONS[address]
    is_deleted = False
    for role in matrix.callers(address):
        refusal = allowed(rule, role)
        others = matrix.ask(address, role, matrix.other)
        asked = [re.sub(r"IN \([?, ]+\)", "IN (?)", one) for one in matrix.statements]
        if refusal is not None:
            assert (others.status_code, others.json()["code"][: len(refusal[1])]) == refusal, (role, others.text)
        elif rule.owned is not None:
            nobodys = matrix.ask(address, role, None)
            assert others.status_code == 404, (role, others.text)
            assert plain(others, matrix.other.owned(rule.owned)) == plain(nobodys, nobodys.request.url.path), role
            assert asked == [re.sub(r"IN \([?, ]+\)", "IN (?)", one) for one in matrix.statements], "other work"
            if role != "home":
                own = matrix.ask(address, role, matrix.acme)
                is_gone = is_deleted and own.status_code == 404
                is_done = own.status_code < 300 or (own.status_code == 303 and "/dashboard/" in address)  # a form
                assert is_done or is_gone, (role, own.text)
                is_deleted = address.startswith("DELETE")
                assert OTHER not in own.text
        elif address != "GET /readyz":  # no worker lives here
            assert others.status_code < 500, (role, others.text)
            assert others.status_code not in (401, 403) or rule.scope is None, (role, others.text)
        said = others.text.replace(matrix.other.owned(rule.owned), "") if rule.owned else others.text
        if not rule.is_farms:
            names = {OTHER, *matrix.other.names} - ({matrix.other.farm.organisation_id} if role == "home" else set())
            assert not [name for name in names if name in said], role  # home's own log names what it founded
    assert everything(matrix.other) == matrix.untouched


def plain(answer: httpx.Response, _named: str) -> dict[str, Any]:
    """A refusal without the name that was asked for."""
    body = answer.json()
    name = re.escape(answer.request.url.path.split("/")[-1])
    words = re.compile(
        r"(sha256:[0-9a-f]{64}|(job|run|dev|chg|key|usr|user|device|tok|mnt|hook|grp)_[0-9a-z]{26}|" + name + ")"
    )
    return {key: words.sub("NAME", str(value)) for key, value in body.items()}


def test_lists_pages_and_files_hold_nothing_of_others(matrix: Matrix) -> None:
    """Whatever is read without a name in its path, with every filter that could name something of others."""
    other, headers = matrix.other, matrix.keys["operator"]
    run, job = matrix.acme.run, matrix.acme.job
    queries = (
        f"/jobs?model=net-{OTHER}",
        f"/jobs?cursor={other.job}",
        f"/runs?bundle={other.bundle}",
        f"/runs?device={other.device}",
        f"/runs?model=net-{OTHER}",
        f"/runs?cursor={other.run}",
        "/bundles",
        f"/bundles?model_digest={other.model}",
        "/datasets",
        "/devices",
        "/devices?state=active",
        "/keys",
        "/users",
        "/tunings?target=x86-64-v3",
        "/organisation",
        "/dashboard",
        "/dashboard/jobs",
        "/dashboard/runs",
        "/dashboard/devices",
        "/dashboard/benchmarks?verdicts=all",
        f"/dashboard/compare?run={run}&run={other.run}",
        f"/dashboard/compare.csv?run={run}&run={other.run}",
        f"/dashboard/runs.json?device={other.device}",
        "/dashboard/runs.csv?sort=-created_at",
        "/dashboard/jobs.csv?sort=created_at",
        "/dashboard/devices.json",
        "/dashboard/benchmarks.json?verdicts=all",
        f"/dashboard/runs?before={other.run}",
        f"/dashboard/jobs/{job}/runs.csv",
        f"/dashboard/devices/{matrix.acme.device}/runs.csv",
    )
    for query in queries:
        answer = matrix.farm.anonymous.get(query, headers=headers)
        assert answer.status_code < 500, (query, answer.text)
        asked = answer.text
        for name in re.findall(r"=([^&]*)", query):  # a page may show again what was asked for
            asked = asked.replace(name, "")
        found = [name for name in (OTHER, *other.names) if name in asked]
        assert not found, (query, found)


@pytest.mark.parametrize(
    ("path", "field", "kind"),
    [
        ("/runs", "bundle", "bundle"),
        ("/runs", "dataset", "dataset"),
        ("/runs", "validation_dataset", "dataset"),
        ("/runs", "weights", "weights"),
        ("/runs", "device", "device"),
        ("/tune", "bundle", "bundle"),
        ("/keys", "user", "user"),
        ("/run-groups", "bundle", "bundle"),
        ("/run-groups", "dataset", "dataset"),
        ("/run-groups", "validation_dataset", "dataset"),
        ("/run-groups", "weights", "weights"),
        ("/maintenance", "device", "device"),
    ],
)
def test_a_body_that_names_what_is_anothers_is_answered_as_one_that_names_nothing(
    matrix: Matrix, path: str, field: str, kind: str
) -> None:
    run = {"bundle": matrix.acme.bundle, "mode": "train", "dataset": matrix.acme.dataset}
    times = {"starts_at": "2400-01-01T00:00:00Z", "ends_at": "2400-01-02T00:00:00Z"}
    bodies = {"/runs": run, "/run-groups": run, "/maintenance": times, "/tune": {}, "/keys": {"name": "k"}}
    whole = bodies[path]
    if path == "/run-groups":
        matrix.acme.farm.board()  # a group is for devices that are there
    nobodys = NOBODYS["digest"] if kind in ("bundle", "dataset", "weights") else new_id("dev")
    answers = []
    for named in (matrix.other.owned(kind), nobodys):
        body = whole | {field: named}
        answer = matrix.farm.anonymous.post(path, json=body, headers=matrix.keys["operator"])
        assert answer.status_code == 404, answer.text
        answers.append(answer.text.replace(named, "NAME"))
    assert answers[0] == answers[1]


def test_an_upload_of_what_another_is_sending_is_ones_own(matrix: Matrix) -> None:
    """Whoever names the digest of a file that is under way goes on with it, if it is his."""
    body = {"kind": "model", "size_bytes": 1, "digest": digest_of(b"what both send")}
    theirs, mine, again = (
        one.farm.http.post("/uploads", json=body) for one in (matrix.other, matrix.acme, matrix.acme)
    )
    assert theirs.status_code == mine.status_code == 202
    assert theirs.json()["id"] != mine.json()["id"] == again.json()["id"]


def test_a_model_that_another_sent_must_be_sent(matrix: Matrix) -> None:
    form = {"plan": "full", "target": "x86-64-v3"}
    listing = json.dumps(
        {"external": {"w.data": matrix.other.dataset}, "model": matrix.other.model, "schema": "pockfarm.model/1"},
        sort_keys=True,
        separators=(",", ":"),
    )
    for answer in (
        matrix.acme.farm.http.post("/compile", data=form | {"model": matrix.other.model}),
        matrix.acme.farm.compile(b"m", external=json.dumps({"w.data": matrix.other.model})),
        matrix.acme.farm.compile(listing.encode()),
    ):
        assert answer.status_code == 404, answer.text
        assert answer.json()["code"] in ("model.unknown", "model.external-missing")


def test_equal_requests_of_two_organisations_are_two_jobs(matrix: Matrix) -> None:
    """The same bytes, twice each: the second of an organisation is its first's, never another's."""
    mine, other = matrix.acme.farm, matrix.other.farm
    jobs = [farm.compile(b"the same model").json() for farm in (mine, other, mine, other)]
    assert (jobs[0]["id"], jobs[1]["id"]) == (jobs[2]["id"], jobs[3]["id"])
    assert jobs[0]["id"] != jobs[1]["id"]
    assert jobs[1]["state"] == "queued"
    model = jobs[0]["model"]["digest"]
    bundles = {mine.work_off(jobs[0]["id"], model=model), other.work_off(jobs[1]["id"], model=model)}
    assert len(bundles) == 1
    (bundle,) = bundles
    assert other.http.get(f"/bundles/{bundle}/info").json()["created_at"] > jobs[1]["created_at"]
    arrays = {"x": [[[1.5]]], "y": [3]}
    first, second = mine.send_dataset(**arrays), other.send_dataset(**arrays)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["digest"] == second.json()["digest"]
    assert second.json()["created_at"] > first.json()["created_at"]


def test_ids_of_events_do_not_count_what_others_do(matrix: Matrix) -> None:
    as_list = {"Accept": "application/json"}
    for tenant in (matrix.acme, matrix.other):
        path = f"/runs/{tenant.run}/events"
        seen = tenant.farm.http.get(path, headers=as_list).json()
        assert [one["id"] for one in seen] == list(range(1, len(seen) + 1))
        assert tenant.farm.http.get(f"{path}?after=2", headers=as_list).json() == seen[2:]
        assert tenant.farm.http.get(path, headers={"Last-Event-ID": "2"}).text.startswith("retry: 2000\n\nid: 3\n")
