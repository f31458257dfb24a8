"""Real Valkey, real uvicorn, real Celery workers: the way of a compile, and what survives kill -9."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.base.settings import Settings
from service.store.database.engine import Database
from service.store.queue import COMPILE_TASK, QUEUE, make_celery
from service.store.signs_of_life import count_slots
from tests.sample import sample
from tests.service.postgres import PostgresServer, running_postgres
from tests.waiting import until
from tests.workers.live import LiveFarm, live_farm

pytestmark = pytest.mark.usefixtures("loopback")
COMMANDS: dict[str, dict[str, Any]] = {
    "cancel_consumer": {"queue": QUEUE},
    "rate_limit": {"task_name": COMPILE_TASK, "rate_limit": "1/h"},
    "pool_shrink": {"n": 1},
    "shutdown": {},
}


@pytest.fixture(scope="module")
def farm(loopback: None) -> Iterator[LiveFarm]:
    with live_farm() as opened:
        yield opened


@pytest.fixture(scope="module")
def postgres(loopback: None) -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


def assert_compiled(farm: LiveFarm, job_id: str) -> None:
    job = farm.wait_for_job(job_id)
    assert job["state"] == "succeeded", job
    data = farm.http.get(f"/bundles/{job['bundle_digest']}").content
    assert "sha256:" + hashlib.sha256(data).hexdigest() == job["bundle_digest"]


def test_compile_over_the_broker_streams_its_progress(farm: LiveFarm) -> None:
    job = farm.compile("fine")
    kinds = []
    with farm.http.stream("GET", f"/jobs/{job['id']}/events") as stream:
        for line in stream.iter_lines():
            if line.startswith("event: "):
                kinds.append(line.removeprefix("event: "))
    assert kinds[0] == "state"
    assert "progress" in kinds
    assert kinds[-1] == "end"
    assert_compiled(farm, job["id"])
    assert farm.compile("fine")["id"] == job["id"]


def test_typed_failure_comes_through(farm: LiveFarm) -> None:
    job = farm.wait_for_job(farm.compile("unsupported")["id"])
    assert job["ending"] == {
        "cause": "model",
        "code": "model.unsupported",
        "message": "operator Foo has no rule",
        "where": "node foo_1",
        "hint": "remove it",
    }


def child_of(folder: Path) -> int:
    until(lambda: bool(list(folder.glob("try-*"))))
    return int(next(folder.glob("try-1-*")).name.rsplit("-", 1)[1])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_killed_worker_process_loses_the_job_to_the_next(farm: LiveFarm) -> None:
    job = farm.compile(f"slow {farm.marks}")
    child = child_of(farm.marks)
    os.kill(parent_of(child), signal.SIGKILL)  # Celery's pool process, in the middle of the task
    assert_compiled(farm, job["id"])
    until(lambda: not Path(f"/proc/{child}").exists())  # the compile dies with its worker
    assert farm.http.get(f"/jobs/{job['id']}").json()["attempts"] == 2


def test_killed_worker_is_replaced_by_a_new_one(farm: LiveFarm) -> None:
    job = farm.compile(f"slow {farm.marks}")
    child = child_of(farm.marks)
    farm.kill("worker")
    until(lambda: not Path(f"/proc/{child}").exists())
    farm.start_worker()
    assert_compiled(farm, job["id"])


def test_messages_lost_with_the_broker_are_rung_again(farm: LiveFarm) -> None:
    farm.kill("worker")
    job = farm.compile("fine\nlost")
    farm.kill("valkey")  # keeps nothing on disk
    unsent = farm.compile("fine\nunsent")
    (farm.folder / "v.sock").unlink(missing_ok=True)
    farm.start_valkey()
    farm.start_worker()
    for one in (job, unsent):
        assert_compiled(farm, one["id"])


def test_doubled_messages_compile_once(farm: LiveFarm) -> None:
    from service.base.settings import Settings
    from service.store.queue import COMPILE_TASK, CeleryQueue

    job = farm.compile("fine\ndoubled")
    queue = CeleryQueue(Settings(state=farm.folder, broker_url=f"redis+socket://{farm.folder}/v.sock"))
    for _ in range(3):
        queue.ring(COMPILE_TASK, job["id"])
    assert_compiled(farm, job["id"])
    last = farm.compile("fine\nafter the doubles")
    assert_compiled(farm, last["id"])
    assert farm.http.get(f"/jobs/{job['id']}").json()["attempts"] == 1


def test_the_same_way_on_postgresql(postgres: PostgresServer) -> None:
    with live_farm(postgres.make_database()) as farm:
        assert_compiled(farm, farm.compile("fine")["id"])
        assert farm.wait_for_job(farm.compile("broken")["id"])["state"] == "failed"


@pytest.fixture
def patient_farm(loopback: None) -> Iterator[LiveFarm]:
    """A worker's silence alone would be noticed after ten minutes only."""
    with live_farm(COMPILE_LEASE_S="600", DOORBELL_S="600") as opened:
        yield opened


