"""Whatever a request holds, the answer is not a failure of the farm.

Every parameter, header and field of every endpoint with every odd value, on both databases, in a fixed order.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest

from device_agents import wire as p
from service.base.identifiers import digest_of
from service.boards.fleet import tokens
from service.boards.fleet.schemas import EnrolmentTokenCreate
from tests.sample import sample
from tests.service.board import Board
from tests.service.farms import TestFarm

LONE = "\ud800"
SOON, LATER = "2400-01-01T00:00:00Z", "2400-01-02T00:00:00Z"
TEXTS = (
    "",
    "\0",
    "²",
    "9" * 400,
    str(1 << 63),
    "-1",
    "0x10",
    "../../etc/passwd",
    "x" * 3000,
    "%00%ff",
    "\N{PILE OF POO}\u202e\u2028\r\nX-B: c",
)
VALUES: tuple[Any, ...] = (
    *("", "a\0b", "²", "9" * 400, "x" * 3000, LONE, "a" + LONE, 0, -1, 1 << 31, 1 << 63, 1 << 64, 10**400, 1e308),
    *(float("nan"), float("inf"), None, True, [], {}, [[]], {LONE: LONE}),
)
FEW_TEXTS = ("\0", "²", str(1 << 63), TEXTS[-1])
FEW_VALUES: tuple[Any, ...] = ("", "a\0b", LONE, -1, 1 << 63, 10**400, float("nan"), None, [], {LONE: LONE})
"""What has been taken for something else before: by a database, by `int`, by an encoder."""
BODIES = (
    b"",
    b"{",
    b"null",
    b"[]",
    b'"x"',
    b"\xff\xfe",
    b"\0",
    b"NaN",
    b"9" * 5000,
    b"[" * 50_000,
    b'{"a":' * 20_000,
    b'{"\\ud800": 1}',
    '{"a": "\ud800"}'.encode("utf-8", "surrogatepass"),
    b"\xef\xbb\xbf{}",
)
STREAMS = {"Accept": "application/json"}
Request = tuple[str, str, dict[str, Any]]


def odd_fields(value: Any, odd: tuple[Any, ...], make: Callable[[Any], Any] = lambda odd: odd) -> Iterator[Any]:
    """`value` with each of its parts in turn replaced by each odd value, missing, or beside an unknown one."""
    yield from (make(one) for one in odd)
    if isinstance(value, dict):
        for key, part in value.items():
            yield from (make(value | {key: new}) for new in odd_fields(part, odd))
            yield make({other: kept for other, kept in value.items() if other != key})
        yield from (make(value | {name: 1}) for name in ("unknown", "", "\0", LONE))
    elif isinstance(value, list) and value:
        yield from odd_fields(value[0], odd, lambda new: make([new, *value[1:]]))


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()  # NaN and lone surrogates too, as escapes


FAILED: list[str] = []


@pytest.fixture(autouse=True)
def no_failures() -> Iterator[None]:
    FAILED.clear()
    yield
    assert not FAILED, f"{len(FAILED)} requests failed, such as\n" + "\n".join(FAILED[:20])


@pytest.fixture(params=sample(["few", "all"], {"few"}))
def texts(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return TEXTS if request.param == "all" else FEW_TEXTS


@pytest.fixture(params=sample(["few", "all"], {"few"}))
def values(request: pytest.FixtureRequest) -> tuple[Any, ...]:
    return VALUES if request.param == "all" else FEW_VALUES


def sent(farm: TestFarm, method: str, path: str, **parts: Any) -> httpx.Response:
    """The answer, which is no failure, and is a problem document if it refuses."""
    answer = farm.http.request(method, path, **parts)
    if answer.status_code >= 500:
        FAILED.append(f"{method} {path[:200]} {str(parts)[:600]} {answer.text[:100]}")
        return answer
    if answer.status_code >= 400 and method != "HEAD" and "text/html" not in answer.headers["content-type"]:
        problem = answer.json()
        assert problem["code"], (method, path)
        assert problem["detail"], (method, path)
    return answer


@pytest.fixture
def known(farm: TestFarm) -> dict[str, str]:
    return things(farm)


def things(farm: TestFarm) -> dict[str, str]:
    """One of each thing, by the name of the parameter that names it."""
    bundle, dataset, board = farm.bundle(), farm.dataset(), farm.board()
    run = farm.run(bundle=bundle, mode="profile")
    work = board.lease()
    assert work is not None
    board.report(work)
    job = farm.compile(b"cancelled").json()["id"]
    farm.http.post(f"/jobs/{job}/cancel")
    return {
        "bundle": bundle,
        "digest": bundle,
        "dataset": dataset,
        "device_id": board.device_id,
        "run_id": run["id"],
        "job_id": job,
        "key_id": "key_none",
        "token": "none",
        "lease_token": work.lease_token,
        "name": "kernels",
        "place": "1",
        "other_id": run["id"],
        "change_id": "chg_none",
        "ending": "csv",
        "target": "x86-64-v3",
        "kind": "bundles",
        "path": "none",
        "model_digest": digest_of(b"model"),
        "plan_digest": digest_of(b"plan"),
        "organisation_id": made(farm, "/organisations", name="another"),
        "user_id": made(farm, "/users", name="somebody"),
        "token_id": made(farm, "/devices/enrolment-tokens"),
        "window_id": made(farm, "/maintenance", starts_at=SOON, ends_at=LATER),
        "webhook_id": made(farm, "/webhooks", url="https://hook.example/"),
        "group_id": made(farm, "/run-groups", bundle=bundle),
        "upload_id": made(farm, "/uploads", kind="dataset", digest=digest_of(b"x"), size_bytes=1),
    }


def made(farm: TestFarm, path: str, **body: Any) -> str:
    """The id of a new thing."""
    answer = farm.http.post(path, json=body)
    assert answer.status_code in (201, 202), answer.text
    return str(answer.json()["id"])


Operation = tuple[str, str, list[tuple[str, str]]]


def operations(farm: TestFarm) -> list[Operation]:
    """(method, path, its (place, name) parameters) of every endpoint, the dashboard's too."""
    app: Any = farm.http.app
    routes = [route for included in app.routes[1:] for route in included.effective_route_contexts()]
    return [(method, route.path, _parameters(route.dependant)) for route in routes for method in sorted(route.methods)]


