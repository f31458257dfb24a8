"""One compile, by the worker's own code with a real child process: every way it can end has a typed outcome."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import logging
import os
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compiler.cache_folder import KERNELS
from compiler.external import Listing, model_digest
from device_agents.wire.log_lines import bind
from service.artefacts.jobs import claims
from service.base import landlock
from service.base.settings import Settings
from service.people.holdings import service as holdings
from service.store.database.models import Tuning
from tests.sample import thinned
from tests.service.farms import TestFarm, open_test_farm
from tests.waiting import HANG_S, until
from workers import child_lines, compiling
from workers.compile_child import Order, _failure
from workers.compiling import Compile, failure_of
from workers.ownership import own_folder, root_of

ROOT = Path(__file__).resolve().parents[2]
FAKE = "tests.workers.fake_compiler:compile_training"


@pytest.fixture
def farm(tmp_path: Path, sqlite_url: str) -> Iterator[TestFarm]:
    with open_test_farm(
        tmp_path / "state", sqlite_url, compile_function=FAKE, cache_dir=str(tmp_path / "cache"), compile_s=60.0
    ) as opened:
        yield opened


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """A folder that the farm's compiles may write, of their organisation's cache."""
    folder = tmp_path / "cache" / KERNELS
    folder.mkdir(parents=True)
    return folder


def compile_now(farm: TestFarm, model: str, **settings: Any) -> dict[str, Any]:
    """Submit and compile here, as a worker does; the job as shown afterwards."""
    job_id = farm.compile(model.encode()).json()["id"]
    run_compile(farm, job_id, **settings)
    return show(farm, job_id)


def run_compile(farm: TestFarm, job_id: str, **settings: Any) -> None:
    with farm.farm.database.transaction() as session:
        claim = claims.claim(session, job_id, lease_s=30)
    assert claim is not None
    chosen = Settings.model_validate(farm.farm.settings.model_dump() | settings)
    with own_folder(root_of(chosen.state)) as own:
        Compile(chosen, farm.farm.database, farm.farm.storage, claim, own.path).run()


def show(farm: TestFarm, job_id: str) -> dict[str, Any]:
    return dict(farm.http.get(f"/jobs/{job_id}").json())


def test_compile_gives_the_bundle_and_its_progress(farm: TestFarm) -> None:
    job = compile_now(farm, "fine")
    assert (job["state"], job["fraction"], job["ending"]) == ("succeeded", 1.0, None), job
    manifest = farm.http.get(f"/bundles/{job['bundle_digest']}/manifest").json()
    assert manifest["digests"] == {"plan_digest": job["plan"]["digest"], "spec_digest": job["spec_digest"]}
    assert farm.http.get(f"/bundles/{job['bundle_digest']}/report").json()["schema"] == "pockfarm.compile-report/1"
    events = farm.http.get(f"/jobs/{job['id']}/events", headers={"Accept": "application/json"}).json()
    assert [event["body"]["stage"] for event in events if event["kind"] == "progress"]
    info = farm.http.get(f"/bundles/{job['bundle_digest']}/info").json()
    assert (info["model_name"], info["summary"]["memory"]["arena_bytes"]) == ("net", 4096)


SAID = {"code": "model.example", "where": "<b>fc</b>", "message": "is odd", "hint": "do this instead"}


def test_what_the_compiler_warns_of_is_told_with_the_job(farm: TestFarm, marks: Path) -> None:
    (marks / "said.json").write_text(json.dumps([SAID]))
    job = compile_now(farm, f"warns {marks / 'said.json'}")
    assert (job["state"], job["warnings"]) == ("succeeded", [SAID]), job
    assert [one["warnings"] for one in farm.http.get("/jobs").json()["items"]] == [[SAID]]
    assert compile_now(farm, "fine")["warnings"] == []


@pytest.mark.parametrize(
    "warnings",
    thinned(
        [
            7,
            [7],
            [SAID] * 65,
            [{"code": "model.example"}],
            [{**SAID, "more": ""}],
            [{**SAID, "code": "<script>"}],
            [{**SAID, "hint": None}],
            [{**SAID, "message": "x" * 1001}],
            [{**SAID, "where": "\x1b[2J"}],
        ],
        4,
    ),
)
def test_warnings_of_another_form_are_not_taken(farm: TestFarm, marks: Path, warnings: object) -> None:
    (marks / "said.json").write_text(json.dumps(warnings))
    job = compile_now(farm, f"warns {marks / 'said.json'}")
    assert (job["state"], job["ending"]["code"], job["warnings"]) == ("failed", "compiler.bad-bundle", [])
    assert "warnings" in job["ending"]["message"]


def test_a_tuning_job_makes_the_bundle_that_measures_another(farm: TestFarm) -> None:
    source = compile_now(farm, "fine")["bundle_digest"]
    job = farm.http.post("/tune", json={"bundle": source}).json()
    assert (job["source_digest"], job["model"]["name"], job["target"]) == (source, "net", "x86-64-v3")
    run_compile(farm, job["id"])
    made = show(farm, job["id"])
    assert made["state"] == "succeeded", made["ending"]
    manifest = farm.http.get(f"/bundles/{made['bundle_digest']}/manifest").json()
    assert (manifest["kind"], manifest["digests"]["source"]) == ("tuning", source)


def test_a_compile_gets_the_schedules_that_were_measured_before_it_was_asked_for(farm: TestFarm) -> None:
    plain = compile_now(farm, "fine")
    with farm.farm.database.transaction() as session:
        run = farm.run(bundle=plain["bundle_digest"])
        session.add(
            Tuning(
                target="x86-64-v3",
                version="b" * 64,
                kernel="a" * 64,
                threads=2,
                choice="rows=6",
                default_us=2.0,
                tuned_us=1.0,
                device_class="x86-64",
                run_id=run["id"],
            )
        )
    tuned = compile_now(farm, "fine")
    assert tuned["id"] != plain["id"]
    manifest = farm.http.get(f"/bundles/{tuned['bundle_digest']}/manifest").json()
    assert manifest["schedules"] == ["rows=6"]
    assert farm.compile(b"fine").json()["id"] == tuned["id"], "as long as nothing else is measured"


@pytest.mark.parametrize(
    ("model", "cause", "code", "message"),
    [
        ("unsupported", "model", "model.unsupported", "operator Foo"),
        pytest.param("too-big", "limits", "limits.memory", "2,048 bytes", marks=pytest.mark.thorough),
        ("broken", "compiler", "compiler.internal", "ZeroDivisionError"),
        ("memory", "limits", "limits.compile-memory", "bytes of memory"),
        ("crash", "compiler", "compiler.crash", "SIGSEGV"),
        pytest.param("leave", "compiler", "compiler.crash", "exit code 7", marks=pytest.mark.thorough),
        pytest.param("large-file", "limits", "limits.compile-file", "bytes", marks=pytest.mark.thorough),
        ("no-elf", "compiler", "compiler.bad-bundle", "not an ELF"),
        pytest.param(
            "wrong-digest", "compiler", "compiler.bad-bundle", "expected sha256:000", marks=pytest.mark.thorough
        ),
    ],
)
def test_every_bad_ending_is_typed(farm: TestFarm, model: str, cause: str, code: str, message: str) -> None:
    job = compile_now(farm, model, compile_memory_bytes=1 << 30, compile_file_bytes=8 << 20)
    assert (job["state"], job["ending"]["cause"], job["ending"]["code"]) == ("failed", cause, code), job["ending"]
    assert message in job["ending"]["message"]
    assert "secret" not in json.dumps(job)


@pytest.mark.parametrize(
    ("model", "cause", "code"),
    [
        ("bundle-link", "compiler", "compiler.bad-bundle"),
        ("bundle-fifo", "compiler", "compiler.bad-bundle"),
        ("bundle-gone", "compiler", "compiler.bad-bundle"),
        ("bundle-two-names", "compiler", "compiler.bad-bundle"),
        ("bundle-giant", "limits", "limits.bundle"),
        ("done-without-digest", "compiler", "compiler.bad-bundle"),
        ("claim-cause", "compiler", "compiler.crash"),
        ("odd-signal", "compiler", "compiler.crash"),
    ],
)
def test_what_a_child_leaves_and_says_is_not_trusted(farm: TestFarm, model: str, cause: str, code: str) -> None:
    job = compile_now(farm, model, bundle_limit_bytes=1 << 30)
    assert (job["state"], job["ending"]["cause"], job["ending"]["code"]) == ("failed", cause, code), job


def test_what_the_child_logs_says_of_which_job(farm: TestFarm, caplog: pytest.LogCaptureFixture) -> None:
    with bind(job="job_1", attempt=1), caplog.at_level(logging.ERROR):
        compile_now(farm, "broken")
    [tail] = [record.getMessage() for record in caplog.records if "last words" in record.getMessage()]
    told = [json.loads(line) for line in tail.splitlines() if line.startswith("{")]
    assert [(line["part"], line["job"], line["attempt"], line["level"]) for line in told] == [
        ("compile", "job_1", "1", "error")
    ]
    assert "Traceback" in told[0]["traceback"]


@pytest.mark.parametrize("model", ["flood", "one-endless-line", "empty-lines", "endless-log"])
def test_a_child_that_floods_the_worker_is_ended_and_costs_no_memory(farm: TestFarm, model: str) -> None:
    tracemalloc.start()
    try:
        job = compile_now(farm, model)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (job["ending"]["cause"], job["ending"]["code"], job["attempts"]) == ("limits", "limits.compile-output", 1)
    assert most_bytes < child_lines.MOST_BYTES, "less than it took of it"


@pytest.mark.parametrize("model", ["babble", "log-fifo"])
def test_nonsense_among_its_lines_is_passed_over(farm: TestFarm, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "PROGRESS_INTERVAL_S", 0.0)  # each line that is progress is passed on
    assert compile_now(farm, model)["state"] == "succeeded"


def test_compile_that_takes_too_long_is_ended(farm: TestFarm) -> None:
    job = compile_now(farm, "hang", compile_s=0.5)
    assert (job["state"], job["ending"]["code"]) == ("failed", "limits.compile-time")


def test_killed_child_is_tried_again_then_fails(farm: TestFarm) -> None:
    job = compile_now(farm, "kill")
    assert (job["state"], job["attempts"]) == ("queued", 1)
    assert len(farm.queue.rung) == 2
    for _ in range(2):
        run_compile(farm, job["id"])
    job = show(farm, job["id"])
    assert (job["state"], job["ending"]["cause"], job["ending"]["code"]) == ("failed", "infra", "infra.compile-killed")


def test_cancelled_compile_stops_and_leaves_no_process(farm: TestFarm, marks: Path) -> None:
    job_id = farm.compile(f"slow {marks}".encode()).json()["id"]
    worker = threading.Thread(target=run_compile, args=(farm, job_id))
    worker.start()
    pid = wait_for_child(marks)
    farm.http.post(f"/jobs/{job_id}/cancel")
    worker.join(timeout=HANG_S)
    assert show(farm, job_id)["state"] == "cancelled"
    assert not Path(f"/proc/{pid}").exists()


def test_compile_whose_job_was_taken_away_writes_nothing(farm: TestFarm, marks: Path) -> None:
    job_id = farm.compile(f"slow {marks}".encode()).json()["id"]
    endings: list[BaseException] = []

    def attempt() -> None:
        try:
            run_compile(farm, job_id)
        except claims.LostClaim as error:
            endings.append(error)

    worker = threading.Thread(target=attempt)
    worker.start()
    wait_for_child(marks)
    with farm.farm.database.transaction() as session:
        from service.store.database.models import Job

        claims.give_back(session, session.get_one(Job, job_id), "taken away by the test")
    worker.join(timeout=HANG_S)
    assert len(endings) == 1
    assert show(farm, job_id)["state"] == "queued"


def test_compile_sees_no_secrets_no_home_and_no_network(
    loopback: None, farm: TestFarm, tmp_path: Path, marks: Path
) -> None:
    """Nor other organisations' caches, the farm's state, other jobs' models, the worker's memory or its process.

    It reaches no broker, changes nothing of a file outside, nor how itself or the worker runs, and leaves no process.
    """
    closed = [
        tmp_path / "state",
        tmp_path / "cache",
        tmp_path / "cache" / "organisations" / "other" / KERNELS,
        root_of(farm.farm.settings.state),
        Path(f"/proc/{os.getpid()}/environ"),
        ROOT / ".git",
        ROOT / "tests.py",
        Path("/etc/passwd"),
        Path("/var/tmp"),
        Path("/tmp"),
        Path.home() / "left",
    ]
    closed[2].mkdir(parents=True)
    (marks / "reach.json").write_text(json.dumps([str(one) for one in (*closed, marks)]))
    other = tmp_path / "other"
    other.touch(mode=0o600)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as broker:
        broker.bind(str(broker_path := tmp_path / "v.sock"))
        broker.listen()
        (marks / "outside.json").write_text(json.dumps([server.getsockname()[1], str(broker_path), str(other)]))
        os.environ["POCKFARM_DATABASE_PASSWORD"] = "secret"
        try:
            assert compile_now(farm, f"look {marks}")["state"] == "succeeded"
        finally:
            del os.environ["POCKFARM_DATABASE_PASSWORD"]
    seen = json.loads((marks / "seen.json").read_text())
    allowed = {
        "PATH",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TZ",
        "VIRTUAL_ENV",
        "HOME",
        "TMPDIR",
        "POCKFARM_CACHE_DIR",
        "PYTHONPATH",
        "PYTHONDONTWRITEBYTECODE",
    }
    assert set(seen["environment"]) <= allowed
    assert seen["home"] == []
    assert seen["succeeded"] == []
    version = landlock.version()
    assert str(marks) in seen["reached"]
    if version:
        assert seen["reached"] == [str(marks)]
        assert seen["signalled"] is (version < 6)


def test_a_tenants_compile_reaches_no_cache_but_its_own(farm: TestFarm, tmp_path: Path) -> None:
    """What one organisation's compile leaves, no other's takes: nobody plants a kernel."""
    tenant = farm.tenant("tenant")
    others = tmp_path / "cache" / "organisations"
    tenants, home, other = (
        folder / KERNELS for folder in (others / tenant.organisation_id, tmp_path / "cache", others / "other")
    )
    beside = others / tenant.organisation_id / "in-use"
    for folder in (tenants, home, other):
        folder.mkdir(parents=True)
    (tenants / "reach.json").write_text(json.dumps([str(place) for place in (home, other, others, beside, tenants)]))
    (tenants / "outside.json").write_text(json.dumps([1, str(tmp_path / "nowhere"), str(tmp_path / "nowhere")]))
    assert compile_now(tenant, f"look {tenants}")["state"] == "succeeded"
    reached = json.loads((tenants / "seen.json").read_text())["reached"]
    assert str(tenants) in reached
    if landlock.version():
        assert reached == [str(tenants)]


def wait_for_child(folder: Path) -> int:
    """The process id that the slow compile left."""
    until(lambda: list(folder.glob("try-*")), "the compile child never started")
    [mark] = folder.glob("try-*")
    return int(mark.name.rsplit("-", 1)[1])


def test_a_model_with_data_files_is_compiled_from_all_of_them(farm: TestFarm) -> None:
    """Mapped by the confined child, under the locations that the client named; an empty one too."""
    data = {"net.data": b"d" * 5000, "below/more.bin": b""}
    names = {location: "sha256:" + hashlib.sha256(held).hexdigest() for location, held in data.items()}
    empty = farm.farm.storage.put(io.BytesIO(b""), limit_bytes=1).digest
    with farm.farm.database.transaction() as session:
        holdings.hold(session, "data", empty, size_bytes=0)
    parts = [("model", ("net.onnx", b"fine")), ("data", ("any name", data["net.data"]))]
    form = {"plan": "full", "target": "x86-64-v3", "external": json.dumps(names)}
    job_id = farm.http.post("/compile", data=form, files=parts).json()["id"]
    run_compile(farm, job_id)
    job = show(farm, job_id)
    assert job["state"] == "succeeded", job
    manifest = farm.http.get(f"/bundles/{job['bundle_digest']}/manifest").json()
    assert manifest["digests"]["model"] == job["model"]["digest"] == model_digest(b"fine", data)


def test_a_listing_that_is_none_is_the_models_fault(farm: TestFarm) -> None:
    job = compile_now(farm, '{"external":{"../a":"sha256:0"},"model":"x"}')
    assert (job["state"], job["ending"]["cause"], job["ending"]["code"]) == ("failed", "model", "model.invalid")


def test_a_listing_of_what_is_not_there_says_so(farm: TestFarm) -> None:
    listing = Listing("sha256:" + "a" * 64, {"net.data": "sha256:" + "b" * 64})
    answer = farm.compile(listing.to_bytes())
    assert (answer.status_code, answer.json()["code"]) == (404, "model.external-missing"), answer.text


@pytest.mark.parametrize(
    ("number", "cause", "code"),
    [
        (errno.ENOSPC, "infra", "infra.disk-full"),
        (errno.EDQUOT, "infra", "infra.disk-full"),
        (errno.EFBIG, "limits", "limits.compile-file"),
        (errno.ENOENT, "compiler", "compiler.internal"),
    ],
)
def test_a_child_that_cannot_write_says_whose_matter_it_is(number: int, cause: str, code: str) -> None:
    order = Order("", "{}", "{}", "t", "", memory_bytes=1, cpu_s=1, file_bytes=1 << 20)
    said = {"event": "failed", **_failure(OSError(number, "no"), order)}
    failure = failure_of(said, 1, Settings(), in_time=True)
    assert (failure.cause, failure.code) == (cause, code)
    assert failure.retry == (code == "infra.disk-full")


def test_a_failure_that_quotes_a_giant_name_still_is_one_line_that_the_worker_takes() -> None:
    class Refused(Exception):
        cause, code, where, hint = "model", "model.invalid", "\N{SNAKE}" * 90_000, "\N{SNAKE}" * 90_000
        message = "\N{SNAKE}" * 90_000

    order = Order("", "{}", "{}", "t", "", memory_bytes=1, cpu_s=1, file_bytes=1 << 20)
    event = {"event": "failed", **_failure(Refused(), order)}
    assert len(json.dumps(event)) < child_lines.LINE_BYTES
    assert failure_of(event, 1, Settings(), in_time=True).message.endswith("... (90,000 characters)")