def copies_of(model: str, folder: Path) -> list[Path]:
    """Files under the folder that hold the model."""
    return [path for path in folder.rglob("source") if path.is_file() and model.encode() in path.read_bytes()]


@pytest.mark.parametrize("who", sample(["task process", "whole worker"], {"whole worker"}))
def test_a_killed_compile_leaves_no_copy_of_the_model_and_its_job_goes_on_at_once(
    patient_farm: LiveFarm, who: str
) -> None:
    farm, model = patient_farm, f"slow {patient_farm.marks}"
    job = farm.compile(model)
    child = child_of(farm.marks)
    place = farm.folder / "compiles"
    assert copies_of(model, place)
    if who == "task process":
        os.kill(parent_of(child), signal.SIGKILL)
    else:
        farm.kill("worker")
        assert copies_of(model, place), "nobody has cleared them away yet"
        farm.start_worker()
    assert_compiled(farm, job["id"])
    until(lambda: not Path(f"/proc/{child}").exists())
    until(lambda: copies_of(model, place) == [])
    assert farm.http.get(f"/jobs/{job['id']}").json()["attempts"] == 2


def test_the_worker_gives_signs_of_life(farm: LiveFarm) -> None:
    alive = farm.folder / f"worker-alive.{socket.gethostname()}"
    touched_ns = alive.stat().st_mtime_ns
    until(lambda: alive.stat().st_mtime_ns != touched_ns)
    until(lambda: farm.http.get("/readyz").json()["parts"]["workers"] == "ok")
    database = Database(farm.environment["POCKFARM_DATABASE_URL"])

    def slots() -> int:
        with database.read() as session:
            return count_slots(session)

    until(lambda: slots() == 1)  # what it was started with; a worker that was killed counts for a while
    database.close()
    log = (farm.folder / "worker.log").read_text()
    assert all(json.loads(line)["part"] == "worker" for line in log.splitlines() if line.startswith("{"))
    assert '"part": "worker"' in log


def test_nobody_commands_a_worker_over_the_broker(farm: LiveFarm) -> None:
    """Whoever reaches it could send these; that a worker goes on as before is seen by what it does next."""
    control = make_celery(Settings(broker_url=farm.environment["POCKFARM_BROKER_URL"])).control
    for command, arguments in COMMANDS.items():
        control.broadcast(command, arguments=arguments)
    assert_compiled(farm, farm.compile("fine\nafter the commands")["id"])
    assert farm.processes["worker"].poll() is None


def test_a_worker_that_lives_and_takes_no_work_is_not_ready(farm: LiveFarm) -> None:
    farm.kill("worker")
    farm.start_worker("--queues", "elsewhere")
    job = farm.compile("fine\nnobody takes it")
    answer: dict[str, Any] = {}

    def message(state: str) -> bool:
        answer.update(farm.http.get("/readyz").json())
        return bool(answer["parts"]["workers"] == state)

    until(lambda: message("idle"), lambda: str(answer))
    assert "in the queue 'pockfarm'" in answer["why"]["workers"]
    farm.kill("worker")
    farm.start_worker()
    assert_compiled(farm, job["id"])
    until(lambda: message("ok"), lambda: str(answer))