def _parameters(dependant: Any) -> list[tuple[str, str]]:
    parameters = [
        (place, field.alias) for place in ("path", "query", "header") for field in getattr(dependant, f"{place}_params")
    ]
    return parameters + [one for inner in dependant.dependencies for one in _parameters(inner)]


def fill(path: str, known: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: quote(known[match[1]], safe=""), path)


def test_odd_paths_queries_and_headers(farm: TestFarm, known: dict[str, str], texts: tuple[str, ...]) -> None:
    swept = operations(farm)
    documented = {(m.upper(), path) for path, ms in farm.http.get("/openapi.json").json()["paths"].items() for m in ms}
    assert documented | {("GET", "/dashboard/runs.{ending}")} <= {(method, path) for method, path, _ in swept}
    for method, path, parameters in swept:
        for place, name in parameters:
            for text in texts:
                here = known | (
                    {name: text} if place == "path" else {"device_id": "dev_none"} if method != "GET" else {}
                )
                query = {"target": "t"} | ({name: text} if place == "query" else {})
                headers = STREAMS | ({name: text.encode()} if place == "header" else {})
                sent(farm, method, f"{fill(path, here)}?{urlencode(query)}", headers=headers)


HEADERS = (
    "Authorization",
    "Cookie",
    "Accept",
    "If-None-Match",
    "Content-Type",
    "Last-Event-ID",
    "Idempotency-Key",
    "Origin",
    "Sec-Fetch-Site",
    "Host",
    "Content-Length",
    p.PROTOCOL_HEADER,
    p.DIGEST_HEADER,
)


def test_odd_headers_of_the_protocols(small_farm: TestFarm, texts: tuple[str, ...]) -> None:
    farm, known = small_farm, things(small_farm)
    places = (
        ("GET", f"/jobs/{known['job_id']}"),
        ("POST", "/compile"),
        ("GET", "/dashboard"),
        ("POST", "/agent/lease"),
        ("PUT", f"/agent/attempts/{known['lease_token']}/weights"),
    )
    form = "multipart/form-data; boundary="
    odd = (
        *texts,
        "a\r\nX-B: c",
        "Bearer " + "²" * 40,
        "Bearer \0",
        "pockfarm_session=²",
        form,
        f"{form}b; charset=nonsense",
    )
    for method, path in places:
        for name in HEADERS:
            for text in odd:
                sent(farm, method, path, headers=STREAMS | {name: text.encode()}, content=b"x"[: method != "GET"])


def json_bodies(known: Mapping[str, str]) -> dict[str, Any]:
    """A body that each endpoint takes."""
    return {
        "/runs": {
            "bundle": known["bundle"],
            "device": known["device_id"],
            "device_class": "x86-64",
            "mode": "profile",
            "target": "x86-64-v3",
            "steps": 2,
            "warmup": 1,
            "dataset": known["dataset"],
            "seed": 1,
            "weights": None,
            "learning_rate": 0.1,
            "threads": 1,
            "tune_s": 1.0,
        },
        "/tune": {"bundle": known["bundle"]},
        "/keys": {"name": "n", "role": "user"},
        "/devices/enrolment-tokens": {"device_class": "x86-64"},
        f"/devices/{known['device_id']}/quarantine": {"reason": "why"},
        f"/devices/{known['device_id']}/release": {"reason": "why"},
    }


def test_odd_json_bodies(farm: TestFarm, known: dict[str, str], values: tuple[Any, ...]) -> None:
    headers = {"Content-Type": "application/json"}
    for path, body in json_bodies(known).items():
        assert sent(farm, "POST", path, json=body).status_code < 300
        for content in (*map(as_json, odd_fields(body, values)), *BODIES):
            sent(farm, "POST", path, content=content, headers=headers)
    about = {"name": "n", "note": "n", "tags": ["a"]}
    for content in (*map(as_json, odd_fields(about, values)), *BODIES):
        sent(farm, "PATCH", f"/runs/{known['run_id']}", content=content, headers=headers)
    for content in (*map(as_json, odd_fields({"name": "n"}, values)), *BODIES):
        sent(farm, "PATCH", f"/devices/{known['device_id']}", content=content, headers=headers)
    for path in (
        "/runs",
        "/keys",
        "/jobs",
        "/devices",
        "/bundles",
        "/datasets",
        "/dashboard",
        "/dashboard/runs",
        "/dashboard/runs.csv",
        "/dashboard/devices.json",
        f"/devices/{known['device_id']}",
    ):
        sent(farm, "GET", path)  # nothing that was taken makes a list unreadable


def test_odd_forms(farm: TestFarm, texts: tuple[str, ...]) -> None:
    texts = (
        *texts,
        "batch: 0x" + "f" * 300,
        "batch: 0x10",
        "a: &a [*a]",
        'name: "\\0"',
        '{"name": "\\ud800"}',
        "preset: full\nname: " + "x" * 250,
        "[" * 9000,
        "batch: " + "9" * 5000,
        "batch: 1:1:1:1",
    )
    for field in ("plan", "spec", "target", "name", "model", "unknown"):
        for text in texts:
            form = {"plan": "full", "target": "x86-64-v3", field: text}
            sent(farm, "POST", "/compile", data=form, files={} if field == "model" else {"model": ("m.onnx", b"m")})
            sent(farm, "POST", "/compile", data=form, files={field: (text[:100] or "f", text.encode())})
    for text in texts:
        sent(farm, "POST", "/datasets", data={"name": text}, files={"file": (text[:100] or "f", text.encode())})
        sent(farm, "POST", "/datasets", data={"file": text})
    for line in (b"", b'name=""', b'name="model"; filename="\xff"', b'name="\0"', b'name="plan"; filename*=x'):
        body = b"--b\r\nContent-Disposition: form-data; " + line + b"\r\n\r\nx\r\n--b--\r\n"
        for path in ("/compile", "/datasets"):
            for content in (body, body[:-8], b"--b--", b"\r\n"):
                sent(farm, "POST", path, content=content, headers={"Content-Type": "multipart/form-data; boundary=b"})


def speak(farm: TestFarm, board: Board, path: str, content: bytes) -> httpx.Response:
    headers = {
        p.PROTOCOL_HEADER: p.PROTOCOL,
        "Content-Type": "application/json",
        "Authorization": f"Bearer {board.credential}",
    }
    return sent(farm, "POST", path, content=content, headers=headers)


def plain(message: object) -> Any:
    return json.loads(p.dumps(message))


def test_odd_identities(farm: TestFarm, monkeypatch: pytest.MonkeyPatch, values: tuple[Any, ...]) -> None:
    """enrol, challenge, renew, lease, kept runs: each request could succeed but for its one odd part."""
    monkeypatch.setattr(p, "MAX_LONG_POLL_S", 0.0)
    board = farm.board()

    def enrol(change: Callable[[Any], Any]) -> None:
        with farm.farm.database.transaction() as session:
            token = tokens.create(session, farm.farm.settings, EnrolmentTokenCreate()).secret
        new = Board(farm.anonymous)
        request = new.enrolment(token)
        speak(farm, new, p.ENROL_PATH, as_json(change(plain(request))))

    def renew(change: Callable[[Any], Any]) -> None:
        challenge = farm.farm.signer.challenge(board.device_id)
        message = p.pae(p.CHALLENGE_TYPE, p.challenge_message(board.device_id, board.session, challenge))
        signature = base64.b64encode(board.key.sign(message)).decode()
        request = p.RenewRequest(board.device_id, board.session, challenge, signature, board.description)
        speak(farm, board, p.RENEW_PATH, as_json(change(plain(request))))

    def challenge(change: Callable[[Any], Any]) -> None:
        speak(farm, board, p.CHALLENGE_PATH, as_json(change(plain(p.ChallengeRequest(board.device_id)))))

    def lease(change: Callable[[Any], Any]) -> None:
        speak(farm, board, p.LEASE_PATH, as_json(change(plain(p.LeaseRequest(board.session, 0.0, 2)))))

    def keep(change: Callable[[Any], Any]) -> None:
        speak(farm, board, p.KEPT_PATH, as_json(change(plain(p.KeptRuns(("run_1",))))))

    description = plain(board.description)
    shapes: dict[Callable[[Callable[[Any], Any]], None], Any] = {
        enrol: {"token": "", "public_key": "", "session": "", "description": description},
        renew: {"device_id": "", "session": "", "challenge": "", "signature": "", "description": description},
        challenge: {"device_id": ""},
        lease: {"session": "", "wait_s": 0.0, "isolation_level": 2},
        keep: {"runs": [""]},
    }
    for act, shape in shapes.items():
        for path in (*paths(shape), ()):
            for odd in values:
                act(partial(replaced, path=path, new=odd))
    for url in (p.ENROL_PATH, p.CHALLENGE_PATH, p.RENEW_PATH, p.LEASE_PATH):
        for body in BODIES:
            speak(farm, board, url, body)
    for url in ("/devices?limit=200", "/dashboard", "/dashboard/devices", "/dashboard/devices.csv"):
        sent(farm, "GET", url)


def paths(value: Any) -> Iterator[tuple[Any, ...]]:
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (key,)
        yield from ((key, *rest) for rest in paths(part))


def found_at(value: Any, path: tuple[Any, ...]) -> Any:
    return found_at(value[path[0]], path[1:]) if path else value


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    if isinstance(value, list):
        return [replaced(part, path[1:], new) if at == path[0] else part for at, part in enumerate(value)]
    return value | {path[0]: replaced(value[path[0]], path[1:], new)}


def odd_parts(part: Any) -> tuple[Any, ...]:
    """What to put in a report in place of what is there."""
    if isinstance(part, str):
        return (LONE, "\0", "x" * 5000)
    if isinstance(part, int | float):
        return (-1, 1 << 31, (1 << 63) - 1, 1 << 63, 1e308)
    return (None, [], {})


def whole_report(board: Board, work: p.Assignment) -> Any:
    """A report with everything in it."""
    block = p.Block((1.0, 2.0), 3.0, cold=True)
    measurement = p.Measurement(
        batch=8,
        step_us=(1.0, 2.0),
        blocks=(block,),
        median_us=1.5,
        interval_low_us=1.0,
        interval_high_us=2.0,
        p90_us=2.0,
        p99_us=2.0,
        mean_us=1.5,
        samples_per_second=8e6 / 1.5,
        cv_within=0.4714,
        cv_between=0.0,
        warmup_steps=1,
        threads=1,
    )
    return plain(
        board.make_report(
            work,
            p.Outcome("failed", "user", "data.shape", "why", "what next"),
            measurement=measurement,
            kernels=(p.KernelTime(0, "k", "forward", 1.0, 1, 1, 1),),
            evaluation_before=p.Evaluation(1, 0.5, 0.5),
            evaluation_after=p.Evaluation(1, 0.5, 0.5),
            memory=p.Memory(1, 1, 1, 1, 1),
            energy=p.Energy(1.0, 1.0, "rapl"),
            device_states=(p.DeviceState(1.0, 40.0, 1e9, throttled=False, power_mw=1.0, load=0.1),),
            environment={"kernel": "6"},
        )
    )


def test_odd_reports_and_events(farm: TestFarm, values: tuple[Any, ...]) -> None:
    """What a board may report, the farm can store, and show again as JSON, page and file."""
    board, bundle = farm.board(), farm.bundle()
    work = lease_new(farm, board, bundle)
    event = plain(p.Event(1, 1.0, "step", "m", 1, 0.5, 1.0, 0.5, 1, 0.5))
    for odd in odd_fields({"events": [event]}, values):
        speak(farm, board, p.attempt_path(p.EVENTS_PATH, work.lease_token), as_json(odd))
    for odd in odd_fields(plain(p.HeartbeatRequest("run", 1)), values):
        speak(farm, board, p.attempt_path(p.HEARTBEAT_PATH, work.lease_token), as_json(odd))
    show(farm, work.run_id)
    taken: dict[Any, Any] = {}
    shape = whole_report(board, work)
    for path in paths(shape):
        for odd in odd_parts(found_at(shape, path)):
            changed = replaced(shape, path, odd)
            if is_report(changed) and (path[0] in CONTRADICTED or path[-1] in ("us", "flops")):
                continue
            if is_report(changed) and path[0] not in ABOUT:
                with contextlib.suppress(TypeError, KeyError, IndexError):  # a part of what this odd value has replaced
                    taken[repr(odd)] = replaced(taken.get(repr(odd), shape), path, odd)
            else:
                assert report(farm, board, work, as_json(changed)).status_code == 422, path
    assert len(taken) > 5
    for odd_report in taken.values():  # all that may be odd in the same way, in one report each
        here = odd_report | {"run_id": work.run_id, "device_id": board.device_id, "weights": None}
        answer = report(farm, board, work, as_json(here))
        assert answer.status_code == 200, answer.text
        show(farm, work.run_id)
        work = lease_new(farm, board, bundle)
    for url in (
        "/runs?limit=200",
        "/dashboard",
        "/dashboard/runs",
        "/dashboard/runs.csv",
        "/dashboard/benchmarks",
        "/dashboard/benchmarks.json",
        "/metrics",
    ):
        sent(farm, "GET", url)


def lease_new(farm: TestFarm, board: Board, bundle: str) -> p.Assignment:
    farm.run(bundle=bundle, device=board.device_id)
    work = board.lease()
    assert work is not None
    return work


ABOUT = ("run_id", "attempt", "device_id", "bundle_digest", "measurement_class")
"""What says which attempt, of which bundle, a report is about."""


CONTRADICTED = ("measurement", "run_s", "transfer_s", "mode", "losses")
"""What must fit the rest of the report, or what was asked: tests/thorough/hostile_devices/ has what is refused."""


def is_report(value: Any) -> bool:
    try:
        p.loads(p.Report, as_json(value))
    except p.ProtocolError:
        return False
    return True


def report(farm: TestFarm, board: Board, work: p.Assignment, payload: bytes) -> httpx.Response:
    signature = p.Signature(board.device_id, board.sign(p.REPORT_TYPE, payload))
    envelope = p.Envelope(p.REPORT_TYPE, base64.b64encode(payload).decode(), (signature,))
    return speak(farm, board, p.attempt_path(p.REPORT_PATH, work.lease_token), p.dumps(envelope))


def show(farm: TestFarm, run_id: str) -> None:
    for path in (
        "/runs/{}",
        "/runs/{}/report",
        "/runs/{}/events",
        "/dashboard/runs/{}",
        "/dashboard/runs/{}/kernels.csv",
        "/dashboard/compare?run={}",
    ):
        sent(farm, "GET", path.format(run_id), headers=STREAMS)
